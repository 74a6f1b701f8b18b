#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "client/safetensors/safetensors.h"
#include "client/safetensors/types.h"
#include "nlohmann/json.hpp"

namespace attention {
namespace {

using nlohmann::json;

constexpr size_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
// Header object, tensor object, array of its shape or offsets.
constexpr int kMaxJsonDepth = 3;
constexpr size_t kMaxDimensions = 64;

template <typename... Parts>
absl::Status Broken(const Parts&... parts) {
  return absl::InvalidArgumentError(
      absl::StrCat("not a valid safetensors file: ", parts...));
}

// Names come from the file: they are escaped before they reach a terminal.
std::string Quoted(absl::string_view name) {
  return absl::StrCat("\"", absl::Utf8SafeCEscape(name.substr(0, 200)), "\"");
}

// Parses the header. The parser keeps only the last of equal keys and takes any
// depth, hence the callback.
absl::StatusOr<json> ParseHeader(absl::string_view text) {
  // To the parser a NUL is the end, whatever follows it.
  if (absl::StrContains(text, '\0')) return Broken("the header is not JSON");
  bool too_deep = false;
  std::optional<std::string> duplicate;
  absl::flat_hash_set<std::string> keys[kMaxJsonDepth + 1];
  const auto callback = [&](int depth, json::parse_event_t event,
                            json& parsed) {
    switch (event) {
      case json::parse_event_t::object_start:
      case json::parse_event_t::array_start:
        if (depth >= kMaxJsonDepth) {
          too_deep = true;
          return false;
        }
        keys[depth + 1].clear();
        return true;
      case json::parse_event_t::key:
        if (depth <= kMaxJsonDepth &&
            !keys[depth].insert(parsed.get<std::string>()).second) {
          duplicate = parsed.get<std::string>();
        }
        return true;
      default:
        return true;
    }
  };
  json header = json::parse(text.begin(), text.end(), callback,
                            /*allow_exceptions=*/false);
  if (too_deep) {
    return Broken("the header nests deeper than ", kMaxJsonDepth, " levels");
  }
  if (header.is_discarded()) return Broken("the header is not JSON");
  if (!header.is_object()) return Broken("the header is not a JSON object");
  if (duplicate.has_value()) {
    return Broken("the header names ", Quoted(*duplicate), " twice");
  }
  return header;
}

// An array of integers in [0, 2^63 - 1].
std::optional<std::vector<int64_t>> ParseIntegers(const json& value) {
  if (!value.is_array()) return std::nullopt;
  std::vector<int64_t> integers;
  for (const json& element : value) {
    if (!element.is_number_unsigned() ||
        element.get<uint64_t>() >
            static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return std::nullopt;
    }
    integers.push_back(element.get<int64_t>());
  }
  return integers;
}

struct Extent {
  int64_t begin;
  int64_t end;
  std::string name;
};

absl::StatusOr<std::pair<SafetensorsTensor, Extent>> ParseTensor(
    const std::string& name, const json& value, absl::string_view data) {
  if (!value.is_object() || !value.contains("dtype") ||
      !value.contains("shape") || !value.contains("data_offsets")) {
    return Broken("tensor ", Quoted(name),
                  " needs dtype, shape and data_offsets");
  }
  if (!value["dtype"].is_string()) {
    return Broken("dtype of tensor ", Quoted(name), " is not a string");
  }
  const std::string type_name = value["dtype"].get<std::string>();
  const auto type = SafetensorsTypeFromName(type_name);
  if (!type.has_value()) {
    return Broken("tensor ", Quoted(name), " has the unknown dtype ",
                  Quoted(type_name));
  }
  auto shape = ParseIntegers(value["shape"]);
  if (!shape.has_value() || shape->size() > kMaxDimensions) {
    return Broken("shape of tensor ", Quoted(name),
                  " must be an array of up to ", kMaxDimensions,
                  " integers of at least 0");
  }
  const auto offsets = ParseIntegers(value["data_offsets"]);
  if (!offsets.has_value() || offsets->size() != 2) {
    return Broken("data_offsets of tensor ", Quoted(name),
                  " must be two integers of at least 0");
  }
  const int64_t begin = (*offsets)[0];
  const int64_t end = (*offsets)[1];
  if (begin > end || static_cast<uint64_t>(end) > data.size()) {
    return Broken("data_offsets of tensor ", Quoted(name),
                  " must be in order and at most the data's ", data.size(),
                  " bytes; got [", begin, ", ", end, "]");
  }
  const auto bytes = TensorBytes(*type, *shape);
  if (bytes != end - begin) {
    return Broken("tensor ", Quoted(name), " of type ", ToString(*type),
                  " and shape [", absl::StrJoin(*shape, ", "),
                  "] does not have ", end - begin, " bytes");
  }
  SafetensorsTensor tensor{*type, std::move(*shape),
                           data.substr(begin, end - begin)};
  return std::make_pair(std::move(tensor), Extent{begin, end, name});
}

// Tensors must cover the data exactly, so that nothing hides between them.
absl::Status CheckCoverage(std::vector<Extent> extents, int64_t data_bytes) {
  std::sort(extents.begin(), extents.end(),
            [](const Extent& a, const Extent& b) {
              return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
            });
  int64_t covered = 0;
  for (const Extent& extent : extents) {
    if (extent.begin != covered) {
      return Broken("tensor ", Quoted(extent.name),
                    extent.begin < covered ? " overlaps another"
                                           : " leaves a hole before it");
    }
    covered = extent.end;
  }
  if (covered != data_bytes) {
    return Broken(data_bytes - covered,
                  " bytes at its end belong to no tensor");
  }
  return absl::OkStatus();
}

class InMemoryFile : public SafetensorsFile {
 public:
  explicit InMemoryFile(std::string bytes) : bytes_(std::move(bytes)) {}
  absl::Status Load() { return Parse(bytes_); }

 private:
  const std::string bytes_;
};

class MappedFile : public SafetensorsFile {
 public:
  MappedFile(void* data, size_t size) : data_(data), size_(size) {}
  ~MappedFile() override { munmap(data_, size_); }
  absl::Status Load() {
    return Parse(absl::string_view(static_cast<const char*>(data_), size_));
  }

 private:
  void* const data_;
  const size_t size_;
};

}  // namespace

absl::Status SafetensorsFile::Parse(absl::string_view file) {
  if (file.size() < kLengthBytes) {
    return Broken("it has ", file.size(), " bytes; a header length takes 8");
  }
  uint64_t header_bytes = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    header_bytes |= static_cast<uint64_t>(static_cast<uint8_t>(file[i]))
                    << (8 * i);
  }
  file.remove_prefix(kLengthBytes);
  if (header_bytes > std::min<uint64_t>(kMaxHeaderBytes, file.size())) {
    return Broken("the header's length must be at most ",
                  std::min<uint64_t>(kMaxHeaderBytes, file.size()), "; got ",
                  header_bytes);
  }
  const absl::string_view data = file.substr(header_bytes);
  absl::StatusOr<json> header = ParseHeader(file.substr(0, header_bytes));
  if (!header.ok()) return header.status();

  std::vector<Extent> extents;
  for (const auto& [name, value] : header->items()) {
    if (name == kMetadataKey) {
      if (!value.is_object()) return Broken("__metadata__ is not an object");
      for (const auto& [key, text] : value.items()) {
        if (!text.is_string()) {
          return Broken("metadata ", Quoted(key), " is not a string");
        }
        metadata_[key] = text.get<std::string>();
      }
      continue;
    }
    auto tensor = ParseTensor(name, value, data);
    if (!tensor.ok()) return tensor.status();
    tensors_[name] = std::move(tensor->first);
    extents.push_back(std::move(tensor->second));
  }
  return CheckCoverage(std::move(extents), static_cast<int64_t>(data.size()));
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::FromBytes(
    std::string bytes) {
  auto file = std::make_unique<InMemoryFile>(std::move(bytes));
  if (absl::Status status = file->Load(); !status.ok()) return status;
  return file;
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(
    const std::string& path) {
  // O_NONBLOCK: a FIFO without a writer must not hang before it is refused.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  }
  struct stat info;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(fd);
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a file"));
  }
  const auto size = static_cast<size_t>(info.st_size);
  if (size < kLengthBytes) {  // an empty file cannot be mapped
    close(fd);
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": not a valid safetensors file: it has ", size, " bytes"));
  }
  void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  const int error = errno;
  close(fd);
  if (data == MAP_FAILED) {
    return absl::ErrnoToStatus(error, absl::StrCat("cannot map ", path));
  }
  auto file = std::make_unique<MappedFile>(data, size);
  if (absl::Status status = file->Load(); !status.ok()) {
    return absl::Status(status.code(),
                        absl::StrCat(path, ": ", status.message()));
  }
  return file;
}

absl::StatusOr<SafetensorsTensor> SafetensorsFile::tensor(
    absl::string_view name) const {
  const auto it = tensors_.find(std::string(name));
  if (it != tensors_.end()) return it->second;
  return absl::NotFoundError(absl::StrCat(
      "no tensor ", Quoted(name), " among ",
      absl::StrJoin(tensors_, ", ", [](std::string* out, const auto& entry) {
        out->append(Quoted(entry.first));
      })));
}

}  // namespace attention
