// The vector pieces that both CPU algorithms are made of; compiled once per
// target, so there is no ordinary include guard.
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
#if defined(ATTENTION_KERNELS_CPU_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTENTION_KERNELS_CPU_TILE_INL_H_
#undef ATTENTION_KERNELS_CPU_TILE_INL_H_
#else
#define ATTENTION_KERNELS_CPU_TILE_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/attention_params.h"
#include "kernels/float_convert.h"
#include "kernels/mask.h"

HWY_BEFORE_NAMESPACE();
namespace attention::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

inline constexpr int64_t kLanes = hn::MaxLanes(D());

// The micro-kernel keeps kMicroRows x kPanelVectors accumulators: 24 of the 32
// registers of AVX-512 and NEON, 12 of 16 elsewhere.
inline constexpr bool kManyRegisters =
    HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON;
inline constexpr int kMicroRows = kManyRegisters ? 8 : 4;
inline constexpr int kPanelVectors = 3;
inline constexpr int64_t kPanelRows = kPanelVectors * kLanes;

inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
inline constexpr double kLog2E = 1.4426950408889634;
inline constexpr double kLn2 = 0.6931471805599453;

constexpr int64_t RoundUp(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// 2^x for x <= 0 within 2 ulp. Exactly 1 at 0, exactly 0 below -126; NaN stays
// NaN. Polynomial: minimax in relative error on [-0.5, 0.5].
HWY_INLINE V Exp2(V x) {
  const D d;
  const hn::RebindToUnsigned<D> du;
  // Adding 1.5 * 2^23 rounds to an integer, left in the low mantissa bits.
  const V magic = hn::Set(d, 12582912.0f);
  const V shifted = hn::Add(x, magic);
  const V r = hn::Sub(x, hn::Sub(shifted, magic));
  V p = hn::Set(d, 1.5353361959569156e-4f);
  p = hn::MulAdd(p, r, hn::Set(d, 1.3398873852565885e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 9.61843691766262e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 5.5503323674201965e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 2.4022647738456726e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 6.931471824645996e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(du, shifted));
  const V power =
      hn::BitCast(d, hn::Add(exponent, hn::Set(du, uint32_t{127} << 23)));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -126.0f)), hn::Mul(p, power));
}

// --- Loading and storing rows of a tensor ----------------------------------

// FP8 E4M3: pages may have such elements, tensors never do.
inline constexpr auto kFloat8E4M3 = static_cast<DataType>(3);

template <DataType kType>
using Storage = std::conditional_t<
    kType == DataType::kFloat32, float,
    std::conditional_t<kType == kFloat8E4M3, uint8_t, uint16_t>>;

template <DataType kType>
HWY_INLINE float ToFloat(Storage<kType> element) {
  if constexpr (kType == DataType::kFloat32) return element;
  if constexpr (kType == DataType::kFloat16) return HalfToFloat(element);
  if constexpr (kType == DataType::kBFloat16) return BFloat16ToFloat(element);
  if constexpr (kType == kFloat8E4M3) return Float8E4M3ToFloat(element);
}

template <DataType kType>
HWY_INLINE Storage<kType> FromFloat(float value) {
  if constexpr (kType == DataType::kFloat32) return value;
  if constexpr (kType == DataType::kFloat16) return FloatToHalf(value);
  if constexpr (kType == DataType::kBFloat16) return FloatToBFloat16(value);
}

// Highway's emulation of fp16 on older targets drops infinities and NaN.
template <DataType kType>
inline constexpr bool kVectorConvert = (kType != DataType::kFloat16 &&
                                        kType != kFloat8E4M3) ||
                                       HWY_TARGET == HWY_AVX3
                                       || HWY_TARGET == HWY_AVX2
                                       || HWY_TARGET == HWY_NEON;

template <DataType kType>
HWY_INLINE V LoadVector(const Storage<kType>* from) {
  const D d;
  if constexpr (kType == DataType::kFloat32) {
    return hn::LoadU(d, from);
  } else if constexpr (kType == DataType::kFloat16) {
    const hn::Rebind<hwy::float16_t, D> dh;
    return hn::PromoteTo(
        d, hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(from)));
  } else if constexpr (kType == kFloat8E4M3) {
    // Sign, exponent and mantissa in the places of an fp16's give the value
    // times 2^-8, subnormal or not; what would be 480 is NaN.
    const hn::Rebind<int8_t, D> d8;
    const hn::Rebind<int16_t, D> d16;
    const hn::Rebind<hwy::float16_t, D> dh;
    const auto bits =
        hn::And(hn::ShiftLeft<7>(hn::PromoteTo(
                    d16, hn::LoadU(d8, reinterpret_cast<const int8_t*>(from)))),
                hn::Set(d16, static_cast<int16_t>(0xbf80)));
    const auto magnitude = hn::Set(d16, int16_t{0x3f80});
    const auto is_nan = hn::Eq(hn::And(bits, magnitude), magnitude);
    const auto half =
        hn::Or(bits, hn::IfThenElseZero(is_nan, hn::Set(d16, int16_t{0x7e00})));
    return hn::Mul(hn::PromoteTo(d, hn::BitCast(dh, half)), hn::Set(d, 256.0f));
  } else {
    const hn::Rebind<uint16_t, D> dh;
    const hn::RebindToUnsigned<D> du;
    return hn::BitCast(
        d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(dh, from))));
  }
}

template <DataType kType>
HWY_INLINE void StoreVector(V value, Storage<kType>* to) {
  const D d;
  if constexpr (kType == DataType::kFloat32) {
    hn::StoreU(value, d, to);
  } else if constexpr (kType == DataType::kFloat16) {
    const hn::Rebind<hwy::float16_t, D> dh;
    hn::StoreU(hn::DemoteTo(dh, value), dh,
               reinterpret_cast<hwy::float16_t*>(to));
  } else {  // to nearest even, NaN quiet
    const hn::Rebind<uint16_t, D> dh;
    const hn::RebindToUnsigned<D> du;
    const hn::RebindToSigned<D> di;
    const auto bits = hn::BitCast(du, value);
    const auto high = hn::ShiftRight<16>(bits);
    const auto odd = hn::And(high, hn::Set(du, 1u));
    const auto rounded =
        hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7fffu)), odd));
    const auto quiet = hn::Or(high, hn::Set(du, 0x40u));
    const auto is_nan = hn::RebindMask(du, hn::IsNaN(value));
    // Demotion saturates from signed; both halves are below 2^16.
    hn::StoreU(hn::DemoteTo(
                   dh, hn::BitCast(di, hn::IfThenElse(is_nan, quiet, rounded))),
               dh, to);
  }
}

// to[0...count) as fp32, and zeros up to `padded`. Reads nothing but `count`
// elements.
template <DataType kType>
HWY_INLINE void LoadRow(const Storage<kType>* from, int64_t stride,
                        int64_t count, int64_t padded, float* HWY_RESTRICT to) {
  int64_t i = 0;
  if (stride == 1 && kVectorConvert<kType>) {
    for (; i + kLanes <= count; i += kLanes) {
      hn::StoreU(LoadVector<kType>(from + i), D(), to + i);
    }
  }
  for (; i < count; ++i) to[i] = ToFloat<kType>(from[i * stride]);
  for (; i < padded; ++i) to[i] = 0.0f;
}

// to[i * stride] = from[i] * factor.
template <DataType kType>
HWY_INLINE void StoreRow(const float* HWY_RESTRICT from, float factor,
                         int64_t count, Storage<kType>* to, int64_t stride) {
  int64_t i = 0;
  if (stride == 1 && kVectorConvert<kType>) {
    const D d;
    for (; i + kLanes <= count; i += kLanes) {
      StoreVector<kType>(hn::Mul(hn::LoadU(d, from + i), hn::Set(d, factor)),
                         to + i);
    }
  }
  for (; i < count; ++i) to[i * stride] = FromFloat<kType>(from[i] * factor);
}

// Tokens of one head that lie `stride` elements apart.
template <DataType kType>
struct TokenRun {
  const Storage<kType>* data;
  int64_t stride;
  int64_t count;
  // The next run if it lies elsewhere, to be fetched meanwhile; or null.
  const Storage<kType>* next = nullptr;
};

// The keys or the values of a sequence that are a tensor. What lies in pages
// has the same members (kernels/cpu/paged.cc).
template <DataType kType>
struct TensorTokens {
  static constexpr DataType kStored = kType;

  // Those of [tokens.begin, tokens.end), which is not empty, that are one run
  // from the first on.
  TokenRun<kType> Run(int64_t kv_head, KeyRange tokens) const {
    return {static_cast<const Storage<kType>*>(tensor) +
                kv_head * strides.head + tokens.begin * strides.token,
            strides.token, tokens.end - tokens.begin};
  }
  int64_t dim_stride() const { return strides.dim; }
  float Scale(int64_t) const { return 1.0f; }  // of all elements of a head

  const void* tensor;
  TensorStrides strides;
  int64_t dim;  // elements of a row
};

template <DataType kType>
TensorTokens<kType> KeysOf(const HeadConfig& config, const Sequence& s) {
  return {s.key, s.key_strides, config.head_dim_qk};
}
template <DataType kType>
TensorTokens<kType> ValuesOf(const HeadConfig& config, const Sequence& s) {
  return {s.value, s.value_strides, config.head_dim_v};
}

// A tile of key or value tokens as fp32 with dim stride 1.
struct TokenTile {
  const float* data;
  int64_t stride;  // between tokens, elements
};

// Tokens [tokens.begin, tokens.end) of one head. Converts into `scratch`
// ([tokens, padded + kLanes]: an odd number of cache lines apart, so that a
// column does not fall into few cache sets) unless fp32 rows can be used where
// they lie. With `padded` > dim, zeros follow each row.
template <typename Tokens>
HWY_INLINE TokenTile LoadTile(const Tokens& source, int64_t kv_head,
                              KeyRange tokens, int64_t padded, bool in_place,
                              float* scratch) {
  constexpr DataType kStored = Tokens::kStored;
  const int64_t stride = padded + kLanes;
  for (int64_t token = tokens.begin; token < tokens.end;) {
    const TokenRun<kStored> run = source.Run(kv_head, {token, tokens.end});
    if constexpr (kStored == DataType::kFloat32) {
      if (in_place && source.dim_stride() == 1 && padded == source.dim &&
          run.count == tokens.end - tokens.begin) {
        return {run.data, run.stride};
      }
    }
    float* to = scratch + (token - tokens.begin) * stride;
    for (int64_t t = 0; t < run.count; ++t) {
      LoadRow<kStored>(run.data + t * run.stride, source.dim_stride(),
                       source.dim, padded, to + t * stride);
    }
    token += run.count;
  }
  return {scratch, stride};
}

// --- Matrix products --------------------------------------------------------

// c[m][n] = (scale ? scale[m] * c[m][n] : c[m][n]) + sum_k a[m][k] * b[k][n],
// or without the first term when kOverwrite. `a` is read element by element
// with any strides, b and c in kN vectors.
template <int kM, int kN, bool kOverwrite>
HWY_INLINE void MicroKernel(const float* HWY_RESTRICT a, int64_t a_m,
                            int64_t a_k, const float* HWY_RESTRICT b,
                            int64_t b_k, int64_t k,
                            const float* HWY_RESTRICT scale,
                            float* HWY_RESTRICT c, int64_t c_m) {
  const D d;
  V acc[kM][kN];
  for (int m = 0; m < kM; ++m) {
    for (int n = 0; n < kN; ++n) acc[m][n] = hn::Zero(d);
  }
  for (int64_t i = 0; i < k; ++i) {
    V bv[kN];
    for (int n = 0; n < kN; ++n) bv[n] = hn::LoadU(d, b + i * b_k + n * kLanes);
    for (int m = 0; m < kM; ++m) {
      const V av = hn::Set(d, a[m * a_m + i * a_k]);
      for (int n = 0; n < kN; ++n) acc[m][n] = hn::MulAdd(av, bv[n], acc[m][n]);
    }
  }
  for (int m = 0; m < kM; ++m) {
    for (int n = 0; n < kN; ++n) {
      float* to = c + m * c_m + n * kLanes;
      if constexpr (kOverwrite) {
        hn::StoreU(acc[m][n], d, to);
      } else {
        const V factor = hn::Set(d, scale != nullptr ? scale[m] : 1.0f);
        hn::StoreU(hn::MulAdd(hn::LoadU(d, to), factor, acc[m][n]), d, to);
      }
    }
  }
}

// Any number of rows of c, kN vectors of columns.
template <int kN, bool kOverwrite>
HWY_NOINLINE void MultiplyColumns(int64_t m, const float* a, int64_t a_m,
                                  int64_t a_k, const float* b, int64_t b_k,
                                  int64_t k, const float* scale, float* c,
                                  int64_t c_m) {
  int64_t i = 0;
  const auto step = [&](auto rows) HWY_ATTR {
    constexpr int kRows = decltype(rows)::value;
    MicroKernel<kRows, kN, kOverwrite>(a + i * a_m, a_m, a_k, b, b_k, k,
                                       scale != nullptr ? scale + i : nullptr,
                                       c + i * c_m, c_m);
    i += kRows;
  };
  while (i + kMicroRows <= m) step(std::integral_constant<int, kMicroRows>());
  if (kMicroRows > 4 && i + 4 <= m) step(std::integral_constant<int, 4>());
  if (i + 2 <= m) step(std::integral_constant<int, 2>());
  if (i < m) step(std::integral_constant<int, 1>());
}

// As MicroKernel for any m, and n vectors of columns.
template <bool kOverwrite>
HWY_INLINE void Multiply(int64_t m, int64_t n_vectors, const float* a,
                         int64_t a_m, int64_t a_k, const float* b, int64_t b_k,
                         int64_t k, const float* scale, float* c, int64_t c_m) {
  // 4 vectors as 2 + 2 rather than 3 + 1: a lone column is bound by loads.
  int64_t passes = (n_vectors + kPanelVectors - 1) / kPanelVectors;
  for (int64_t n = 0; n < n_vectors; --passes) {
    const int64_t width = (n_vectors - n + passes - 1) / passes;
    const float* b_n = b + n * kLanes;
    float* c_n = c + n * kLanes;
    if (width == 3) {
      MultiplyColumns<3, kOverwrite>(m, a, a_m, a_k, b_n, b_k, k, scale, c_n,
                                     c_m);
    } else if (width == 2) {
      MultiplyColumns<2, kOverwrite>(m, a, a_m, a_k, b_n, b_k, k, scale, c_n,
                                     c_m);
    } else {
      MultiplyColumns<1, kOverwrite>(m, a, a_m, a_k, b_n, b_k, k, scale, c_n,
                                     c_m);
    }
    n += width;
  }
}

// --- A panel of rows --------------------------------------------------------

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

// The query row of `row` as fp32, times `scale` and log2(e).
template <DataType kType>
HWY_INLINE void LoadQueryRow(const HeadConfig& config, const Sequence& s,
                             int64_t kv_head, int64_t row, double scale,
                             int64_t padded, float* to) {
  const int64_t group = config.query_head_count / config.kv_head_count;
  const auto* from = static_cast<const Storage<kType>*>(s.query) +
                     row / group * s.query_strides.token +
                     (kv_head * group + row % group) * s.query_strides.head;
  LoadRow<kType>(from, s.query_strides.dim, config.head_dim_qk, padded, to);
  const double factor = scale * kLog2E;
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
