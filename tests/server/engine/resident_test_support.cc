#include "tests/server/engine/resident_test_support.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "kernels/float_convert.h"
#include "tests/support/comparison.h"

namespace attention::test {
namespace {

TensorStrides Strides(int64_t heads, int64_t dim) {
  return {.token = heads * dim, .head = dim, .dim = 1};
}

void AppendRandom(DataType type, int64_t elements, std::mt19937_64& random,
                  std::vector<char>& tensor) {
  std::normal_distribution<float> normal;
  const int64_t begin =
      static_cast<int64_t>(tensor.size()) / ElementBytes(type);
  tensor.resize((begin + elements) * ElementBytes(type));
  for (int64_t i = 0; i < elements; ++i) {
    StoreFromFloat(type, tensor.data(), begin + i, normal(random));
  }
}

Payload Fragments(const std::vector<char>& bytes, size_t fragment_bytes) {
  Payload payload;
  if (fragment_bytes == 0) fragment_bytes = bytes.size();
  for (size_t at = 0; at < bytes.size(); at += fragment_bytes) {
    payload.fragments.emplace_back(bytes.data() + at,
                                   std::min(fragment_bytes, bytes.size() - at));
  }
  return payload;
}

class UnreadableSource final : public PayloadSource {
 public:
  explicit UnreadableSource(size_t size_bytes) : size_bytes_(size_bytes) {}
  size_t size_bytes() const override { return size_bytes_; }
  absl::Status Read(size_t, absl::Span<char>) const override {
    return absl::FailedPreconditionError("the source is gone");
  }

 private:
  const size_t size_bytes_;
};

}  // namespace

TestLayer TestLayer::ForkedTo(std::shared_ptr<KvLayer> other) const {
  TestLayer fork = *this;
  fork.layer = std::move(other);
  return fork;
}

ResidentRequest::ResidentRequest(ResidentSpec spec) : spec_(std::move(spec)) {
  const HeadConfig& c = spec_.config.heads;
  std::mt19937_64 random(spec_.seed);
  auto tensors = std::make_shared<Tensors>();
  work_ = std::make_unique<AttentionWork>();
  int64_t queries = 0, appended = 0;
  for (const StepSpec& step : spec_.steps) {
    WorkSequence s;
    s.query_offset = queries * c.query_head_count * c.head_dim_qk;
    s.output_offset = queries * c.query_head_count * c.head_dim_v;
    s.log_sum_exp_offset = queries * c.query_head_count;
    s.key_offset = appended * c.kv_head_count * c.head_dim_qk;
    s.value_offset = appended * c.kv_head_count * c.head_dim_v;
    s.shape.query_strides = Strides(c.query_head_count, c.head_dim_qk);
    s.shape.key_strides = Strides(c.kv_head_count, c.head_dim_qk);
    s.shape.value_strides = Strides(c.kv_head_count, c.head_dim_v);
    s.shape.output_strides = Strides(c.query_head_count, c.head_dim_v);
    s.shape.log_sum_exp_token_stride = c.query_head_count;
    s.shape.log_sum_exp_head_stride = 1;
    s.shape.query_length = step.queries;
    s.shape.scale = 1 / std::sqrt(c.head_dim_qk);
    s.shape.window_left = spec_.window_left;
    const size_t key_begin = tensors->key.size();
    const size_t value_begin = tensors->value.size();
    AppendRandom(c.data_type, step.queries * c.query_head_count * c.head_dim_qk,
                 random, tensors->query);
    AppendRandom(c.data_type, step.append * c.kv_head_count * c.head_dim_qk,
                 random, tensors->key);
    AppendRandom(c.data_type, step.append * c.kv_head_count * c.head_dim_v,
                 random, tensors->value);
    if (spec_.is_poison) {
      // All bits set is NaN in every type.
      std::fill(tensors->key.begin(), tensors->key.end(), '\xff');
      std::fill(tensors->value.begin(), tensors->value.end(), '\xff');
    }
    TestLayer& layer = *step.layer;
    if (step.code == absl::StatusCode::kOk && !spec_.unreadable) {
      layer.keys.insert(layer.keys.end(), tensors->key.begin() + key_begin,
                        tensors->key.end());
      layer.values.insert(layer.values.end(),
                          tensors->value.begin() + value_begin,
                          tensors->value.end());
      layer.tokens += step.append;
    }
    lengths_.push_back(layer.tokens);
    s.shape.key_length = spec_.estimated_length.value_or(layer.tokens);
    sequences_.push_back(s);
    work_->kv_steps.push_back({.layer = layer.layer,
                               .append_length = step.append,
                               .query_length = step.queries,
                               .expected_position = step.expected_position,
                               .key_range = step.key_range});
    queries += step.queries;
    appended += step.append;
  }
  query_ = tensors->query;
  work_->config = c;
  work_->kv_data_type = spec_.config.kv_data_type;
  work_->split_policy = spec_.config.split_policy;
  work_->page_tokens = spec_.config.page_tokens;
  work_->sequences = sequences_;
  work_->query = Fragments(tensors->query, spec_.fragment_bytes);
  work_->key = Fragments(tensors->key, spec_.fragment_bytes);
  work_->value = Fragments(tensors->value, spec_.fragment_bytes);
  if (spec_.unreadable) {
    work_->query = {
        .fragments = {},
        .source = std::make_shared<UnreadableSource>(tensors->query.size())};
  }
  work_->output_bytes =
      queries * c.query_head_count * c.head_dim_v * ElementBytes(c.data_type);
  if (spec_.log_sum_exp) {
    work_->log_sum_exp_bytes = queries * c.query_head_count * sizeof(float);
  }
  payload_ = tensors;
  work_->payload_owner = std::move(tensors);
  work_->done = [this](absl::StatusOr<WorkResult> result) {
    ASSERT_FALSE(done());
    result_ = std::move(result);
    done_.Notify();
  };
}

const absl::StatusOr<WorkResult>& ResidentRequest::Wait() {
  if (!done_.WaitForNotificationWithTimeout(absl::Minutes(1))) {
    result_ = absl::DeadlineExceededError("`done` was not called");
  }
  return result_;
}

testing::AssertionResult ResidentRequest::AnsweredRight() {
  if (!Wait().ok()) return testing::AssertionFailure() << result_.status();
  const auto& statuses = result_->sequence_statuses;
  const auto& lengths = result_->sequence_key_lengths;
  if (statuses.size() != spec_.steps.size() ||
      lengths.size() != spec_.steps.size()) {
    return testing::AssertionFailure()
           << statuses.size() << " statuses, " << lengths.size() << " lengths";
  }
  for (size_t i = 0; i < spec_.steps.size(); ++i) {
    const bool is_ok = spec_.steps[i].code == absl::StatusCode::kOk;
    if (statuses[i].code() != spec_.steps[i].code ||
        lengths[i] != (is_ok ? lengths_[i] : 0)) {
      return testing::AssertionFailure() << "step " << i << ": " << statuses[i]
                                         << ", length " << lengths[i];
    }
    auto right = is_ok ? StepIsRight(i) : StepIsCleared(i);
    if (!right) return right << " in step " << i;
  }
  return testing::AssertionSuccess();
}

testing::AssertionResult ResidentRequest::StepIsRight(size_t index) {
  const HeadConfig& c = spec_.config.heads;
  const StepSpec& step = spec_.steps[index];
  const WorkSequence& sequence = sequences_[index];
  const int64_t bytes = ElementBytes(c.data_type);
  const KeyRange range = step.key_range.value_or(KeyRange{0, lengths_[index]});
  if (step.queries == 0) return testing::AssertionSuccess();
  Sequence s = sequence.shape;
  s.query = query_.data() + sequence.query_offset * bytes;
  s.key = step.layer->keys.data() +
          range.begin * c.kv_head_count * c.head_dim_qk * bytes;
  s.value = step.layer->values.data() +
            range.begin * c.kv_head_count * c.head_dim_v * bytes;
  s.key_length = range.end - range.begin;
  s.output = static_cast<char*>(result_->output.data()) +
             sequence.output_offset * bytes;
  if (spec_.log_sum_exp) {
    s.log_sum_exp = static_cast<float*>(result_->log_sum_exp.data()) +
                    sequence.log_sum_exp_offset;
  }
  return MatchesReference(c, s);
}

testing::AssertionResult ResidentRequest::StepIsCleared(size_t index) {
  const HeadConfig& c = spec_.config.heads;
  const WorkSequence& sequence = sequences_[index];
  const int64_t rows = spec_.steps[index].queries * c.query_head_count;
  for (int64_t i = 0; i < rows * c.head_dim_v; ++i) {
    if (LoadAsFloat(c.data_type, result_->output.data(),
                    sequence.output_offset + i) != 0) {
      return testing::AssertionFailure() << "output is not 0";
    }
  }
  for (int64_t i = 0; spec_.log_sum_exp && i < rows; ++i) {
    if (static_cast<float*>(
            result_->log_sum_exp.data())[sequence.log_sum_exp_offset + i] !=
        -std::numeric_limits<float>::infinity()) {
      return testing::AssertionFailure() << "log-sum-exp is not -inf";
    }
  }
  return testing::AssertionSuccess();
}

std::unique_ptr<Batch> MakeResidentBatch(
    uint64_t number, std::vector<std::unique_ptr<ResidentRequest>>& requests) {
  auto batch = std::make_unique<Batch>();
  for (std::unique_ptr<ResidentRequest>& request : requests) {
    batch->works.push_back(request->TakeWork());
  }
  batch->config = batch->works.front()->config;
  batch->kv_batch_number = number;
  return batch;
}

}  // namespace attention::test
