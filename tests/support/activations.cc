#include "tests/support/activations.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "absl/strings/numbers.h"
#include "client/safetensors/safetensors.h"
#include "kernels/float_convert.h"

namespace attention::test {
namespace {

std::vector<float> Floats(const SafetensorsTensor& tensor) {
  std::vector<float> values(tensor.bytes.size() / sizeof(float));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

// Converts [heads, tokens, dims] without gaps; returns the scales of the heads.
std::vector<float> ConvertToFloat8(DataType type, const Buffer& from,
                                   int64_t heads, Buffer& to) {
  const int64_t count =
      static_cast<int64_t>(from.bytes.size()) / ElementBytes(type);
  const int64_t per_head = count / heads;
  to.bytes.resize(count);
  std::vector<float> scales;
  for (int64_t begin = 0; begin < count; begin += per_head) {
    float largest = 0;
    for (int64_t i = begin; i < begin + per_head; ++i) {
      largest =
          std::max(largest, std::abs(LoadAsFloat(type, from.bytes.data(), i)));
    }
    scales.push_back(largest / kMaxFloat8E4M3);
    for (int64_t i = begin; i < begin + per_head; ++i) {
      StoreFromFloat(DataType::kFloat8E4M3, to.bytes.data(), i,
                     LoadAsFloat(type, from.bytes.data(), i) / scales.back());
    }
  }
  return scales;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Activations>> LoadActivations(
    const std::string& path) {
  auto file = SafetensorsFile::Open(path);
  if (!file.ok()) return file.status();
  SafetensorsTensor tensors[5];
  const char* const names[5] = {"q", "k", "v", "o", "lse"};
  for (int i = 0; i < 5; ++i) {
    auto tensor = (*file)->tensor(names[i]);
    if (!tensor.ok()) return tensor.status();
    tensors[i] = *tensor;
  }
  const auto& [q, k, v, o, lse] = tensors;

  auto result = std::make_unique<Activations>();
  HeadConfig& c = result->config;
  c.data_type = q.type == SafetensorsType::kBF16 ? DataType::kBFloat16
                                                 : DataType::kFloat32;
  c.query_head_count = static_cast<int32_t>(q.shape[1]);
  c.kv_head_count = static_cast<int32_t>(k.shape[1]);
  c.head_dim_qk = static_cast<int32_t>(q.shape[3]);
  c.head_dim_v = static_cast<int32_t>(v.shape[3]);
  c.mask = MaskKind::kCausalTopLeft;

  Sequence& s = result->sequence;
  s.query_length = q.shape[2];
  s.key_length = k.shape[2];
  if (!absl::SimpleAtod((*file)->metadata().at("scale"), &s.scale)) {
    return absl::InvalidArgumentError("scale is not a number");
  }
  const int64_t element = ElementBytes(c.data_type);
  const int64_t rows = s.query_length * c.query_head_count;
  for (const SafetensorsTensor& tensor : {q, k, v}) {
    const auto* data = reinterpret_cast<const std::byte*>(tensor.bytes.data());
    result->buffers.push_back({{data, data + tensor.bytes.size()}, false});
  }
  for (int64_t bytes : {rows * c.head_dim_v * element, rows * 4}) {
    result->buffers.push_back({std::vector<std::byte>(bytes), true});
  }
  s.query = result->buffers[0].bytes.data();
  s.key = result->buffers[1].bytes.data();
  s.value = result->buffers[2].bytes.data();
  s.output = result->buffers[3].bytes.data();
  s.log_sum_exp = reinterpret_cast<float*>(result->buffers[4].bytes.data());
  s.query_strides = {c.head_dim_qk, s.query_length * c.head_dim_qk, 1};
  s.key_strides = {c.head_dim_qk, s.key_length * c.head_dim_qk, 1};
  s.value_strides = {c.head_dim_v, s.key_length * c.head_dim_v, 1};
  s.output_strides = {c.head_dim_v, s.query_length * c.head_dim_v, 1};
  s.log_sum_exp_token_stride = 1;
  s.log_sum_exp_head_stride = s.query_length;

  // [head, token, ...] to the reference's [token, head, ...].
  const std::vector<float> output = Floats(o);
  const std::vector<float> log_sum_exp = Floats(lse);
  for (int64_t token = 0; token < s.query_length; ++token) {
    for (int64_t head = 0; head < c.query_head_count; ++head) {
      const int64_t row = head * s.query_length + token;
      result->want.log_sum_exp.push_back(log_sum_exp[row]);
      result->want.output.insert(result->want.output.end(),
                                 output.begin() + row * c.head_dim_v,
                                 output.begin() + (row + 1) * c.head_dim_v);
    }
  }
  return result;
}

std::unique_ptr<Activations> ToFloat8(const Activations& original) {
  auto result = std::make_unique<Activations>();
  result->config = original.config;
  result->sequence = original.sequence;
  result->want = original.want;
  HeadConfig& c = result->config;
  c.data_type = DataType::kFloat8E4M3;
  result->buffers.resize(original.buffers.size());
  const int64_t heads[] = {c.query_head_count, c.kv_head_count,
                           c.kv_head_count};
  for (int i = 0; i < 3; ++i) {
    result->scales[i] =
        ConvertToFloat8(original.config.data_type, original.buffers[i],
                        heads[i], result->buffers[i]);
  }
  Sequence& s = result->sequence;
  const int64_t rows = s.query_length * c.query_head_count;
  result->buffers[3] = {
      std::vector<std::byte>(rows * c.head_dim_v *
                             ElementBytes(OutputType(c.data_type))),
      true};
  result->buffers[4] = original.buffers[4];
  s.query = result->buffers[0].bytes.data();
  s.key = result->buffers[1].bytes.data();
  s.value = result->buffers[2].bytes.data();
  s.output = result->buffers[3].bytes.data();
  s.log_sum_exp = reinterpret_cast<float*>(result->buffers[4].bytes.data());
  s.query_scales = result->scales[0].data();
  s.key_scales = result->scales[1].data();
  s.value_scales = result->scales[2].data();
  return result;
}

}  // namespace attention::test
