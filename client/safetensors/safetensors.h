// Reads and writes files in the safetensors format: named tensors with type and
// shape behind a JSON header.
//
//   auto file = attention::SafetensorsFile::Open("qkv.safetensors");
//   if (!file.ok()) return file.status();
//   absl::StatusOr<attention::SafetensorsTensor> q = (*file)->tensor("q");
//
// A file is checked as a whole when it is opened, so that hostile files end in
// an error and never in a read outside of the file. The rules are those of the
// format's description: the header is a JSON object of at most 100 MB without
// duplicate keys, sizes agree with types and shapes, and tensors cover the data
// section without holes or overlaps.
#ifndef ATTENTION_CLIENT_SAFETENSORS_SAFETENSORS_H_
#define ATTENTION_CLIENT_SAFETENSORS_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace attention {

// Element types; elements are little-endian.
enum class SafetensorsType {
  kF64,
  kF32,
  kF16,
  kBF16,
  kF8E4M3,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool,
};

// The type's name in the header, e.g. "BF16".
absl::string_view ToString(SafetensorsType type);

// Bytes of one element: 1, 2, 4 or 8.
int64_t ElementBytes(SafetensorsType type);

// A contiguous, row-major tensor in memory that someone else owns.
struct SafetensorsTensor {
  SafetensorsType type = SafetensorsType::kF32;
  std::vector<int64_t> shape;  // empty: a scalar
  absl::string_view bytes;     // not necessarily aligned to the element size
};

// Free-form facts about the whole file.
using SafetensorsMetadata = std::map<std::string, std::string>;

// An open file. Immutable and therefore thread-safe; views that it returns live
// as long as it does. The file is mapped: it must not be truncated meanwhile
// (WriteSafetensors to the same path is fine, it replaces the file).
class SafetensorsFile {
 public:
  // NotFound or another code of the operating system's error when the file
  // cannot be read, InvalidArgument when it breaks the format.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(
      const std::string& path);

  // The same for a file that was already read.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> FromBytes(
      std::string bytes);

  virtual ~SafetensorsFile() = default;
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  // NotFound, listing the names there are, when there is none of this name.
  absl::StatusOr<SafetensorsTensor> tensor(absl::string_view name) const;

  const std::map<std::string, SafetensorsTensor>& tensors() const {
    return tensors_;
  }
  const SafetensorsMetadata& metadata() const { return metadata_; }

 protected:
  SafetensorsFile() = default;
  // Fills tensors_ and metadata_ with views into `file`.
  absl::Status Parse(absl::string_view file);

 private:
  std::map<std::string, SafetensorsTensor> tensors_;
  SafetensorsMetadata metadata_;
};

// Writes a file that replaces whatever is at `path` only once it is complete.
// Data starts at a multiple of 64 bytes, wider elements come first, so every
// tensor is aligned to its element size. InvalidArgument when a tensor's bytes
// disagree with its shape, or a name is not UTF-8 or is "__metadata__".
absl::Status WriteSafetensors(
    const std::string& path,
    const std::map<std::string, SafetensorsTensor>& tensors,
    const SafetensorsMetadata& metadata = {});

}  // namespace attention

#endif  // ATTENTION_CLIENT_SAFETENSORS_SAFETENSORS_H_
