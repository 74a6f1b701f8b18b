#include "kernels/reference/reference_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/float_convert.h"
#include "kernels/mask.h"

namespace attention::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// [tokens, heads, dims], contiguous. `scales` are of the heads; null: all 1.
std::vector<double> LoadTensor(DataType type, const void* tensor,
                               const TensorStrides& strides,
                               const float* scales, int64_t tokens,
                               int64_t heads, int64_t dims) {
  std::vector<double> values;
  values.reserve(tokens * heads * dims);
  for (int64_t i = 0; i < tokens; ++i) {
    for (int64_t h = 0; h < heads; ++h) {
      const double scale = HeadScale(scales, h);
      for (int64_t d = 0; d < dims; ++d) {
        values.push_back(
            scale * LoadAsFloat(type, tensor,
                                i * strides.token + h * strides.head +
                                    d * strides.dim));
      }
    }
  }
  return values;
}

// kernels/mask.h derives bands from the same rules; here they are word by word.
bool Sees(MaskKind mask, const PagedSequence& s, int64_t query, int64_t key) {
  if (key < s.key_begin || key >= s.key_end) return false;
  const int64_t diagonal =
      query +
      (mask == MaskKind::kCausalTopLeft ? 0 : s.key_length - s.query_length);
  if (mask != MaskKind::kNone && key > diagonal) return false;
  if (s.window_right >= 0 && key - diagonal > s.window_right) return false;
  if (s.window_left < 0 || diagonal - key <= s.window_left) return true;
  return key < s.sink_tokens;
}

// The largest score; NaN if there is one.
double RowMax(const std::vector<double>& scores) {
  double max = -kInfinity;
  for (double score : scores) {
    if (std::isnan(score)) return score;
    max = std::max(max, score);
  }
  return max;
}

}  // namespace

SequenceResult ComputeAttention(const HeadConfig& c, const Sequence& s,
                                bool want_weights) {
  return ComputeAttention(c, MakeDense(c, s), want_weights);
}

SequenceResult ComputeAttention(const HeadConfig& c, const DenseSequence& s,
                                bool want_weights) {
  const int64_t m = s.query_length;
  const int64_t n = s.key_length;
  const int64_t heads = c.query_head_count;
  SequenceResult result;
  result.output.assign(m * heads * c.head_dim_v, 0.0);
  result.log_sum_exp.assign(m * heads, -kInfinity);
  if (want_weights) result.weights.assign(heads * m * n, 0.0);

  std::vector<int64_t> keys;  // that a query sees
  std::vector<double> scores;
  for (int64_t i = 0; i < m; ++i) {
    keys.clear();
    for (int64_t j = 0; j < n; ++j) {
      if (s.sees(i, j)) keys.push_back(j);
    }
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t kv_head = h / (c.query_head_count / c.kv_head_count);
      const double* query = &s.query[(i * heads + h) * c.head_dim_qk];
      scores.clear();
      for (int64_t j : keys) {
        const double* key =
            &s.key[(j * c.kv_head_count + kv_head) * c.head_dim_qk];
        double dot = 0;
        for (int64_t d = 0; d < c.head_dim_qk; ++d) dot += query[d] * key[d];
        scores.push_back(s.scale * dot);
      }
      const double max = RowMax(scores);
      if (max == -kInfinity) continue;  // nothing visible: output 0, LSE -inf
      double sum = 0;
      for (double& score : scores) sum += score = std::exp(score - max);
      result.log_sum_exp[i * heads + h] = max + std::log(sum);
      double* output = &result.output[(i * heads + h) * c.head_dim_v];
      for (size_t k = 0; k < keys.size(); ++k) {
        const int64_t j = keys[k];
        const double weight = scores[k] / sum;
        if (want_weights) result.weights[(h * m + i) * n + j] = weight;
        const double* value =
            &s.value[(j * c.kv_head_count + kv_head) * c.head_dim_v];
        for (int64_t d = 0; d < c.head_dim_v; ++d) {
          output[d] += weight * value[d];
        }
      }
    }
  }
  return result;
}

DenseSequence MakeDense(const HeadConfig& c, const Sequence& s) {
  const MaskBand band = MakeMaskBand(c.mask, s);
  return {
      .query_length = s.query_length,
      .key_length = s.key_length,
      .scale = s.scale,
      .query = LoadTensor(c.data_type, s.query, s.query_strides, s.query_scales,
                          s.query_length, c.query_head_count, c.head_dim_qk),
      .key = LoadTensor(c.data_type, s.key, s.key_strides, s.key_scales,
                        s.key_length, c.kv_head_count, c.head_dim_qk),
      .value = LoadTensor(c.data_type, s.value, s.value_strides, s.value_scales,
                          s.key_length, c.kv_head_count, c.head_dim_v),
      .sees = [band](int64_t query, int64_t key) {
        const KeyRange keys = band.VisibleKeys(query);
        return keys.begin <= key && key < keys.end;
      }};
}

DenseSequence MakeDense(const PagedConfig& config, const PagedSequence& s,
                        std::vector<double> key, std::vector<double> value) {
  const HeadConfig& c = config.heads;
  return {
      .query_length = s.query_length,
      .key_length = s.key_length,
      .scale = s.scale,
      .query = LoadTensor(c.data_type, s.query, s.query_strides,
                          /*scales=*/nullptr, s.query_length,
                          c.query_head_count, c.head_dim_qk),
      .key = std::move(key),
      .value = std::move(value),
      .sees = [mask = c.mask, s](int64_t query, int64_t key) {
        return Sees(mask, s, query, key);
      }};
}

double StoredElement(const PagedConfig& config, float element, float scale) {
  if (config.kv_data_type == KvDataType::kSame) return element;
  return static_cast<double>(
             Float8E4M3ToFloat(FloatToFloat8E4M3(element / scale))) *
         scale;
}

}  // namespace attention::reference
