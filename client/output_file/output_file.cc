#include "client/output_file/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace attention {
namespace {

struct Destination {
  bool in_place;
  std::string path;       // without links, unless in place
  std::string temporary;  // what is written; `path` itself if in place
};

Destination DestinationOf(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return {true, path, path};
  }
  std::error_code error;
  const std::filesystem::path target = std::filesystem::canonical(path, error);
  const std::string real = error ? path : target.string();
  return {false, real, absl::StrCat(real, ".", getpid(), ".tmp")};
}

absl::Status WithPath(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat(path, ": ", status.message()));
}

absl::Status WriteAll(int fd, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return absl::ErrnoToStatus(errno, "cannot write");
    }
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::Status WriteTo(const Destination& destination,
                     absl::Span<const absl::string_view> parts) {
  const int flags = destination.in_place ? 0 : O_CREAT | O_EXCL;
  const int fd =
      open(destination.temporary.c_str(), O_WRONLY | O_CLOEXEC | flags, 0666);
  if (fd < 0) return absl::ErrnoToStatus(errno, "cannot create");
  absl::Status status;
  for (const absl::string_view part : parts) {
    if (status.ok()) status = WriteAll(fd, part);
  }
  if (close(fd) != 0 && status.ok()) {
    status = absl::ErrnoToStatus(errno, "cannot close");
  }
  return status;
}

}  // namespace

absl::Status CheckOutputFile(const std::string& path) {
  const Destination destination = DestinationOf(path);
  absl::Status status;
  if (destination.in_place) {
    // Opening a pipe would wait for its reader, or show it an end.
    if (std::filesystem::is_directory(path)) {
      status = absl::ErrnoToStatus(EISDIR, "cannot create");
    } else if (access(path.c_str(), W_OK) != 0) {
      status = absl::ErrnoToStatus(errno, "cannot create");
    }
  } else if (status = WriteTo(destination, {}); status.ok()) {
    unlink(destination.temporary.c_str());
  }
  return status.ok() ? status : WithPath(path, status);
}

absl::Status WriteOutputFile(const std::string& path,
                             absl::Span<const absl::string_view> parts) {
  const Destination destination = DestinationOf(path);
  absl::Status status = WriteTo(destination, parts);
  if (status.ok() && !destination.in_place &&
      std::rename(destination.temporary.c_str(), destination.path.c_str()) !=
          0) {
    status = absl::ErrnoToStatus(errno, "cannot rename");
  }
  if (status.ok()) return status;
  if (!destination.in_place) unlink(destination.temporary.c_str());
  return WithPath(path, status);
}

}  // namespace attention
