// The vectors that the CPU kernels compute with. As all -inl.h files here,
// compiled once per target, so there is no ordinary include guard.
#if defined(ATTENTION_KERNELS_CPU_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTENTION_KERNELS_CPU_VECTORS_INL_H_
#undef ATTENTION_KERNELS_CPU_VECTORS_INL_H_
#else
#define ATTENTION_KERNELS_CPU_VECTORS_INL_H_
#endif

#include <cstdint>
#include <limits>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attention::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

inline constexpr int64_t kLanes = hn::MaxLanes(D());

// 32 instead of 16.
inline constexpr bool kManyRegisters =
    HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON;

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

}  // namespace HWY_NAMESPACE
}  // namespace attention::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
