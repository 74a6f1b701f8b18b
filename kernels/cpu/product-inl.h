// Products of small matrices in fp32.
#if defined(ATTENTION_KERNELS_CPU_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTENTION_KERNELS_CPU_PRODUCT_INL_H_
#undef ATTENTION_KERNELS_CPU_PRODUCT_INL_H_
#else
#define ATTENTION_KERNELS_CPU_PRODUCT_INL_H_
#endif

#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attention::cpu {
namespace HWY_NAMESPACE {

// The micro-kernel keeps kMicroRows x kPanelVectors accumulators: 24 of 32
// registers, or 12 of 16.
inline constexpr int kMicroRows = kManyRegisters ? 8 : 4;
inline constexpr int kPanelVectors = 3;
inline constexpr int64_t kPanelRows = kPanelVectors * kLanes;

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

}  // namespace HWY_NAMESPACE
}  // namespace attention::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
