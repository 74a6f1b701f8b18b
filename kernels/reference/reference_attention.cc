#include "kernels/reference/reference_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/float_convert.h"
#include "kernels/mask.h"

namespace attention::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// One head of a tensor as [tokens, dims], contiguous.
std::vector<double> LoadHead(DataType type, const void* tensor,
                             const TensorStrides& strides, int64_t tokens,
                             int64_t head, int64_t dims) {
  std::vector<double> values;
  values.reserve(tokens * dims);
  for (int64_t i = 0; i < tokens; ++i) {
    for (int64_t d = 0; d < dims; ++d) {
      values.push_back(LoadAsFloat(
          type, tensor,
          i * strides.token + head * strides.head + d * strides.dim));
    }
  }
  return values;
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
  const int64_t m = s.query_length;
  const int64_t n = s.key_length;
  const int64_t heads = c.query_head_count;
  SequenceResult result;
  result.output.assign(m * heads * c.head_dim_v, 0.0);
  result.log_sum_exp.assign(m * heads, -kInfinity);
  if (want_weights) result.weights.assign(heads * m * n, 0.0);

  const MaskBand band = MakeMaskBand(c.mask, s);
  std::vector<double> scores;
  for (int64_t h = 0; h < heads; ++h) {
    const int64_t kv_head = h / (c.query_head_count / c.kv_head_count);
    const auto query =
        LoadHead(c.data_type, s.query, s.query_strides, m, h, c.head_dim_qk);
    const auto key =
        LoadHead(c.data_type, s.key, s.key_strides, n, kv_head, c.head_dim_qk);
    const auto value = LoadHead(c.data_type, s.value, s.value_strides, n,
                                kv_head, c.head_dim_v);
    for (int64_t i = 0; i < m; ++i) {
      const KeyRange keys = band.VisibleKeys(i);
      scores.clear();
      for (int64_t j = keys.begin; j < keys.end; ++j) {
        double dot = 0;
        for (int64_t d = 0; d < c.head_dim_qk; ++d) {
          dot += query[i * c.head_dim_qk + d] * key[j * c.head_dim_qk + d];
        }
        scores.push_back(s.scale * dot);
      }
      const double max = RowMax(scores);
      if (max == -kInfinity) continue;  // nothing visible: output 0, LSE -inf
      double sum = 0;
      for (double& score : scores) sum += score = std::exp(score - max);
      result.log_sum_exp[i * heads + h] = max + std::log(sum);
      for (int64_t j = keys.begin; j < keys.end; ++j) {
        const double weight = scores[j - keys.begin] / sum;
        if (want_weights) result.weights[(h * m + i) * n + j] = weight;
        for (int64_t d = 0; d < c.head_dim_v; ++d) {
          result.output[(i * heads + h) * c.head_dim_v + d] +=
              weight * value[j * c.head_dim_v + d];
        }
      }
    }
  }
  return result;
}

}  // namespace attention::reference
