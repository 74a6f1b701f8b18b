// Products for a few rows, as when decoding, where all time goes into reading
// keys and values: they are read once, as they are stored, and converted in
// registers. Compiled once per target, so there is no ordinary include guard.
#if defined(ATTENTION_KERNELS_CPU_FEW_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTENTION_KERNELS_CPU_FEW_ROWS_INL_H_
#undef ATTENTION_KERNELS_CPU_FEW_ROWS_INL_H_
#else
#define ATTENTION_KERNELS_CPU_FEW_ROWS_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "hwy/cache_control.h"
#include "kernels/cpu/rows-inl.h"
#include "kernels/cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attention::cpu {
namespace HWY_NAMESPACE {

// Rows whose accumulators fit the registers together.
inline constexpr int kRowGroup = kManyRegisters ? 4 : 2;

// Whether rows can be read as they are stored, in whole vectors.
template <typename Tokens>
HWY_INLINE bool ReadsInPlace(const Tokens& source) {
  return kVectorConvert<Tokens::kStored> && source.dim_stride() == 1 &&
         source.dim % kLanes == 0;
}

// Calls body(run, index of its first token) for the runs that make up `tokens`:
// those of the source, if it is read in place, or the one in `tile`, whose
// first token is `tile_begin`.
template <typename Tokens, typename Body>
HWY_INLINE void ForRuns(const Tokens& source, int64_t kv_head, KeyRange tokens,
                        TokenTile tile, int64_t tile_begin, Body body) {
  if (!ReadsInPlace(source)) {
    body(TokenRun<DataType::kFloat32>{tile.data + (tokens.begin - tile_begin) *
                                                      tile.stride,
                                      tile.stride, tokens.end - tokens.begin},
         int64_t{0});
    return;
  }
  for (int64_t token = tokens.begin; token < tokens.end;) {
    const auto run = source.Run(kv_head, {token, tokens.end});
    body(run, token - tokens.begin);
    token += run.count;
  }
}

// Fetches `count` elements, from `first` on, of row `index` of the run after
// this one: the processor cannot foresee where that is.
template <DataType kStored>
HWY_INLINE void FetchNext(const TokenRun<kStored>& run, int64_t index,
                          int64_t first, int64_t count) {
  if (run.next == nullptr) return;
  constexpr int64_t kLine = 64 / sizeof(Storage<kStored>);
  const Storage<kStored>* row = run.next + index * run.stride + first;
  for (int64_t i = 0; i < count; i += kLine) hwy::Prefetch(row + i);
}

#if HWY_TARGET == HWY_SCALAR
HWY_INLINE void SumsOfLanes(V a, V b, V c, V e, float* to) {
  for (const V& v : {a, b, c, e}) *to++ = hn::GetLane(v);
}
#else
// Adds up the parts of a vector, four lanes each.
template <class DF>
HWY_INLINE void AddParts(DF d, hn::Vec<DF> v, float* to) {
  if constexpr (hn::MaxLanes(DF()) > 4) {
    const hn::Half<DF> half;
    AddParts(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)), to);
  } else {
    hn::StoreU(v, d, to);
  }
}

// The sums of four vectors' lanes.
HWY_INLINE void SumsOfLanes(V a, V b, V c, V e, float* to) {
  const D d;
  const hn::RepartitionToWide<D> wide;
  const auto ab = hn::BitCast(wide, hn::Add(hn::InterleaveLower(d, a, b),
                                            hn::InterleaveUpper(d, a, b)));
  const auto ce = hn::BitCast(wide, hn::Add(hn::InterleaveLower(d, c, e),
                                            hn::InterleaveUpper(d, c, e)));
  AddParts(d,
           hn::Add(hn::BitCast(d, hn::InterleaveLower(wide, ab, ce)),
                   hn::BitCast(d, hn::InterleaveUpper(wide, ab, ce))),
           to);
}
#endif

// dots[row][key] for four keys and kRows rows of `query`, [row][dim]. With a
// `key_stride` of 0 they are one key, with the same roundings.
template <DataType kStored, int kRows>
HWY_INLINE void FourDots(const float* HWY_RESTRICT query, int64_t query_stride,
                         const Storage<kStored>* HWY_RESTRICT key,
                         int64_t key_stride, int64_t dim,
                         float (*HWY_RESTRICT dots)[4]) {
  const D d;
  V sum[kRows][4];
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < 4; ++j) sum[r][j] = hn::Zero(d);
  }
  for (int64_t i = 0; i < dim; i += kLanes) {
    V k[4];
    for (int j = 0; j < 4; ++j) {
      k[j] = LoadVector<kStored>(key + j * key_stride + i);
    }
    for (int r = 0; r < kRows; ++r) {
      const V q = hn::LoadU(d, query + r * query_stride + i);
      for (int j = 0; j < 4; ++j) sum[r][j] = hn::MulAdd(q, k[j], sum[r][j]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    SumsOfLanes(sum[r][0], sum[r][1], sum[r][2], sum[r][3], dots[r]);
  }
}

template <DataType kStored, int kRows>
HWY_NOINLINE void DotsOf(const float* query, int64_t query_stride,
                         const TokenRun<kStored>& keys, int64_t dim,
                         float* scores, int64_t score_stride) {
  float dots[kRows][4];
  int64_t j = 0;
  for (; j + 4 <= keys.count; j += 4) {
    for (int64_t i = j; i < j + 4; ++i) FetchNext(keys, i, 0, dim);
    FourDots<kStored, kRows>(query, query_stride, keys.data + j * keys.stride,
                             keys.stride, dim, dots);
    for (int r = 0; r < kRows; ++r) {
      std::copy_n(dots[r], 4, scores + r * score_stride + j);
    }
  }
  for (; j < keys.count; ++j) {
    FourDots<kStored, kRows>(query, query_stride, keys.data + j * keys.stride,
                             0, dim, dots);
    for (int r = 0; r < kRows; ++r) scores[r * score_stride + j] = dots[r][0];
  }
}

// Calls body(first, number of rows as a constant) for groups of rows.
template <typename Body>
HWY_INLINE void ForRowGroups(int64_t rows, Body body) {
  int64_t r = 0;
  for (; r + kRowGroup <= rows; r += kRowGroup) {
    body(r, std::integral_constant<int, kRowGroup>());
  }
  if constexpr (kRowGroup == 4) {
    if (rows - r == 3) body(r, std::integral_constant<int, 3>());
    if (rows - r == 2) body(r, std::integral_constant<int, 2>());
  }
  if (rows - r == 1) body(r, std::integral_constant<int, 1>());
}

// Scores of `rows` rows of `query` ([row][dim], whole vectors) against a run.
template <DataType kStored>
HWY_INLINE void Dots(int64_t rows, const float* query, int64_t query_stride,
                     const TokenRun<kStored>& keys, int64_t dim, float* scores,
                     int64_t score_stride) {
  ForRowGroups(rows, [&](int64_t r, auto count) HWY_ATTR {
    DotsOf<kStored, decltype(count)::value>(
        query + r * query_stride, query_stride, keys, dim,
        scores + r * score_stride, score_stride);
  });
}

// output[row] = scale[row] * output[row] + sum of weight * value, for kRows
// rows and kVectors vectors of their columns.
template <DataType kStored, int kRows, int kVectors>
HWY_INLINE void AddValuesOf(const float* HWY_RESTRICT weights,
                            int64_t weight_stride,
                            const TokenRun<kStored>& values, int64_t first,
                            const float* HWY_RESTRICT scale,
                            float* HWY_RESTRICT output, int64_t output_stride) {
  const D d;
  V sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int n = 0; n < kVectors; ++n) sum[r][n] = hn::Zero(d);
  }
  const Storage<kStored>* HWY_RESTRICT value = values.data + first;
  for (int64_t j = 0; j < values.count; ++j) {
    FetchNext(values, j, first, kVectors * kLanes);
    V weight[kRows];
    for (int r = 0; r < kRows; ++r) {
      weight[r] = hn::Set(d, weights[r * weight_stride + j]);
    }
    for (int n = 0; n < kVectors; ++n) {
      const V v = LoadVector<kStored>(value + j * values.stride + n * kLanes);
      for (int r = 0; r < kRows; ++r) {
        sum[r][n] = hn::MulAdd(weight[r], v, sum[r][n]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    const V factor = hn::Set(d, scale != nullptr ? scale[r] : 1.0f);
    for (int n = 0; n < kVectors; ++n) {
      float* to = output + r * output_stride + n * kLanes;
      hn::StoreU(hn::MulAdd(hn::LoadU(d, to), factor, sum[r][n]), d, to);
    }
  }
}

template <DataType kStored, int kRows>
HWY_NOINLINE void AddValuesOfRows(const float* weights, int64_t weight_stride,
                                  const TokenRun<kStored>& values,
                                  int64_t vectors, const float* scale,
                                  float* output, int64_t output_stride) {
  constexpr int kMost = kManyRegisters && kRows <= 2 ? 8 : 4;
  int64_t n = 0;
  const auto step = [&](auto count) HWY_ATTR {
    constexpr int kVectors = decltype(count)::value;
    AddValuesOf<kStored, kRows, kVectors>(weights, weight_stride, values,
                                          n * kLanes, scale,
                                          output + n * kLanes, output_stride);
    n += kVectors;
  };
  while (n + kMost <= vectors) step(std::integral_constant<int, kMost>());
  if (kMost > 4 && n + 4 <= vectors) step(std::integral_constant<int, 4>());
  if (n + 2 <= vectors) step(std::integral_constant<int, 2>());
  if (n < vectors) step(std::integral_constant<int, 1>());
}

// output[row] = scale[row] * output[row] + sum over the run of weight * value;
// without a scale, 1. weights: [row][weight_stride].
template <DataType kStored>
HWY_INLINE void AddValues(int64_t rows, const float* weights,
                          int64_t weight_stride,
                          const TokenRun<kStored>& values, int64_t vectors,
                          const float* scale, float* output,
                          int64_t output_stride) {
  ForRowGroups(rows, [&](int64_t r, auto count) HWY_ATTR {
    AddValuesOfRows<kStored, decltype(count)::value>(
        weights + r * weight_stride, weight_stride, values, vectors,
        scale != nullptr ? scale + r : nullptr, output + r * output_stride,
        output_stride);
  });
}

// As SoftmaxColumns for the scores of one row, [count]; room for a vector more.
HWY_INLINE void SoftmaxRow(int64_t count, float* scores, float& max, float& sum,
                           float& alpha) {
  const D d;
  for (int64_t i = count; i < RoundUp(count, kLanes); ++i)
    scores[i] = kMinusInfinity;
  V tile_max = hn::Set(d, kMinusInfinity);
  for (int64_t i = 0; i < count; i += kLanes) {
    tile_max = hn::Max(tile_max, hn::LoadU(d, scores + i));
  }
  const float new_max = std::max(max, hn::GetLane(hn::MaxOfLanes(d, tile_max)));
  const V shift = hn::Set(d, new_max == kMinusInfinity ? 0.0f : new_max);
  V tile_sum = hn::Zero(d);
  for (int64_t i = 0; i < count; i += kLanes) {
    const V weight = Exp2(hn::Sub(hn::LoadU(d, scores + i), shift));
    hn::StoreU(weight, d, scores + i);
    tile_sum = hn::Add(tile_sum, weight);
  }
  alpha = hn::GetLane(Exp2(hn::Sub(hn::Set(d, max), shift)));
  sum = sum * alpha + hn::GetLane(hn::SumOfLanes(d, tile_sum));
  max = new_max;
}

}  // namespace HWY_NAMESPACE
}  // namespace attention::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
