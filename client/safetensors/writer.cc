#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/safetensors/safetensors.h"
#include "client/safetensors/types.h"
#include "nlohmann/json.hpp"

namespace attention {
namespace {

constexpr size_t kAlignment = 64;

using NamedTensor = std::map<std::string, SafetensorsTensor>::const_pointer;

absl::Status CheckTensor(const std::string& name,
                         const SafetensorsTensor& tensor) {
  if (name == kMetadataKey) {
    return absl::InvalidArgumentError("a tensor cannot be named __metadata__");
  }
  const auto bytes = TensorBytes(tensor.type, tensor.shape);
  if (!bytes.has_value() ||
      static_cast<uint64_t>(*bytes) != tensor.bytes.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor ", name, ": ", tensor.bytes.size(),
        " bytes disagree with its shape and type ", ToString(tensor.type)));
  }
  return absl::OkStatus();
}

// Header length, header and padding.
std::string FormatHeader(const std::vector<NamedTensor>& tensors,
                         const SafetensorsMetadata& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[kMetadataKey] = metadata;
  uint64_t offset = 0;
  for (const NamedTensor tensor : tensors) {
    const uint64_t end = offset + tensor->second.bytes.size();
    header[tensor->first] = {
        {"dtype", std::string(ToString(tensor->second.type))},
        {"shape", tensor->second.shape},
        {"data_offsets", {offset, end}}};
    offset = end;
  }
  const std::string text = header.dump();
  const size_t total =
      (8 + text.size() + kAlignment - 1) / kAlignment * kAlignment;
  std::string result;
  result.reserve(total);
  for (int i = 0; i < 8; ++i) {
    result.push_back(static_cast<char>(
        (static_cast<uint64_t>(total - 8) >> (8 * i)) & 0xff));
  }
  result += text;
  result.resize(total, ' ');
  return result;
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

absl::Status WriteTo(const std::string& path, int flags,
                     const std::string& header,
                     const std::vector<NamedTensor>& tensors) {
  const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC | flags, 0666);
  if (fd < 0) return absl::ErrnoToStatus(errno, "cannot create");
  absl::Status status = WriteAll(fd, header);
  for (const NamedTensor tensor : tensors) {
    if (status.ok()) status = WriteAll(fd, tensor->second.bytes);
  }
  if (close(fd) != 0 && status.ok()) {
    status = absl::ErrnoToStatus(errno, "cannot close");
  }
  return status;
}

}  // namespace

absl::Status WriteSafetensors(
    const std::string& path,
    const std::map<std::string, SafetensorsTensor>& tensors,
    const SafetensorsMetadata& metadata) {
  std::vector<NamedTensor> order;
  for (const auto& entry : tensors) {
    if (absl::Status status = CheckTensor(entry.first, entry.second);
        !status.ok()) {
      return status;
    }
    order.push_back(&entry);
  }
  std::stable_sort(
      order.begin(), order.end(), [](NamedTensor a, NamedTensor b) {
        return ElementBytes(a->second.type) > ElementBytes(b->second.type);
      });
  std::string header;
  try {
    header = FormatHeader(order, metadata);
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a name or a metadata entry is not UTF-8: ", error.what()));
  }

  // A device or a pipe is written in place: renaming over it would replace it.
  struct stat info;
  const bool in_place =
      stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode);
  const std::string target =
      in_place ? path : absl::StrCat(path, ".", getpid(), ".tmp");
  absl::Status status =
      WriteTo(target, in_place ? 0 : O_CREAT | O_EXCL, header, order);
  if (in_place) {
    if (status.ok()) return status;
  } else if (status.ok()) {
    if (std::rename(target.c_str(), path.c_str()) == 0) return status;
    status = absl::ErrnoToStatus(errno, "cannot rename");
  }
  if (!in_place) unlink(target.c_str());
  return absl::Status(status.code(),
                      absl::StrCat(path, ": ", status.message()));
}

}  // namespace attention
