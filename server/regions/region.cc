#include "server/regions/region.h"

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

absl::StatusOr<std::unique_ptr<const Region>> Region::Open(
    const std::string& object_name, int64_t byte_offset, int64_t byte_size) {
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
  std::unique_ptr<Region> region(new Region(fd, byte_offset, byte_size));
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

Region::~Region() { close(fd_); }

bool Region::IsSameAs(const Region& other) const {
  return device_ == other.device_ && inode_ == other.inode_ &&
         offset_ == other.offset_ && size_ == other.size_;
}

absl::Status Region::CheckSize() const {
  struct stat status;
  if (fstat(fd_, &status) != 0) return TransferError("examine", errno);
  return offset_ + size_ <= status.st_size ? absl::OkStatus() : Shrunk();
}

absl::Status Region::Read(int64_t offset, absl::Span<char> to) const {
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

absl::Status Region::Write(int64_t offset, absl::Span<const char> from) const {
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

absl::StatusOr<std::shared_ptr<const RegionRange>> RegionRange::Make(
    std::shared_ptr<const Region> region, int64_t byte_offset,
    int64_t byte_size) {
  const int64_t size = region->size_bytes();
  if (byte_offset < 0 || byte_size < 0 || byte_size > size ||
      byte_offset > size - byte_size) {
    return Refused(absl::InvalidArgumentError(absl::StrCat(
        "byte_offset and byte_size must be at least 0 and together at most ",
        size, ", the size of the region; got ", byte_offset, " and ",
        byte_size)));
  }
  if (absl::Status status = region->CheckSize(); !status.ok()) return status;
  return std::shared_ptr<const RegionRange>(
      new RegionRange(std::move(region), byte_offset, byte_size));
}

}  // namespace attention
