// A range of a POSIX shared memory object that belongs to a caller.
//
// The caller may shrink the object at any time; whoever then reads a mapping of
// it is killed by SIGBUS, and objects of shm_open cannot be sealed against
// that. So the server never maps one: it copies with pread and pwrite, which
// fail instead. That is one copy per byte, into or out of the memory that the
// device works on, which a request that came over a connection needs as well.
#ifndef ATTENTION_SERVER_REGIONS_REGION_H_
#define ATTENTION_SERVER_REGIONS_REGION_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/engine/attention_work.h"

namespace attention {

// Whether the server opens objects of this name: "/attention-" and 1...200
// letters, digits, '.', '_' or '-'. Hence never a path, and never what belongs
// to other programs.
bool IsRegionObjectName(absl::string_view name);

// Keeps the object open, also when its name is gone. Thread-safe.
class Region {
 public:
  // INVALID_ARGUMENT when the name is not of the form above, the file is no
  // shared memory object or the range is empty, negative or exceeds it;
  // NOT_FOUND, PERMISSION_DENIED when it cannot be opened for reading and
  // writing; RESOURCE_EXHAUSTED without a file descriptor.
  static absl::StatusOr<std::unique_ptr<const Region>> Open(
      const std::string& object_name, int64_t byte_offset, int64_t byte_size);

  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  int64_t size_bytes() const { return size_; }
  // The same bytes of the same object (not only of one of the same name).
  bool IsSameAs(const Region& other) const;

  // FAILED_PRECONDITION when the object has become too small for the region.
  absl::Status CheckSize() const;
  // The bytes from `offset` on; within the region. Also FAILED_PRECONDITION,
  // and RESOURCE_EXHAUSTED when the machine has no memory for what is written.
  absl::Status Read(int64_t offset, absl::Span<char> to) const;
  absl::Status Write(int64_t offset, absl::Span<const char> from) const;

 private:
  Region(int fd, int64_t offset, int64_t size)
      : fd_(fd), offset_(offset), size_(size) {}

  const int fd_;
  const int64_t offset_;  // in the object
  const int64_t size_;
  dev_t device_ = 0;  // with inode_: which object it is
  ino_t inode_ = 0;
};

// A tensor's place in a region, which it keeps.
class RegionRange final : public PayloadSource {
 public:
  // INVALID_ARGUMENT when the range is not inside the region;
  // FAILED_PRECONDITION as Region::CheckSize.
  static absl::StatusOr<std::shared_ptr<const RegionRange>> Make(
      std::shared_ptr<const Region> region, int64_t byte_offset,
      int64_t byte_size);

  size_t size_bytes() const override { return size_; }
  absl::Status Read(size_t offset, absl::Span<char> to) const override {
    return region_->Read(offset_ + static_cast<int64_t>(offset), to);
  }
  // Writes the whole range; `from` has its size.
  absl::Status Write(absl::Span<const char> from) const {
    return region_->Write(offset_, from);
  }

 private:
  RegionRange(std::shared_ptr<const Region> region, int64_t offset, size_t size)
      : region_(std::move(region)), offset_(offset), size_(size) {}

  const std::shared_ptr<const Region> region_;
  const int64_t offset_;
  const size_t size_;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_REGIONS_REGION_H_
