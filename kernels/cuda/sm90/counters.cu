#include "kernels/cuda/sm90/counters.h"

#include <atomic>

namespace attention::cuda::sm90 {
namespace {

// More than the launches that a device holds in its queues.
constexpr unsigned kCounterCount = 1 << 14;
__device__ unsigned counters[kCounterCount];
std::atomic<unsigned> next{0};

}  // namespace

cudaError_t NextCounter(unsigned** counter) {
  // The address differs between devices, and asking for it takes a while.
  struct Known {
    int device = -1;
    unsigned* counters = nullptr;
  };
  static thread_local Known known;
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  if (known.device != device) {
    known.device = -1;
    void* address = nullptr;
    error = cudaGetSymbolAddress(&address, counters);
    if (error != cudaSuccess) return error;
    known = {device, static_cast<unsigned*>(address)};
  }
  *counter =
      known.counters + next.fetch_add(1, std::memory_order_relaxed) %
                           kCounterCount;
  return cudaSuccess;
}

}  // namespace attention::cuda::sm90
