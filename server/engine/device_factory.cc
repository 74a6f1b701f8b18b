#include "server/engine/device_factory.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/cpu/cpu_device.h"
#include "server/engine/cuda/cuda_allocators.h"
#include "server/engine/cuda/cuda_device.h"
#include "server/engine/host_properties.h"

namespace attention {
namespace {

// What an idle server on the CPU keeps for the next requests. Larger blocks
// come fresh from the system, at a cost that is small beside computing on them.
constexpr size_t kMaxCachedHostBytes = size_t{64} << 20;

constexpr int kMaxAutomaticCopyThreads = 4;

size_t HostBudget(const DeviceOptions& options) {
  return options.host_memory_budget_bytes > 0 ? options.host_memory_budget_bytes
                                              : HostMemoryBytes() / 2;
}

absl::StatusOr<std::unique_ptr<DeviceSet>> CreateCpuDevices(
    const DeviceOptions& options, Metrics* metrics) {
  const CpuDeviceOptions device_options = {.thread_count = options.cpu_threads};
  auto set = std::make_unique<DeviceSet>(metrics);
  MemoryPool* pool = set->AddPool({.name = "host",
                                   .budget_bytes = HostBudget(options),
                                   .max_cached_bytes = kMaxCachedHostBytes},
                                  MakeHostAllocator(), device_options.name);
  absl::StatusOr<std::unique_ptr<Device>> device =
      CreateCpuDevice(device_options, pool, metrics);
  if (!device.ok()) return device.status();
  set->AddDevice(*std::move(device));
  return set;
}

absl::StatusOr<std::unique_ptr<DeviceSet>> CreateCudaDevices(
    const DeviceOptions& options, CudaRuntime* runtime, int device_count,
    Metrics* metrics) {
  auto set = std::make_unique<DeviceSet>(metrics);
  set->SetCuda(runtime);
  MemoryPool* pinned =
      set->AddPool({.name = "pinned", .budget_bytes = HostBudget(options)},
                   std::make_unique<PinnedAllocator>(runtime), "host");
  CopyThreads* copy_threads = set->AddCopyThreads(
      options.copy_threads >= 0
          ? options.copy_threads
          : std::min(UsableProcessorCount() / 4, kMaxAutomaticCopyThreads));
  for (int ordinal = 0; ordinal < device_count; ++ordinal) {
    absl::StatusOr<CudaRuntime::Properties> properties =
        runtime->GetProperties(ordinal);
    if (!properties.ok()) return properties.status();
    const size_t budget = options.device_memory_budget_bytes > 0
                              ? options.device_memory_budget_bytes
                              : properties->memory_bytes / 5 * 4;
    MemoryPool* memory =
        set->AddPool({.name = "device", .budget_bytes = budget},
                     std::make_unique<DeviceAllocator>(runtime, ordinal),
                     absl::StrCat("cuda:", ordinal));
    absl::StatusOr<std::unique_ptr<Device>> device =
        CreateCudaDevice({.ordinal = ordinal,
                          .copy_threads = copy_threads,
                          .warm_up = options.warm_up,
                          .on_failure = options.on_failure},
                         runtime, pinned, memory, metrics);
    if (!device.ok()) return device.status();
    set->AddDevice(*std::move(device));
  }
  return set;
}

absl::StatusOr<int> CountDevices(const absl::StatusOr<CudaRuntime*>& runtime) {
  if (!runtime.ok()) return runtime.status();
  return (*runtime)->DeviceCount();
}

}  // namespace

absl::StatusOr<Backend> ParseBackend(absl::string_view name) {
  if (name == "auto") return Backend::kAuto;
  if (name == "cuda") return Backend::kCuda;
  if (name == "cpu") return Backend::kCpu;
  return absl::InvalidArgumentError(absl::StrCat(
      "backend must be one of auto, cuda, cpu; got \"", name, "\""));
}

DeviceSet::~DeviceSet() {
  devices_.clear();
  for (const std::unique_ptr<MemoryPool>& pool : pools_) {
    metrics_.RemovePool(pool.get());
  }
}

std::vector<Device*> DeviceSet::devices() const {
  std::vector<Device*> devices;
  for (const std::unique_ptr<Device>& device : devices_) {
    devices.push_back(device.get());
  }
  return devices;
}

MemoryPool* DeviceSet::AddPool(MemoryPool::Options options,
                               std::unique_ptr<Allocator> allocator,
                               absl::string_view device_name) {
  pools_.push_back(
      std::make_unique<MemoryPool>(std::move(options), std::move(allocator)));
  metrics_.AddPool(pools_.back().get(), device_name);
  return pools_.back().get();
}

CopyThreads* DeviceSet::AddCopyThreads(int count) {
  copy_threads_ = std::make_unique<CopyThreads>(count);
  return copy_threads_.get();
}

void DeviceSet::AddDevice(std::unique_ptr<Device> device) {
  devices_.push_back(std::move(device));
}

absl::StatusOr<std::unique_ptr<DeviceSet>> CreateDevices(
    const DeviceOptions& options, Metrics* metrics) {
  return CreateDevices(options, SystemCudaRuntime(), metrics);
}

absl::StatusOr<std::unique_ptr<DeviceSet>> CreateDevices(
    const DeviceOptions& options, absl::StatusOr<CudaRuntime*> runtime,
    Metrics* metrics) {
  if (options.backend == Backend::kCpu) {
    return CreateCpuDevices(options, metrics);
  }
  const absl::StatusOr<int> count = CountDevices(runtime);
  if (count.ok()) return CreateCudaDevices(options, *runtime, *count, metrics);
  if (options.backend == Backend::kAuto) {
    return CreateCpuDevices(options, metrics);
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "backend cuda needs a CUDA device: ", count.status().message()));
}

}  // namespace attention
