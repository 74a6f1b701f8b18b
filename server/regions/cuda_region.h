// Memory of a GPU that another process shares by a CUDA IPC handle.
//
// It stays mapped here for as long as any region needs it, whatever its owner
// does with it in the meantime; what kernels find there then is the owner's own
// concern. CUDA's driver reads the handle, which may be any bytes.
#ifndef ATTENTION_SERVER_REGIONS_CUDA_REGION_H_
#define ATTENTION_SERVER_REGIONS_CUDA_REGION_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "server/engine/cuda/cuda_runtime.h"
#include "server/regions/region.h"

namespace attention {

// As the owner got them from CUDA: cudaIpcGetMemHandle, cudaDeviceProp::uuid.
struct CudaMemory {
  std::string handle;       // CudaRuntime::kHandleBytes
  std::string device_uuid;  // CudaRuntime::kUuidBytes

  bool operator==(const CudaMemory&) const = default;
};

// The handles that are open, each once, however many regions lie in its memory.
// Thread-safe.
class CudaHandles : public std::enable_shared_from_this<CudaHandles> {
 public:
  // CUDA's errors if the GPUs cannot be listed. The runtime must outlive all
  // regions.
  static absl::StatusOr<std::shared_ptr<CudaHandles>> Create(CudaRuntime* cuda);

  // A region of `byte_size` bytes, `byte_offset` bytes behind what the handle
  // stands for.
  //   INVALID_ARGUMENT     handle or UUID of another size, a handle that CUDA
  //                        does not know, a range that is empty, negative or
  //                        not inside the allocation
  //   FAILED_PRECONDITION  no such GPU here, or its memory cannot be mapped
  //   RESOURCE_EXHAUSTED   no room to map it
  absl::StatusOr<std::unique_ptr<Region>> OpenRegion(const CudaMemory& memory,
                                                     int64_t byte_offset,
                                                     int64_t byte_size);

 private:
  friend class CudaRegion;
  using Key = std::pair<int, std::string>;  // GPU, handle
  struct Opened {
    CudaRuntime::SharedMemory memory;
    int users = 0;
  };

  CudaHandles(CudaRuntime* cuda, std::vector<std::string> uuids)
      : cuda_(*cuda), uuids_(std::move(uuids)) {}

  absl::StatusOr<CudaRuntime::SharedMemory> Acquire(const Key& key)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Release(const Key& key) ABSL_LOCKS_EXCLUDED(mutex_);

  CudaRuntime& cuda_;
  const std::vector<std::string> uuids_;  // by number
  // Also held while handles are opened and closed, so that one is never both.
  absl::Mutex mutex_;
  std::map<Key, Opened> opened_ ABSL_GUARDED_BY(mutex_);
};

class CudaRegion final : public Region {
 public:
  ~CudaRegion() override;
  CudaRegion(const CudaRegion&) = delete;
  CudaRegion& operator=(const CudaRegion&) = delete;

  std::string identity() const override;
  absl::Status CheckSize() const override { return absl::OkStatus(); }
  // INTERNAL: processors do not read it.
  absl::Status Read(int64_t offset, absl::Span<char> to) const override;
  // For results that the kernel cannot put in their place.
  absl::Status Write(int64_t offset,
                     absl::Span<const char> from) const override;
  DirectMemory direct_memory() const override;

 private:
  friend class CudaHandles;
  CudaRegion(std::shared_ptr<CudaHandles> handles, CudaHandles::Key key,
             char* address, int64_t offset, int64_t size)
      : Region(size),
        handles_(std::move(handles)),
        key_(std::move(key)),
        address_(address),
        offset_(offset) {}

  const std::shared_ptr<CudaHandles> handles_;
  const CudaHandles::Key key_;  // one use of which it holds
  char* const address_;
  const int64_t offset_;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_REGIONS_CUDA_REGION_H_
