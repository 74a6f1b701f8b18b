#include "client/loadtest/input_set.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/float_convert.h"

namespace attention::loadtest {
namespace {

// Normal numbers in one data type, to draw from: filling gigabytes with a
// normal distribution proper would take minutes.
class NormalTable {
 public:
  NormalTable(DataType type, std::mt19937_64& random)
      : element_bytes_(ElementBytes(type)),
        elements_(kSize * element_bytes_, '\0') {
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < kSize; ++i) {
      StoreFromFloat(type, elements_.data(), i, normal(random));
    }
  }

  std::string Draw(int64_t count, std::mt19937_64& random) const {
    std::string buffer(count * element_bytes_, '\0');
    uint64_t bits = 0;
    for (int64_t i = 0; i < count; ++i) {
      bits = i % 4 == 0 ? random() : bits >> 16;
      std::memcpy(&buffer[i * element_bytes_],
                  &elements_[(bits % kSize) * element_bytes_], element_bytes_);
    }
    return buffer;
  }

 private:
  static constexpr int64_t kSize = 1 << 16;

  const int64_t element_bytes_;
  std::string elements_;
};

// Of one tensor's heads; none but with 8 bits.
std::vector<float> DrawScales(const RequestShape& shape, int64_t heads,
                              std::mt19937_64& random) {
  if (shape.data_type != DataType::kFloat8E4M3) return {};
  std::uniform_real_distribution<float> about_1(0.5f, 1.5f);
  std::vector<float> scales(heads);
  for (float& scale : scales) scale = about_1(random);
  return scales;
}

TensorView View(const std::string& buffer, std::vector<int64_t> dims) {
  return {.data = buffer.data(),
          .size_bytes = buffer.size(),
          .shape = std::move(dims)};
}

std::unique_ptr<const Input> MakeInput(const RequestShape& shape,
                                       const NormalTable& table,
                                       std::mt19937_64& random,
                                       int verified_rows) {
  auto input = std::make_unique<Input>();
  input->query = table.Draw(ElementCount(shape.QueryDims()), random);
  input->key = table.Draw(ElementCount(shape.KeyDims()), random);
  input->value = table.Draw(ElementCount(shape.ValueDims()), random);

  AttentionRequest& request = input->request;
  request.data_type = shape.data_type;
  request.layout = shape.layout;
  request.query = View(input->query, shape.QueryDims());
  request.key = View(input->key, shape.KeyDims());
  request.value = View(input->value, shape.ValueDims());
  if (shape.layout == Layout::kThd) {
    request.query_lengths.assign(shape.batch, shape.query_length);
    request.key_lengths.assign(shape.batch, shape.key_length);
  }
  request.query_scales = DrawScales(shape, shape.heads, random);
  request.key_scales = DrawScales(shape, shape.kv_heads, random);
  request.value_scales = DrawScales(shape, shape.kv_heads, random);
  request.mask = shape.mask;
  if (shape.window_left >= 0) request.window_left = shape.window_left;
  if (shape.window_right >= 0) request.window_right = shape.window_right;
  request.precision = shape.precision;
  request.algorithm = shape.algorithm;
  request.return_log_sum_exp = shape.log_sum_exp;
  if (verified_rows > 0) {
    input->expectation =
        ComputeExpectation(shape, request, verified_rows, random());
  }
  return input;
}

}  // namespace

absl::StatusOr<InputSet> InputSet::Create(const ShapeMix& mix,
                                          const Options& options) {
  int64_t bytes_per_round = 0;  // one input of each shape
  for (const WeightedShape& entry : mix) {
    bytes_per_round += entry.shape.RequestBytes();
  }
  if (bytes_per_round > options.max_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("one input of each shape takes ", bytes_per_round,
                     " bytes; --input_memory_mib allows ", options.max_bytes));
  }
  const int64_t inputs_per_shape = std::clamp<int64_t>(
      options.max_bytes / std::max<int64_t>(bytes_per_round, 1), 1,
      options.inputs_per_shape);

  InputSet set;
  std::mt19937_64 random(options.seed);
  for (const WeightedShape& entry : mix) {
    const NormalTable table(entry.shape.data_type, random);
    auto& inputs = set.inputs_.emplace_back();
    for (int64_t i = 0; i < inputs_per_shape; ++i) {
      inputs.push_back(
          MakeInput(entry.shape, table, random, options.verified_rows));
    }
  }
  return set;
}

}  // namespace attention::loadtest
