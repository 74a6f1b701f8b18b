// A Device for the host's processors.
#ifndef ATTENTION_SERVER_ENGINE_CPU_CPU_DEVICE_H_
#define ATTENTION_SERVER_ENGINE_CPU_CPU_DEVICE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/engine/device.h"
#include "server/memory/memory_pool.h"
#include "server/metrics/metrics.h"

namespace attention {

struct CpuDeviceOptions {
  // Threads that compute; 0: as many as the process may run on.
  int thread_count = 0;
  std::string name = "cpu:0";
};

// Computes payloads where they lie if they are one aligned fragment each, and
// gathers them into memory of `host_pool` otherwise; results are blocks of that
// pool. INVALID_ARGUMENT when the thread count is negative. Pool and metrics
// must outlive the device, the pool also all results.
//
// There are two slots: while one batch computes, the other gathers its inputs
// and hands out its answers. Only one computes at a time, on all threads.
absl::StatusOr<std::unique_ptr<Device>> CreateCpuDevice(
    const CpuDeviceOptions& options, MemoryPool* host_pool, Metrics* metrics);

}  // namespace attention

#endif  // ATTENTION_SERVER_ENGINE_CPU_CPU_DEVICE_H_
