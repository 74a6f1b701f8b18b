// A range of a POSIX shared memory object that belongs to a caller.
//
// The caller may shrink the object at any time; a processor that then touches a
// mapping of it is stopped by SIGBUS, and objects of shm_open cannot be sealed
// against that. So the server's processors never do: they copy with pread and
// pwrite, which fail instead.
//
// GPUs do without that copy. For them the region is mapped and pinned: what is
// pinned stays where it is for them, whatever becomes of the object, and their
// copy engines know no SIGBUS. Nothing but they ever touches the mapping. A
// machine that does not let the server pin it (a limit, a sandbox) costs speed
// alone.
#ifndef ATTENTION_SERVER_REGIONS_SYSTEM_REGION_H_
#define ATTENTION_SERVER_REGIONS_SYSTEM_REGION_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/engine/cuda/cuda_runtime.h"
#include "server/regions/region.h"

namespace attention {

// Whether the server opens objects of this name: "/attention-" and 1...200
// letters, digits, '.', '_' or '-'. Hence never a path, and never what belongs
// to other programs.
bool IsRegionObjectName(absl::string_view name);

// Keeps the object open, also when its name is gone. Thread-safe.
class SystemRegion final : public Region {
 public:
  // INVALID_ARGUMENT when the name is not of the form above, the file is no
  // shared memory object or the range is empty, negative or exceeds it;
  // NOT_FOUND, PERMISSION_DENIED when it cannot be opened for reading and
  // writing; RESOURCE_EXHAUSTED without a file descriptor. `cuda` is null
  // without GPUs; otherwise it must outlive the region.
  static absl::StatusOr<std::unique_ptr<Region>> Open(
      const std::string& object_name, int64_t byte_offset, int64_t byte_size,
      CudaRuntime* cuda);

  ~SystemRegion() override;
  SystemRegion(const SystemRegion&) = delete;
  SystemRegion& operator=(const SystemRegion&) = delete;

  std::string identity() const override;
  absl::Status CheckSize() const override;
  absl::Status Read(int64_t offset, absl::Span<char> to) const override;
  absl::Status Write(int64_t offset,
                     absl::Span<const char> from) const override;
  void MakeDirect() override;
  DirectMemory direct_memory() const override;

 private:
  SystemRegion(int fd, int64_t offset, int64_t size, CudaRuntime* cuda)
      : Region(size), fd_(fd), offset_(offset), cuda_(cuda) {}

  const int fd_;
  const int64_t offset_;  // in the object
  CudaRuntime* const cuda_;
  dev_t device_ = 0;  // with inode_: which object it is
  ino_t inode_ = 0;

  // Whole pages around the region, if pinned; for GPUs only.
  void* mapping_ = nullptr;
  size_t mapping_bytes_ = 0;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_REGIONS_SYSTEM_REGION_H_
