// A Device for one GPU.
#ifndef ATTENTION_SERVER_ENGINE_CUDA_CUDA_DEVICE_H_
#define ATTENTION_SERVER_ENGINE_CUDA_CUDA_DEVICE_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/engine/copy_threads.h"
#include "server/engine/cuda/cuda_runtime.h"
#include "server/engine/device.h"
#include "server/memory/memory_pool.h"
#include "server/metrics/metrics.h"

namespace attention {

struct CudaDeviceOptions {
  // CUDA's number of the GPU, counted over the visible ones; the device is
  // called "cuda:<ordinal>".
  int ordinal = 0;
  // Batches in flight, each on a stream and a thread of its own; at least 2, so
  // that the copies of one overlap the computation of another.
  int slot_count = 2;
  // Help to gather payloads; null: each slot gathers alone. Must outlive the
  // device.
  CopyThreads* copy_threads = nullptr;
  // Whether every slot computes one tiny work of each of the common head
  // configurations at creation, so that the first request does not wait for
  // kernels to be loaded.
  bool warm_up = false;
  // Called once, on a thread of the device, when the GPU has failed for good
  // (an illegal access, a lost GPU): from then on health() is not OK and every
  // batch is answered with UNAVAILABLE. May be empty. Must not destroy the
  // device.
  std::function<void(const absl::Status& error)> on_failure;
};

// `pinned_pool` holds staging and results, `device_pool` is memory of the GPU.
// INVALID_ARGUMENT for fewer than 2 slots, otherwise CUDA's errors, also those
// of the warm-up. All
// pointers must outlive the device, the pinned pool also all results.
absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(
    const CudaDeviceOptions& options, CudaRuntime* runtime,
    MemoryPool* pinned_pool, MemoryPool* device_pool, Metrics* metrics);

}  // namespace attention

#endif  // ATTENTION_SERVER_ENGINE_CUDA_CUDA_DEVICE_H_
