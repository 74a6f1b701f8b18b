#include "client/cpp/shared_memory_region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/cpp/region_registration.h"
#include "client/cpp/region_table.h"

namespace attention {
namespace {

constexpr char kRegisterMethod[] =
    "/attention.v1.AttentionService/RegisterSharedMemoryRegion";

absl::Status SystemError(absl::string_view what, int error) {
  return absl::Status(
      error == ENOSPC || error == ENOMEM || error == EMFILE
          ? absl::StatusCode::kResourceExhausted
          : absl::StatusCode::kInternal,
      absl::StrCat("cannot ", what, " shared memory: ", strerror(error)));
}

class RegionImpl : public SharedMemoryRegion {
 public:
  RegionImpl(const Options& options, absl::Duration timeout, RegionTable* table,
             CallRunner* runner)
      : options_(options),
        name_(
            absl::StrCat("attention-", absl::BytesToHexString(RandomToken()))),
        registration_(std::in_place, name_, timeout, table, runner) {}

  ~RegionImpl() override {
    registration_.reset();  // first, while the memory is there
    if (data_ != MAP_FAILED) munmap(data_, options_.size_bytes);
    if (!object_name_.empty()) shm_unlink(object_name_.c_str());
  }

  absl::Status Create() {
    const std::string object_name = absl::StrCat("/", name_);
    const int fd =
        shm_open(object_name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0) return SystemError("create", errno);
    object_name_ = object_name;
    absl::Status status = SetUp(fd);
    close(fd);
    if (!status.ok()) return status;
    if (status = Renew(); !status.ok()) return status;
    registration_->Use(data_, options_.size_bytes, /*in_gpu_memory=*/false);
    return absl::OkStatus();
  }

  void* data() const override { return data_; }
  size_t size_bytes() const override { return options_.size_bytes; }

  absl::Status Renew() override {
    v1::RegisterSharedMemoryRegionRequest request;
    request.set_object_name(object_name_);
    request.set_byte_size(static_cast<int64_t>(options_.size_bytes));
    return registration_->Register(kRegisterMethod, std::move(request),
                                   options_.lease);
  }

 private:
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
  const std::string name_;   // of the region
  std::string object_name_;  // the same behind a slash; empty until it exists
  void* data_ = MAP_FAILED;
  std::optional<RegionRegistration> registration_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SharedMemoryRegion>> CreateRegion(
    const SharedMemoryRegion::Options& options, absl::Duration timeout,
    RegionTable* table, CallRunner* runner) {
  absl::Status status = CheckRegionOptions(options.size_bytes, options.lease);
  if (!status.ok()) return status;
  auto region = std::make_unique<RegionImpl>(options, timeout, table, runner);
  if (status = region->Create(); !status.ok()) return status;
  return region;
}

}  // namespace attention
