// Finds the devices of this machine and sets them up with their memory.
//
//   auto devices = CreateDevices({.backend = Backend::kAuto}, &metrics);
//   if (!devices.ok()) return devices.status();
//   Scheduler::Create(options, (*devices)->devices(), ...);
#ifndef ATTENTION_SERVER_ENGINE_DEVICE_FACTORY_H_
#define ATTENTION_SERVER_ENGINE_DEVICE_FACTORY_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/engine/copy_threads.h"
#include "server/engine/cuda/cuda_runtime.h"
#include "server/engine/device.h"
#include "server/memory/memory_pool.h"
#include "server/metrics/metrics.h"

namespace attention {

enum class Backend {
  kAuto,  // every visible GPU, or the host's processors if there is none
  kCuda,  // every visible GPU
  kCpu,
};

// "auto", "cuda" or "cpu"; otherwise INVALID_ARGUMENT.
absl::StatusOr<Backend> ParseBackend(absl::string_view name);

struct DeviceOptions {
  static constexpr int kAutomatic = -1;

  Backend backend = Backend::kAuto;
  // Threads that compute on the CPU; 0: as many as the process may run on.
  int cpu_threads = 0;
  // Threads beside those of the slots that gather payloads for GPUs, shared by
  // all of them; kAutomatic: a quarter of the processors, at most 4.
  int copy_threads = kAutomatic;
  // Whether GPUs load the kernels of common head configurations before they are
  // handed out.
  bool warm_up = true;
  // Bytes of host memory for staging and results; 0: half of the machine's.
  size_t host_memory_budget_bytes = 0;
  // Bytes of memory per GPU; 0: 80 % of what it has.
  size_t device_memory_budget_bytes = 0;
  // Called once per device that fails for good, on a thread of that device.
  // health() of it is not OK any more. May be empty.
  std::function<void(const absl::Status& error)> on_failure;
};

// Devices and the memory pools that they use, which are exported to metrics for
// as long as this object lives. It must outlive all results.
class DeviceSet {
 public:
  explicit DeviceSet(Metrics* metrics) : metrics_(*metrics) {}
  ~DeviceSet();
  DeviceSet(const DeviceSet&) = delete;
  DeviceSet& operator=(const DeviceSet&) = delete;

  // At least one.
  std::vector<Device*> devices() const;
  // "cuda" or "cpu".
  const std::string& backend() const {
    return devices_.front()->description().backend;
  }

  // Null unless the devices are GPUs, each at the place of its CUDA number.
  CudaRuntime* cuda() const { return cuda_; }

  // For those who build a set. `device_name` is the label in metrics.
  MemoryPool* AddPool(MemoryPool::Options options,
                      std::unique_ptr<Allocator> allocator,
                      absl::string_view device_name);
  CopyThreads* AddCopyThreads(int count);
  void SetCuda(CudaRuntime* cuda) { cuda_ = cuda; }
  void AddDevice(std::unique_ptr<Device> device);

 private:
  Metrics& metrics_;
  CudaRuntime* cuda_ = nullptr;
  std::vector<std::unique_ptr<MemoryPool>> pools_;
  std::unique_ptr<CopyThreads> copy_threads_;
  std::vector<std::unique_ptr<Device>> devices_;  // destroyed before the rest
};

// One device per visible GPU, or one for the host's processors.
// FAILED_PRECONDITION when CUDA is asked for and there is no GPU, no driver or
// no CUDA in this build; INVALID_ARGUMENT for options out of range. `metrics`
// must outlive the result.
absl::StatusOr<std::unique_ptr<DeviceSet>> CreateDevices(
    const DeviceOptions& options, Metrics* metrics);

// As CreateDevices, with the given CUDA runtime (or the reason why there is
// none).
absl::StatusOr<std::unique_ptr<DeviceSet>> CreateDevices(
    const DeviceOptions& options, absl::StatusOr<CudaRuntime*> runtime,
    Metrics* metrics);

}  // namespace attention

#endif  // ATTENTION_SERVER_ENGINE_DEVICE_FACTORY_H_
