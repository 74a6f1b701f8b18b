// Barriers in shared memory, tensor copies that signal them, and the rest of
// what a block whose warps have different roles needs (sm_90).
//
// PTX ISA, "mbarrier", "cp.async.bulk.tensor", "barrier" and "setmaxnreg".
#ifndef ATTENTION_KERNELS_CUDA_SM90_ASYNC_CUH_
#define ATTENTION_KERNELS_CUDA_SM90_ASYNC_CUH_

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/overlapping_launch.cuh"
#include "kernels/cuda/portable/tile_io.cuh"

namespace attention::cuda::sm90 {

using portable::SharedAddress;

// What the L2 cache should do with the data of a copy.
inline constexpr uint64_t kEvictFirst = 0x12F0000000000000u;
inline constexpr uint64_t kEvictLast = 0x14F0000000000000u;

// Copies the box of `map` that starts at the given coordinates to `shared`, a
// multiple of 1024. Coordinates outside the tensor read as zeros, which count
// as bytes all the same.
inline __device__ void CopyBox(uint32_t shared, const CUtensorMap& map,
                               const Barrier& barrier, uint64_t policy, int c0,
                               int c1, int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx"
      "::bytes.L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(
          shared),
      "l"(&map), "r"(barrier.Address()), "r"(c0), "r"(c1), "r"(c2), "l"(policy)
      : "memory");
}
inline __device__ void CopyBox(uint32_t shared, const CUtensorMap& map,
                               const Barrier& barrier, uint64_t policy, int c0,
                               int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx"
      "::bytes.L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(
          shared),
      "l"(&map), "r"(barrier.Address()), "r"(c0), "r"(c1), "r"(c2), "r"(c3),
      "l"(policy)
      : "memory");
}

// Fetches a map ahead of the copies that use it.
inline __device__ void PrefetchMap(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Before the first use by this block of a map in global memory that an earlier
// kernel wrote (PTX ISA, "fence.proxy.tensormap").
inline __device__ void AcquireMap(const CUtensorMap& map) {
  asm volatile(
      "fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(&map)
      : "memory");
}

// Named barriers: `threads` arrive or wait in all; ids 1...15.
inline __device__ void SyncNamed(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
inline __device__ void ArriveNamed(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// Moves registers between warpgroups; all warps of one must call it.
template <int kRegisters>
__device__ void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ void GiveRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// A position in a ring of kStages buffers, and the parity of its barriers'
// phase.
template <int kStages>
struct RingPosition {
  int stage = 0;
  uint32_t parity = 0;

  __device__ void Advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace attention::cuda::sm90

#endif  // ATTENTION_KERNELS_CUDA_SM90_ASYNC_CUH_
