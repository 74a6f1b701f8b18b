// Memory that a caller has registered, and tensors in it.
#ifndef ATTENTION_SERVER_REGIONS_REGION_H_
#define ATTENTION_SERVER_REGIONS_REGION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/engine/attention_work.h"

namespace attention {

// The memory belongs to the caller, who may change it and take it away at any
// time. Thread-safe.
class Region {
 public:
  virtual ~Region() = default;

  int64_t size_bytes() const { return size_; }
  // Equal for the same bytes of the same memory (not only of one that goes by
  // the same name).
  virtual std::string identity() const = 0;

  // FAILED_PRECONDITION when the memory has become too small for the region.
  virtual absl::Status CheckSize() const = 0;
  // The bytes from `offset` on; within the region. Also FAILED_PRECONDITION,
  // and RESOURCE_EXHAUSTED when the machine has no memory for what is written.
  virtual absl::Status Read(int64_t offset, absl::Span<char> to) const = 0;
  virtual absl::Status Write(int64_t offset,
                             absl::Span<const char> from) const = 0;

  // Makes GPUs reach the region if they can and do not yet. May take
  // milliseconds per gigabyte. Before anything else and by one thread.
  virtual void MakeDirect() {}
  // Where GPUs find the region.
  virtual DirectMemory direct_memory() const { return {}; }

 protected:
  explicit Region(int64_t size) : size_(size) {}

 private:
  const int64_t size_;
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
  DirectMemory direct_memory() const override;
  // As Region::CheckSize: GPUs keep reaching memory that the object has lost.
  absl::Status CheckDirect() const override { return region_->CheckSize(); }

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
