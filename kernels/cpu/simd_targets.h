// Which instruction sets the CPU kernels are compiled for. Include before any
// Highway header.
//
// On x86: AVX-512 (AVX3), AVX2, SSE4 and the plain baseline; SSSE3 would only
// cost compile time. Vectors of unknown size (SVE) cannot be kept in arrays of
// accumulators; such machines use NEON.
#ifndef ATTENTION_KERNELS_CPU_SIMD_TARGETS_H_
#define ATTENTION_KERNELS_CPU_SIMD_TARGETS_H_

#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)

#include "hwy/targets.h"

#endif  // ATTENTION_KERNELS_CPU_SIMD_TARGETS_H_
