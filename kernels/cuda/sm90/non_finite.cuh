// NaN and infinities in shared memory.
#ifndef ATTENTION_KERNELS_CUDA_SM90_NON_FINITE_CUH_
#define ATTENTION_KERNELS_CUDA_SM90_NON_FINITE_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/portable/element.cuh"

namespace attention::cuda::sm90 {

inline __device__ uint4 LoadShared(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}
inline __device__ uint32_t LoadSharedWord(uint32_t address) {
  uint32_t word;
  asm volatile("ld.shared.u32 %0, [%1];"
               : "=r"(word)
               : "r"(address)
               : "memory");
  return word;
}
inline __device__ void StoreSharedWord(uint32_t address, uint32_t word) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}

// 0 * a + c of the two halves of each word: NaN where a is not finite.
template <typename T>
__device__ uint32_t AddZeroTimes(uint32_t a, uint32_t c) {
  uint32_t d;
  if constexpr (std::is_same_v<T, __half>) {
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(0), "r"(c));
  } else {
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(0), "r"(c));
  }
  return d;
}

// Whether any of `bytes`, a multiple of 512, of T elements is not finite. The
// whole warp calls it and learns it.
template <typename T>
__device__ bool HasNonFinite(uint32_t address, int bytes, int lane) {
  uint4 sum = {};  // four chains of dependent instructions
#pragma unroll 4
  for (int i = lane * 16; i < bytes; i += 32 * 16) {
    const uint4 v = LoadShared(address + i);
    sum.x = AddZeroTimes<T>(v.x, sum.x);
    sum.y = AddZeroTimes<T>(v.y, sum.y);
    sum.z = AddZeroTimes<T>(v.z, sum.z);
    sum.w = AddZeroTimes<T>(v.w, sum.w);
  }
  const uint32_t all = AddZeroTimes<T>(AddZeroTimes<T>(sum.x, sum.y),
                                       AddZeroTimes<T>(sum.z, sum.w));
  return __any_sync(0xffffffffu, portable::Element<T>::NonFinite(all) != 0);
}

}  // namespace attention::cuda::sm90

#endif  // ATTENTION_KERNELS_CUDA_SM90_NON_FINITE_CUH_
