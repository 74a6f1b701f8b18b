#include "kernels/reference/reference_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/float_convert.h"
#include "kernels/mask.h"

namespace attention::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double Load(DataType type, const void* tensor, const TensorStrides& strides,
            int64_t token, int64_t head, int64_t dim) {
  return LoadAsFloat(type, tensor,
                     token * strides.token + head * strides.head + dim * strides.dim);
}

// exp(score - max) for one row; the max of a row with a NaN is NaN.
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
    for (int64_t i = 0; i < m; ++i) {
      const KeyRange keys = band.VisibleKeys(i);
      scores.clear();
      for (int64_t j = keys.begin; j < keys.end; ++j) {
        double dot = 0;
        for (int64_t d = 0; d < c.head_dim_qk; ++d) {
          dot += Load(c.data_type, s.query, s.query_strides, i, h, d) *
                 Load(c.data_type, s.key, s.key_strides, j, kv_head, d);
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
              weight * Load(c.data_type, s.value, s.value_strides, j, kv_head, d);
        }
      }
    }
  }
  return result;
}

}  // namespace attention::reference
