// Memory of a device for the inputs of a work that arrive in pieces.
//
// A work normally comes with its payloads, which the device copies when it runs.
// The inputs of an upload are written to the device's memory as they arrive, so
// that nothing is left to copy once the last byte is there, and their memory is
// reserved before the first one.
//
//   auto upload = device.ReserveInputs({.query = q, .key = k, .value = v});
//   if (!upload.ok()) return upload.status();
//   (*upload)->Write(InputTensor::kKey, offset, fragments);  // and so on
//   if (auto s = (*upload)->Provide(*work); !s.ok()) return s;
//   work->payload_owner = *upload;
#ifndef ATTENTION_SERVER_ENGINE_INPUT_UPLOAD_H_
#define ATTENTION_SERVER_ENGINE_INPUT_UPLOAD_H_

#include <array>
#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/engine/attention_work.h"
#include "server/memory/memory_pool.h"

namespace attention {

enum class InputTensor { kQuery, kKey, kValue };
inline constexpr size_t kInputTensorCount = 3;

// In bytes.
struct InputSizes {
  size_t query = 0;
  size_t key = 0;
  size_t value = 0;

  size_t of(InputTensor tensor) const {
    return tensor == InputTensor::kQuery ? query
           : tensor == InputTensor::kKey ? key
                                         : value;
  }
  size_t total() const { return query + key + value; }
  friend bool operator==(const InputSizes&, const InputSizes&) = default;
};

// Memory of each tensor, in the order of InputTensor.
using InputBlocks = std::array<Block, kInputTensorCount>;

// RESOURCE_EXHAUSTED as MemoryPool::Allocate.
absl::StatusOr<InputBlocks> AllocateInputs(const InputSizes& sizes,
                                           MemoryPool& pool);

// Used by one thread at a time.
class InputUpload {
 public:
  virtual ~InputUpload() = default;

  // Puts the concatenation of `fragments` at `offset` of the tensor; inside it.
  // The fragments are not needed any more when this returns.
  virtual absl::Status Write(InputTensor tensor, size_t offset,
                             absl::Span<const absl::string_view> fragments) = 0;

  // Makes what has been written the payloads of `work`, for which the upload
  // must live. May be called for several works; no Write comes after it.
  virtual absl::Status Provide(AttentionWork& work) = 0;
};

// In memory of `pool`, which outlives the upload. RESOURCE_EXHAUSTED as
// MemoryPool::Allocate.
absl::StatusOr<std::unique_ptr<InputUpload>> ReserveHostInputs(
    const InputSizes& sizes, MemoryPool& pool);

}  // namespace attention

#endif  // ATTENTION_SERVER_ENGINE_INPUT_UPLOAD_H_
