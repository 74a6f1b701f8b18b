// Barriers in shared memory and bulk copies that signal them (sm_90 and later).
//
// PTX ISA, "mbarrier" and "cp.async.bulk". Every wait names the parity of the
// phase that it waits for the end of; a barrier starts in phase 0.
#ifndef ATTENTION_KERNELS_CUDA_BARRIER_CUH_
#define ATTENTION_KERNELS_CUDA_BARRIER_CUH_

#include <cstdint>

#include "kernels/cuda/portable/tile_io.cuh"

namespace attention::cuda {

class Barrier {
 public:
  __device__ void Init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(Address()),
                 "r"(arrivals)
                 : "memory");
  }
  __device__ void Arrive() {
    asm volatile(
        "{ .reg .b64 state; mbarrier.arrive.shared::cta.b64 state, "
        "[%0]; }" ::"r"(Address())
        : "memory");
  }
  // Arrives, and lets the phase end only when so many bytes have been copied.
  __device__ void ArriveAndExpect(int bytes) {
    asm volatile(
        "{ .reg .b64 state; mbarrier.arrive.expect_tx.shared::cta.b64 "
        "state, [%0], %1; }" ::"r"(Address()),
        "r"(bytes)
        : "memory");
  }
  // Arrives when this thread's asynchronous copies (cp.async) so far are done.
  __device__ void ArriveAfterCopies() {
    asm volatile(
        "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(Address())
        : "memory");
  }
  __device__ void Wait(uint32_t parity) {
    asm volatile(
        "{ .reg .pred done;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, %2;\n"
        "@!done bra again; }" ::"r"(Address()),
        "r"(parity), "r"(kSuspendNanoseconds)
        : "memory");
  }
  // A thread that waits sleeps for so long, unless the phase ends: one that
  // asks all the time takes others' places in the schedule.
  static constexpr uint32_t kSuspendNanoseconds = 10'000'000;

  __device__ uint32_t Address() const {
    return portable::SharedAddress(&word_);
  }

 private:
  uint64_t word_;
};

// How often a warp arrives that arrives as one. The racecheck tool of
// compute-sanitizer takes what an arriving thread did before for done, but not
// what the other lanes of its warp did: for it, every lane arrives.
#ifdef ATTENTION_RACECHECK
inline constexpr int kWarpArrivals = 32;
#else
inline constexpr int kWarpArrivals = 1;
#endif

// Arrives kWarpArrivals times at each when every lane of the warp has come
// here.
template <typename... Barriers>
__device__ __forceinline__ void ArriveByWarp(Barriers&... barriers) {
  __syncwarp();
  if (kWarpArrivals == 32 || threadIdx.x % 32 == 0) (barriers.Arrive(), ...);
}

// For data that is read once and should not push other data out of the L2
// cache.
inline __device__ uint64_t EvictFirstPolicy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;"
               : "=l"(policy));
  return policy;
}

// Both addresses and the size are multiples of 16.
inline __device__ void BulkCopy(uint32_t shared, const void* global, int bytes,
                                const Barrier& barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(shared),
      "l"(global), "r"(bytes), "r"(barrier.Address()), "l"(policy)
      : "memory");
}

// Orders this thread's accesses to shared memory with those that copies and
// matrix products make after the next barrier.
inline __device__ void FenceAsyncProxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Makes initialised barriers visible to bulk copies.
inline __device__ void FenceBarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

}  // namespace attention::cuda

#endif  // ATTENTION_KERNELS_CUDA_BARRIER_CUH_
