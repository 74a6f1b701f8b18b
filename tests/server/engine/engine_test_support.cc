#include "tests/server/engine/engine_test_support.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/time/time.h"
#include "kernels/float_convert.h"
#include "kernels/mask.h"
#include "kernels/reference/reference_attention.h"
#include "tests/support/comparison.h"

namespace attention::test {
namespace {

std::vector<char> RandomTensor(DataType type, int64_t elements, uint64_t seed) {
  std::vector<char> tensor(elements * ElementBytes(type));
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < elements; ++i) {
    StoreFromFloat(type, tensor.data(), i, normal(random));
  }
  return tensor;
}

std::vector<float> RandomScales(int64_t heads, uint64_t seed) {
  std::vector<float> scales(heads);
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> scale(0.25f, 4.0f);
  for (float& s : scales) s = scale(random);
  return scales;
}

// Copies of the fragments, each at the end of an allocation of its own, so that
// a memory checker sees every byte read too much.
class FragmentedCopy {
 public:
  FragmentedCopy(const std::vector<char>& bytes, size_t fragment_bytes,
                 size_t misalignment) {
    if (fragment_bytes == 0) fragment_bytes = bytes.size();
    for (size_t at = 0; at < bytes.size(); at += fragment_bytes) {
      const size_t size = std::min(fragment_bytes, bytes.size() - at);
      Memory memory(
          static_cast<char*>(::operator new(misalignment + size, kAlignment)));
      std::memcpy(memory.get() + misalignment, bytes.data() + at, size);
      payload_.fragments.emplace_back(memory.get() + misalignment, size);
      memory_.push_back(std::move(memory));
    }
  }
  // The bytes are wiped, so that a use after release shows in the answer.
  ~FragmentedCopy() {
    for (absl::string_view fragment : payload_.fragments) {
      std::memset(const_cast<char*>(fragment.data()), 0xff, fragment.size());
    }
  }
  FragmentedCopy(const FragmentedCopy&) = delete;
  FragmentedCopy& operator=(const FragmentedCopy&) = delete;

  const Payload& payload() const { return payload_; }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Delete {
    void operator()(char* memory) const {
      ::operator delete(memory, kAlignment);
    }
  };
  using Memory = std::unique_ptr<char, Delete>;

  std::vector<Memory> memory_;
  Payload payload_;
};

}  // namespace

struct TestRequest::Tensors {
  FragmentedCopy query, key, value;
};

namespace {

// The bytes of another payload; fails beyond the first `readable_bytes`.
class TestSource final : public PayloadSource {
 public:
  TestSource(const Payload& payload, size_t readable_bytes)
      : readable_bytes_(readable_bytes) {
    for (absl::string_view fragment : payload.fragments) {
      bytes_.append(fragment.data(), fragment.size());
    }
  }

  size_t size_bytes() const override { return bytes_.size(); }
  absl::Status Read(size_t offset, absl::Span<char> to) const override {
    EXPECT_LE(offset + to.size(), bytes_.size());
    if (offset + to.size() > readable_bytes_) {
      return absl::FailedPreconditionError("the source ends early");
    }
    std::memcpy(to.data(), bytes_.data() + offset, to.size());
    return absl::OkStatus();
  }

 private:
  const size_t readable_bytes_;
  std::string bytes_;
};

}  // namespace

TestRequest::TestRequest(WorkSpec spec) : spec_(std::move(spec)) {
  PlanSequences();
  const HeadConfig& c = spec_.config;
  int64_t query_tokens = 0, key_tokens = 0;
  for (auto [m, n] : spec_.lengths) {
    query_tokens += std::max(m, spec_.padded_query_length);
    key_tokens += std::max(n, spec_.padded_key_length);
  }
  if (spec_.scales) {
    scales_ = {RandomScales(c.query_head_count, spec_.seed * 5),
               RandomScales(c.kv_head_count, spec_.seed * 5 + 1),
               RandomScales(c.kv_head_count, spec_.seed * 5 + 2)};
  }
  query_ = RandomTensor(c.data_type,
                        query_tokens * c.query_head_count * c.head_dim_qk,
                        spec_.seed * 3);
  key_ = RandomTensor(c.data_type, key_tokens * c.kv_head_count * c.head_dim_qk,
                      spec_.seed * 3 + 1);
  value_ =
      RandomTensor(c.data_type, key_tokens * c.kv_head_count * c.head_dim_v,
                   spec_.seed * 3 + 2);
  if (spec_.all_nan) {
    for (std::vector<char>* tensor : {&query_, &key_, &value_}) {
      std::fill(tensor->begin(), tensor->end(), '\xff');  // NaN in every type
    }
  }
  output_bytes_ = query_tokens * c.query_head_count * c.head_dim_v *
                  ElementBytes(output_type());
  if (spec_.log_sum_exp) {
    log_sum_exp_bytes_ = query_tokens * c.query_head_count * sizeof(float);
  }

  auto copy = [&](const std::vector<char>& bytes) {
    return FragmentedCopy(bytes, spec_.fragment_bytes, spec_.misalignment);
  };
  std::shared_ptr<Tensors> tensors(
      new Tensors{copy(query_), copy(key_), copy(value_)});
  payload_ = tensors;

  work_ = std::make_unique<AttentionWork>();
  work_->config = c;
  work_->sequences = sequences_;
  work_->scales = scales_;
  work_->query = tensors->query.payload();
  work_->key = tensors->key.payload();
  work_->value = tensors->value.payload();
  if (spec_.source_bytes.has_value()) {
    for (Payload* payload : {&work_->query, &work_->key, &work_->value}) {
      *payload = {.fragments = {},
                  .source = std::make_shared<TestSource>(*payload,
                                                         *spec_.source_bytes)};
    }
  }
  work_->payload_owner = std::move(tensors);
  work_->output_bytes = output_bytes_;
  work_->log_sum_exp_bytes = log_sum_exp_bytes_;
  work_->weights_bytes = weights_bytes_;
  work_->has_padding =
      spec_.padded_query_length > 0 || spec_.padded_key_length > 0;
  work_->done = [this](absl::StatusOr<WorkResult> result) {
    result_ = std::move(result);
    if (++done_count_ == 1) done_.Notify();
  };
}

void TestRequest::PlanSequences() {
  const HeadConfig& c = spec_.config;
  const auto strides = [this](int64_t tokens, int64_t heads, int64_t dim) {
    return spec_.heads_first ? TensorStrides{.token = dim, .head = tokens * dim}
                             : TensorStrides{.token = heads * dim, .head = dim};
  };
  int64_t query_token = 0, key_token = 0, weight = 0;
  for (auto [m, n] : spec_.lengths) {
    WorkSequence s;
    s.query_offset = query_token * c.query_head_count * c.head_dim_qk;
    s.key_offset = key_token * c.kv_head_count * c.head_dim_qk;
    s.value_offset = key_token * c.kv_head_count * c.head_dim_v;
    s.output_offset = query_token * c.query_head_count * c.head_dim_v;
    s.log_sum_exp_offset = query_token * c.query_head_count;
    s.weights_offset = weight;
    s.shape.query_strides = strides(m, c.query_head_count, c.head_dim_qk);
    s.shape.key_strides = strides(n, c.kv_head_count, c.head_dim_qk);
    s.shape.value_strides = strides(n, c.kv_head_count, c.head_dim_v);
    s.shape.output_strides = strides(m, c.query_head_count, c.head_dim_v);
    s.shape.log_sum_exp_token_stride = c.query_head_count;
    s.shape.log_sum_exp_head_stride = 1;
    s.shape.query_length = m;
    s.shape.key_length = n;
    s.shape.scale = spec_.scale.value_or(1.0 / std::sqrt(c.head_dim_qk));
    s.shape.window_left = spec_.window_left;
    s.shape.window_right = spec_.window_right;
    sequences_.push_back(s);
    query_token += std::max(m, spec_.padded_query_length);
    key_token += std::max(n, spec_.padded_key_length);
    weight += c.query_head_count * m * n;
  }
  if (spec_.weights) {
    weights_bytes_ = weight * ElementBytes(output_type());
  }
}

const absl::StatusOr<WorkResult>& TestRequest::Wait() {
  if (!done_.WaitForNotificationWithTimeout(absl::Minutes(1))) {
    result_ = absl::DeadlineExceededError("`done` was not called");
  }
  return result_;
}

std::unique_ptr<AttentionWork> TestRequest::TakeWork() {
  output_target_ = work_->output_target;
  log_sum_exp_target_ = work_->log_sum_exp_target;
  weights_target_ = work_->weights_target;
  return std::move(work_);
}

const char* TestRequest::Data(const Block& block,
                              const DirectMemory& target) const {
  return static_cast<const char*>(block.size() > 0 ? block.data()
                                                   : target.address);
}
const char* TestRequest::OutputData() const {
  return Data(result_->output, output_target_);
}
const float* TestRequest::LogSumExpData() const {
  return reinterpret_cast<const float*>(
      Data(result_->log_sum_exp, log_sum_exp_target_));
}
const char* TestRequest::WeightsData() const {
  return Data(result_->weights, weights_target_);
}

testing::AssertionResult TestRequest::AnsweredRight() {
  if (!Wait().ok()) return testing::AssertionFailure() << result_.status();
  if (done_count_ != 1) {
    return testing::AssertionFailure() << "done called " << done_count_ << "x";
  }
  const auto fits = [](const Block& block, size_t bytes,
                       const DirectMemory& target) {
    return block.size() == bytes ||
           (block.size() == 0 && target.address != nullptr);
  };
  if (!fits(result_->output, output_bytes_, output_target_) ||
      !fits(result_->log_sum_exp, log_sum_exp_bytes_, log_sum_exp_target_) ||
      !fits(result_->weights, weights_bytes_, weights_target_)) {
    return testing::AssertionFailure() << "a result block has another size";
  }
  for (const WorkSequence& sequence : sequences_) {
    if (auto right = SequenceIsRight(sequence); !right) return right;
  }
  return PaddingIsCleared();
}

testing::AssertionResult TestRequest::SequenceIsRight(
    const WorkSequence& sequence) {
  const int64_t bytes = ElementBytes(spec_.config.data_type);
  const int64_t output_bytes = ElementBytes(output_type());
  Sequence s = sequence.shape;
  if (spec_.scales) {
    s.query_scales = scales_.query.data();
    s.key_scales = scales_.key.data();
    s.value_scales = scales_.value.data();
  }
  if (s.query_length == 0 || spec_.config.query_head_count == 0) {
    return testing::AssertionSuccess();
  }
  s.query = query_.data() + sequence.query_offset * bytes;
  s.key = key_.data() + sequence.key_offset * bytes;
  s.value = value_.data() + sequence.value_offset * bytes;
  s.output =
      const_cast<char*>(OutputData()) + sequence.output_offset * output_bytes;
  if (spec_.log_sum_exp) {
    s.log_sum_exp =
        const_cast<float*>(LogSumExpData()) + sequence.log_sum_exp_offset;
  }
  if (weights_bytes_ > 0) {
    s.weights = const_cast<char*>(WeightsData()) +
                sequence.weights_offset * output_bytes;
  }
  return MatchesReference(spec_.config, s);
}

testing::AssertionResult TestRequest::PaddingIsCleared() {
  const HeadConfig& c = spec_.config;
  int64_t token = 0;
  for (auto [m, n] : spec_.lengths) {
    const int64_t end = token + std::max(m, spec_.padded_query_length);
    for (int64_t row = (token + m) * c.query_head_count;
         row < end * c.query_head_count; ++row) {
      for (int64_t d = 0; d < c.head_dim_v; ++d) {
        if (LoadAsFloat(output_type(), OutputData(), row * c.head_dim_v + d) !=
            0.0f) {
          return testing::AssertionFailure() << "padded output row " << row;
        }
      }
      if (spec_.log_sum_exp &&
          LogSumExpData()[row] != -std::numeric_limits<float>::infinity()) {
        return testing::AssertionFailure() << "padded log-sum-exp row " << row;
      }
    }
    token = end;
  }
  return testing::AssertionSuccess();
}

std::string TestRequest::ResultBits() {
  if (!Wait().ok()) return std::string(result_.status().message());
  std::string bits;
  for (const Block* block :
       {&result_->output, &result_->log_sum_exp, &result_->weights}) {
    bits.append(static_cast<const char*>(block->data()), block->size());
  }
  return bits;
}

std::unique_ptr<Batch> MakeBatch(
    std::vector<std::unique_ptr<TestRequest>>& requests) {
  auto batch = std::make_unique<Batch>();
  for (std::unique_ptr<TestRequest>& request : requests) {
    batch->works.push_back(request->TakeWork());
  }
  batch->config = batch->works.front()->config;
  return batch;
}

void RunAndWait(Device& device, std::unique_ptr<Batch> batch) {
  // The slot may be free before the answers are given.
  absl::Notification answered;
  auto gone = absl::MakeCleanup([&answered] { answered.Notify(); });
  device.Run(std::move(batch), [gone = std::move(gone)] {});
  ASSERT_TRUE(answered.WaitForNotificationWithTimeout(absl::Minutes(1)))
      << "the slot did not become free, or not all answers were given";
}

}  // namespace attention::test
