#include "server/regions/system_region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/engine/error_reason.h"

namespace attention {
namespace {

constexpr size_t kMaxObjectNameBytes = 200;  // after the prefix

absl::Status Refused(absl::Status status) {
  return WithReason(std::move(status), error_reason::kInvalidRequest);
}

absl::Status OpenError(const std::string& object_name, int error) {
  const std::string message = absl::StrCat("cannot open object_name ",
                                           object_name, ": ", strerror(error));
  switch (error) {
    case ENOENT:
      return Refused(absl::NotFoundError(message));
    case ELOOP:  // a symbolic link
    case EACCES:
      return Refused(absl::PermissionDeniedError(message));
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return absl::ResourceExhaustedError(message);
    default:
      return Refused(absl::InvalidArgumentError(message));
  }
}

absl::Status Shrunk() {
  return Refused(absl::FailedPreconditionError(
      "the shared memory object has become smaller than its region"));
}

absl::Status TransferError(const char* what, int error) {
  const std::string message =
      absl::StrCat("cannot ", what, " shared memory: ", strerror(error));
  return error == ENOSPC || error == ENOMEM
             ? absl::ResourceExhaustedError(message)
             : absl::InternalError(message);
}

}  // namespace

bool IsRegionObjectName(absl::string_view name) {
  return absl::ConsumePrefix(&name, "/attention-") && !name.empty() &&
         name.size() <= kMaxObjectNameBytes &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
         });
}

absl::StatusOr<std::unique_ptr<Region>> SystemRegion::Open(
    const std::string& object_name, int64_t byte_offset, int64_t byte_size,
    CudaRuntime* cuda) {
  if (!IsRegionObjectName(object_name)) {
    return Refused(absl::InvalidArgumentError(absl::StrCat(
        "object_name must be \"/attention-\" and 1 to ", kMaxObjectNameBytes,
        " letters, digits, '.', '_' or '-'; got \"",
        absl::CHexEscape(object_name), "\"")));
  }
  if (byte_offset < 0 || byte_size <= 0) {
    return Refused(absl::InvalidArgumentError(absl::StrCat(
        "byte_offset must be at least 0 and byte_size more than 0; got ",
        byte_offset, " and ", byte_size)));
  }
  // A pipe of that name must not make the server wait.
  const int fd = shm_open(object_name.c_str(), O_RDWR | O_NONBLOCK, 0);
  if (fd < 0) return OpenError(object_name, errno);
  std::unique_ptr<SystemRegion> region(
      new SystemRegion(fd, byte_offset, byte_size, cuda));
  struct stat status;
  if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    return Refused(absl::InvalidArgumentError(absl::StrCat(
        "object_name ", object_name, " is not a shared memory object")));
  }
  region->device_ = status.st_dev;
  region->inode_ = status.st_ino;
  // Without a sum that could overflow.
  if (byte_size > status.st_size || byte_offset > status.st_size - byte_size) {
    return Refused(absl::InvalidArgumentError(absl::StrCat(
        "byte_offset + byte_size must be at most ", status.st_size,
        ", the size of the object; got ", byte_offset, " + ", byte_size)));
  }
  return region;
}

SystemRegion::~SystemRegion() {
  if (mapping_ != nullptr) {
    cuda_->UnpinMemory(mapping_);
    munmap(mapping_, mapping_bytes_);
  }
  close(fd_);
}

std::string SystemRegion::identity() const {
  return absl::StrCat("system ", device_, " ", inode_, " ", offset_, " ",
                      size_bytes());
}

void SystemRegion::MakeDirect() {
  if (cuda_ == nullptr) return;
  const int64_t page = sysconf(_SC_PAGESIZE);
  const int64_t begin = offset_ / page * page;
  const int64_t end = (offset_ + size_bytes() + page - 1) / page * page;
  void* const mapping = mmap(nullptr, end - begin, PROT_READ | PROT_WRITE,
                             MAP_SHARED, fd_, begin);
  if (mapping == MAP_FAILED) return;
  // Pinning takes hold of all pages, and fails where the object has none.
  absl::Status pinned = cuda_->SetDevice(0);
  if (pinned.ok()) pinned = cuda_->PinMemory(mapping, end - begin);
  if (!pinned.ok()) {
    munmap(mapping, end - begin);
    return;
  }
  mapping_ = mapping;
  mapping_bytes_ = end - begin;
}

DirectMemory SystemRegion::direct_memory() const {
  if (mapping_ == nullptr) return {};
  const size_t in_page = offset_ % sysconf(_SC_PAGESIZE);
  return {.kind = DirectMemory::Kind::kPinned,
          .address = static_cast<char*>(mapping_) + in_page};
}

absl::Status SystemRegion::CheckSize() const {
  struct stat status;
  if (fstat(fd_, &status) != 0) return TransferError("examine", errno);
  return offset_ + size_bytes() <= status.st_size ? absl::OkStatus() : Shrunk();
}

absl::Status SystemRegion::Read(int64_t offset, absl::Span<char> to) const {
  while (!to.empty()) {
    const ssize_t got = pread(fd_, to.data(), to.size(), offset_ + offset);
    if (got == 0) return Shrunk();
    if (got < 0) {
      if (errno == EINTR) continue;
      return TransferError("read", errno);
    }
    to.remove_prefix(got);
    offset += got;
  }
  return absl::OkStatus();
}

absl::Status SystemRegion::Write(int64_t offset,
                                 absl::Span<const char> from) const {
  // Writing past the end would make the object larger again. Where it shrinks
  // after this check that is what happens, up to what its owner registered.
  if (absl::Status status = CheckSize(); !status.ok()) return status;
  while (!from.empty()) {
    const ssize_t put = pwrite(fd_, from.data(), from.size(), offset_ + offset);
    if (put < 0) {
      if (errno == EINTR) continue;
      return TransferError("write", errno);
    }
    from.remove_prefix(put);
    offset += put;
  }
  return absl::OkStatus();
}

}  // namespace attention
