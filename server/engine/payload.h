// The bytes of a tensor on their way from a caller to a device.
#ifndef ATTENTION_SERVER_ENGINE_PAYLOAD_H_
#define ATTENTION_SERVER_ENGINE_PAYLOAD_H_

#include <cstddef>
#include <memory>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/engine/direct_memory.h"

namespace attention {

// The bytes of a tensor in memory that others may change or take away at any
// time: they are copied or used in place when a device needs them, and the copy
// may fail. Thread-safe.
class PayloadSource {
 public:
  virtual ~PayloadSource() = default;
  virtual size_t size_bytes() const = 0;
  // Fills `to` with the bytes from `offset` on; both within size_bytes().
  virtual absl::Status Read(size_t offset, absl::Span<char> to) const = 0;

  // Where a GPU finds the bytes, as long as this object lives. Work with a
  // tensor on a device has that one as its required_device.
  virtual DirectMemory direct_memory() const { return {}; }
  // Whether the bytes are still what direct_memory() has; asked right before
  // they are used there.
  virtual absl::Status CheckDirect() const { return absl::OkStatus(); }
};

// The bytes of one tensor as they arrived: fragments that make up the payload
// when put one after the other. Does not own them. A fragment may begin and end
// anywhere, also inside an element, so neither its address nor its size need be
// a multiple of the element's.
struct Payload {
  absl::InlinedVector<absl::string_view, 1> fragments;
  // If set, the bytes come from here, and there are no fragments.
  std::shared_ptr<const PayloadSource> source;

  size_t size_bytes() const {
    if (source != nullptr) return source->size_bytes();
    size_t size = 0;
    for (absl::string_view fragment : fragments) size += fragment.size();
    return size;
  }
  DirectMemory direct_memory() const {
    return source != nullptr ? source->direct_memory() : DirectMemory();
  }
};

}  // namespace attention

#endif  // ATTENTION_SERVER_ENGINE_PAYLOAD_H_
