// The steps of attention on a panel of rows, which both CPU algorithms are made
// of.
//
// Rows are the (query, head) pairs that share one K/V head, numbered
// query * group_size + head_in_group. They are worked on in panels of
// kPanelRows. Scores lie transposed, scores[key][row]: keys are then read in
// place as broadcast operands (K is never transposed), the softmax runs down
// the columns without horizontal reductions, and the weights are again
// broadcast operands of the product with V.
//
// Scores are in units of log2(e), which is folded into the query together with
// the scale, so that weights are powers of two.
#if defined(ATTENTION_KERNELS_CPU_PANEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTENTION_KERNELS_CPU_PANEL_INL_H_
#undef ATTENTION_KERNELS_CPU_PANEL_INL_H_
#else
#define ATTENTION_KERNELS_CPU_PANEL_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/attention_params.h"
#include "kernels/cpu/product-inl.h"
#include "kernels/cpu/rows-inl.h"
#include "kernels/cpu/vectors-inl.h"
#include "kernels/mask.h"

HWY_BEFORE_NAMESPACE();
namespace attention::cpu {
namespace HWY_NAMESPACE {

// Consecutive rows of one K/V head, at most kPanelRows of them.
struct Panel {
  int64_t begin;
  int64_t end;
  int64_t group_size;  // query heads per K/V head

  int64_t rows() const { return end - begin; }
  int64_t vectors() const { return (rows() + kLanes - 1) / kLanes; }
  int64_t Token(int64_t row) const { return row / group_size; }
  KeyRange VisibleKeys(const MaskBand& band) const {
    return band.VisibleKeys(Token(begin), Token(end - 1));
  }
};

inline KeyRange Intersect(KeyRange x, KeyRange y) {
  return {std::max(x.begin, y.begin), std::min(x.end, y.end)};
}

// The query row of `row` as fp32, times its head's scale, `scale` and log2(e).
template <DataType kType>
HWY_INLINE void LoadQueryRow(const HeadConfig& config, const Sequence& s,
                             int64_t kv_head, int64_t row, double scale,
                             int64_t padded, float* to) {
  const int64_t group = config.query_head_count / config.kv_head_count;
  const int64_t head = kv_head * group + row % group;
  const auto* from = static_cast<const Storage<kType>*>(s.query) +
                     row / group * s.query_strides.token +
                     head * s.query_strides.head;
  LoadRow<kType>(from, s.query_strides.dim, config.head_dim_qk, padded, to);
  const double factor = HeadScale(s.query_scales, head) * scale * kLog2E;
  for (int64_t i = 0; i < config.head_dim_qk; ++i) {
    to[i] = static_cast<float>(to[i] * factor);
  }
}

// query[dim][kPanelRows], zeros in the columns after the panel's rows.
template <DataType kType>
HWY_INLINE void LoadQueryPanel(const HeadConfig& config, const Sequence& s,
                               int64_t kv_head, const Panel& panel,
                               double scale, float* query) {
  float row[kMaxHeadDim];
  const int64_t dim = config.head_dim_qk;
  std::fill_n(query, dim * kPanelRows, 0.0f);
  for (int64_t r = 0; r < panel.rows(); ++r) {
    LoadQueryRow<kType>(config, s, kv_head, panel.begin + r, scale, dim, row);
    for (int64_t i = 0; i < dim; ++i) query[i * kPanelRows + r] = row[i];
  }
}

// scores[key - keys.begin][row] = -inf where `row` does not see `key`.
HWY_INLINE void MaskScores(const MaskBand& band, const Panel& panel,
                           KeyRange keys, float* scores) {
  const int64_t width = panel.vectors() * kLanes;
  const int64_t first = panel.Token(panel.begin);
  const int64_t last = panel.Token(panel.end - 1);
  for (int64_t key = keys.begin; key < keys.end; ++key, scores += kPanelRows) {
    const int64_t token_begin = std::max(first, key - band.upper);
    const int64_t token_end = std::min(last, key - band.lower) + 1;
    int64_t begin = width;
    int64_t end = width;
    if (token_begin < token_end) {
      begin =
          std::max(token_begin * panel.group_size - panel.begin, int64_t{0});
      end = std::min(token_end * panel.group_size - panel.begin, width);
    }
    std::fill(scores, scores + begin, kMinusInfinity);
    std::fill(scores + end, scores + width, kMinusInfinity);
  }
}

// SoftmaxColumns for kN vectors of rows.
template <int kN>
HWY_INLINE void SoftmaxVectors(int64_t count, float* HWY_RESTRICT scores,
                               float* HWY_RESTRICT max, float* HWY_RESTRICT sum,
                               float* HWY_RESTRICT alpha) {
  const D d;
  const V minus_infinity = hn::Set(d, kMinusInfinity);
  V tile_max[kN];
  for (int n = 0; n < kN; ++n) tile_max[n] = minus_infinity;
  for (int64_t key = 0; key < count; ++key) {
    for (int n = 0; n < kN; ++n) {
      tile_max[n] = hn::Max(
          tile_max[n], hn::LoadU(d, scores + key * kPanelRows + n * kLanes));
    }
  }
  V shift[kN];
  V tile_sum[kN];
  for (int n = 0; n < kN; ++n) {
    const V old_max = hn::LoadU(d, max + n * kLanes);
    const V new_max = hn::Max(old_max, tile_max[n]);
    // A row that has seen no key yet: -inf - -inf would be NaN.
    shift[n] = hn::IfThenZeroElse(hn::Eq(new_max, minus_infinity), new_max);
    hn::StoreU(new_max, d, max + n * kLanes);
    hn::StoreU(Exp2(hn::Sub(old_max, shift[n])), d, alpha + n * kLanes);
    tile_sum[n] = hn::Zero(d);
  }
  for (int64_t key = 0; key < count; ++key) {
    for (int n = 0; n < kN; ++n) {
      float* score = scores + key * kPanelRows + n * kLanes;
      const V weight = Exp2(hn::Sub(hn::LoadU(d, score), shift[n]));
      hn::StoreU(weight, d, score);
      tile_sum[n] = hn::Add(tile_sum[n], weight);
    }
  }
  for (int n = 0; n < kN; ++n) {
    const V old_sum = hn::LoadU(d, sum + n * kLanes);
    hn::StoreU(
        hn::MulAdd(old_sum, hn::LoadU(d, alpha + n * kLanes), tile_sum[n]), d,
        sum + n * kLanes);
  }
}

// Replaces scores[count][rows] by weights 2^(score - max) and updates the rows'
// states max (log2 units) and sum. alpha becomes the factor for what has been
// accumulated so far.
HWY_INLINE void SoftmaxColumns(int64_t vectors, int64_t count, float* scores,
                               float* max, float* sum, float* alpha) {
  if (vectors == 3) {
    SoftmaxVectors<3>(count, scores, max, sum, alpha);
  } else if (vectors == 2) {
    SoftmaxVectors<2>(count, scores, max, sum, alpha);
  } else {
    SoftmaxVectors<1>(count, scores, max, sum, alpha);
  }
}

// output[row] = alpha[row] * output[row] + sum over the keys that `row` sees of
// weight * value. Only those keys are touched: a masked key's value may be NaN,
// which a weight of 0 would not silence. `keys.begin` is row 0 of weights
// ([key][kPanelRows]) and of `value`.
HWY_INLINE void AccumulateValues(const MaskBand& band, const Panel& panel,
                                 KeyRange keys, const float* weights,
                                 TokenTile value, int64_t value_vectors,
                                 const float* alpha, float* output,
                                 int64_t output_stride) {
  const auto add = [&](int64_t row, int64_t rows, KeyRange range,
                       const float* scale) HWY_ATTR {
    if (range.begin >= range.end) return;
    const int64_t skip = range.begin - keys.begin;
    Multiply<false>(rows, value_vectors, weights + skip * kPanelRows + row, 1,
                    kPanelRows, value.data + skip * value.stride, value.stride,
                    range.end - range.begin, scale,
                    output + row * output_stride, output_stride);
  };
  if (band.SeesAll(panel.Token(panel.begin), panel.Token(panel.end - 1),
                   keys)) {
    add(0, panel.rows(), keys, alpha);
    return;
  }
  for (int64_t row = 0; row < panel.rows(); row += kMicroRows) {
    const int64_t end = std::min(row + kMicroRows, panel.rows());
    // What all of these rows see in one product, the fringes row by row.
    const KeyRange of_first = band.VisibleKeys(panel.Token(panel.begin + row));
    const KeyRange of_last =
        band.VisibleKeys(panel.Token(panel.begin + end - 1));
    const KeyRange common = Intersect(keys, Intersect(of_first, of_last));
    const bool any_common = common.begin < common.end;
    if (any_common) add(row, end - row, common, alpha + row);
    for (int64_t r = row; r < end; ++r) {
      const KeyRange seen =
          Intersect(keys, band.VisibleKeys(panel.Token(panel.begin + r)));
      if (any_common) {
        add(r, 1, {seen.begin, common.begin}, nullptr);
        add(r, 1, {common.end, seen.end}, nullptr);
      } else {
        add(r, 1, seen, alpha + r);
      }
    }
  }
}

// Output row and log-sum-exp from the accumulated state, log2 units; values are
// what was accumulated times `value_scale`.
template <DataType kType>
HWY_INLINE void StoreResult(const HeadConfig& config, const Sequence& s,
                            int64_t kv_head, int64_t row, float max, float sum,
                            float value_scale, const float* accumulated) {
  const int64_t group = config.query_head_count / config.kv_head_count;
  const int64_t token = row / group;
  const int64_t head = kv_head * group + row % group;
  auto* to = static_cast<Storage<kType>*>(s.output) +
             token * s.output_strides.token + head * s.output_strides.head;
  if (sum == 0.0f) {  // no visible key, or only scores of -inf
    for (int64_t i = 0; i < config.head_dim_v; ++i) {
      to[i * s.output_strides.dim] = Storage<kType>{0};
    }
  } else {
    StoreRow<kType>(accumulated, value_scale / sum, config.head_dim_v, to,
                    s.output_strides.dim);
  }
  if (s.log_sum_exp != nullptr) {
    s.log_sum_exp[token * s.log_sum_exp_token_stride +
                  head * s.log_sum_exp_head_stride] =
        sum == 0.0f ? kMinusInfinity
                    : static_cast<float>(max * kLn2 +
                                         std::log(static_cast<double>(sum)));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attention::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
