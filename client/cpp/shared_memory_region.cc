#include "client/cpp/shared_memory_region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <limits>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/cpp/messages.h"
#include "client/cpp/region_table.h"

namespace attention {
namespace {

constexpr char kRegisterMethod[] =
    "/attention.v1.AttentionService/RegisterSharedMemoryRegion";
constexpr char kUnregisterMethod[] =
    "/attention.v1.AttentionService/UnregisterSharedMemoryRegion";
// A server that is gone must not hold up a destructor.
constexpr absl::Duration kUnregisterTimeout = absl::Seconds(5);

absl::Status SystemError(absl::string_view what, int error) {
  return absl::Status(
      error == ENOSPC || error == ENOMEM || error == EMFILE
          ? absl::StatusCode::kResourceExhausted
          : absl::StatusCode::kInternal,
      absl::StrCat("cannot ", what, " shared memory: ", strerror(error)));
}

google::protobuf::Duration ToProto(absl::Duration duration) {
  google::protobuf::Duration proto;
  proto.set_seconds(absl::IDivDuration(duration, absl::Seconds(1), &duration));
  proto.set_nanos(static_cast<int32_t>(duration / absl::Nanoseconds(1)));
  return proto;
}

class RegionImpl : public SharedMemoryRegion {
 public:
  RegionImpl(const Options& options, absl::Duration timeout, RegionTable* table,
             CallRunner* runner)
      : options_(options), timeout_(timeout), table_(table), runner_(runner) {}

  ~RegionImpl() override {
    if (registered_) {
      table_->Remove(data_);
      v1::UnregisterSharedMemoryRegionRequest request;
      request.set_owner_token(table_->owner_token());
      request.set_region_name(name());
      // Without it the lease ends.
      runner_->Run({kUnregisterMethod, Serialize(request), kUnregisterTimeout})
          .IgnoreError();
    }
    if (data_ != MAP_FAILED) munmap(data_, options_.size_bytes);
    if (!object_name_.empty()) shm_unlink(object_name_.c_str());
  }

  absl::Status Create() {
    const std::string object_name =
        absl::StrCat("/attention-", absl::BytesToHexString(RandomToken()));
    const int fd =
        shm_open(object_name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0) return SystemError("create", errno);
    object_name_ = object_name;
    absl::Status status = SetUp(fd);
    close(fd);
    if (!status.ok()) return status;
    if (status = Renew(); !status.ok()) return status;
    registered_ = true;
    table_->Add(data_, options_.size_bytes, name());
    return absl::OkStatus();
  }

  void* data() const override { return data_; }
  size_t size_bytes() const override { return options_.size_bytes; }

  absl::Status Renew() override {
    v1::RegisterSharedMemoryRegionRequest request;
    request.set_owner_token(table_->owner_token());
    request.set_region_name(name());
    request.set_object_name(object_name_);
    request.set_byte_size(static_cast<int64_t>(options_.size_bytes));
    *request.mutable_lease_duration() = ToProto(options_.lease);
    return runner_->Run({kRegisterMethod, Serialize(request), timeout_})
        .status();
  }

 private:
  // Of the region: the object's, without the slash.
  std::string name() const { return object_name_.substr(1); }

  absl::Status SetUp(int fd) {
    // The mode that shm_open is given is cut by the process's umask.
    if (fchmod(fd, options_.mode) != 0) return SystemError("share", errno);
    // Gets the memory now: without it, a write to the mapping would end the
    // process when there is none left.
    const int error =
        posix_fallocate(fd, 0, static_cast<off_t>(options_.size_bytes));
    if (error != 0) return SystemError("allocate", error);
    data_ = mmap(nullptr, options_.size_bytes, PROT_READ | PROT_WRITE,
                 MAP_SHARED, fd, 0);
    return data_ == MAP_FAILED ? SystemError("map", errno) : absl::OkStatus();
  }

  const Options options_;
  const absl::Duration timeout_;
  RegionTable* const table_;
  CallRunner* const runner_;
  std::string object_name_;  // empty until it exists
  void* data_ = MAP_FAILED;
  bool registered_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SharedMemoryRegion>> CreateRegion(
    const SharedMemoryRegion::Options& options, absl::Duration timeout,
    RegionTable* table, CallRunner* runner) {
  if (options.size_bytes == 0 ||
      options.size_bytes >
          static_cast<size_t>(std::numeric_limits<int64_t>::max())) {
    return absl::InvalidArgumentError(
        absl::StrCat("size_bytes must be more than 0 and below 2^63; got ",
                     options.size_bytes));
  }
  if (options.lease <= absl::ZeroDuration() || options.lease > absl::Hours(1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("lease must be more than 0 and at most 1h; got ",
                     absl::FormatDuration(options.lease)));
  }
  auto region = std::make_unique<RegionImpl>(options, timeout, table, runner);
  if (absl::Status status = region->Create(); !status.ok()) return status;
  return region;
}

}  // namespace attention
