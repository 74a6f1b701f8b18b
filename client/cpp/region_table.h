// The regions of one client, by address.
#ifndef ATTENTION_CLIENT_CPP_REGION_TABLE_H_
#define ATTENTION_CLIENT_CPP_REGION_TABLE_H_

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "attention/v1/attention.pb.h"
#include "client/cpp/call_runner.h"
#include "client/cpp/cuda_memory_region.h"
#include "client/cpp/shared_memory_region.h"

namespace attention {

// 16 bytes that nobody can guess.
std::string RandomToken();

// Thread-safe.
class RegionTable {
 public:
  // What scopes the names of this client's regions on the server.
  const std::string& owner_token() const { return owner_token_; }

  void Add(const void* data, size_t size_bytes, const std::string& name,
           bool in_gpu_memory) ABSL_LOCKS_EXCLUDED(mutex_);
  void Remove(const void* data) ABSL_LOCKS_EXCLUDED(mutex_);

  // Unset unless all the bytes lie in one region.
  std::optional<v1::RegionReference> Find(const void* data,
                                          size_t size_bytes) const
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Whether the bytes begin in a region that this process cannot read.
  bool IsGpuMemory(const void* data) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Entry {
    size_t size_bytes = 0;
    std::string name;
    bool in_gpu_memory = false;
  };

  const std::string owner_token_ = RandomToken();
  mutable absl::Mutex mutex_;
  std::map<const char*, Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

// Creates, maps and registers; see Client::CreateSharedMemoryRegion. Calls take
// at most `timeout`. Table and runner outlive the region.
absl::StatusOr<std::unique_ptr<SharedMemoryRegion>> CreateRegion(
    const SharedMemoryRegion::Options& options, absl::Duration timeout,
    RegionTable* table, CallRunner* runner);

// Registers; see Client::RegisterCudaMemory. Otherwise as CreateRegion.
absl::StatusOr<std::unique_ptr<CudaMemoryRegion>> RegisterCudaRegion(
    const CudaMemoryRegion::Options& options, absl::Duration timeout,
    RegionTable* table, CallRunner* runner);

}  // namespace attention

#endif  // ATTENTION_CLIENT_CPP_REGION_TABLE_H_
