// The inputs of one streamed request, as far as they have arrived.
#ifndef ATTENTION_SERVER_UPLOADS_UPLOAD_H_
#define ATTENTION_SERVER_UPLOADS_UPLOAD_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "server/engine/device.h"
#include "server/engine/input_upload.h"
#include "server/uploads/received_ranges.h"

namespace attention {

// Most ranges of one tensor that are told apart.
inline constexpr size_t kMaxReceivedRanges = 4096;

// The name of a tensor in messages: "query", "key" or "value".
absl::string_view ToString(InputTensor tensor);

// Thread-safe. Streams take turns on it: each passes the number that it got,
// and only that of the last one counts.
class Upload {
 public:
  using StreamNumber = uint64_t;
  using State = std::array<ReceivedRanges, kInputTensorCount>;

  // The device outlives the upload.
  Upload(Device* device, const InputSizes& sizes,
         std::unique_ptr<InputUpload> inputs)
      : device_(*device), sizes_(sizes), inputs_(std::move(inputs)) {}

  Device& device() const { return device_; }
  const InputSizes& sizes() const { return sizes_; }

  // From now on this stream's number counts. Waits for a Write under way.
  void SetStream(StreamNumber stream) ABSL_LOCKS_EXCLUDED(mutex_);

  // Takes those bytes of the chunk that have not arrived before. Errors:
  //   ABORTED           (UPLOAD_TAKEN_OVER) another stream's number counts
  //   INVALID_ARGUMENT  the chunk is not inside the tensor, or what has arrived
  //                     would be in too many pieces
  //   otherwise those of the device
  absl::Status Write(StreamNumber stream, InputTensor tensor,
                     int64_t byte_offset,
                     absl::Span<const absl::string_view> fragments)
      ABSL_LOCKS_EXCLUDED(mutex_);

  State state() const ABSL_LOCKS_EXCLUDED(mutex_);
  size_t received_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);
  bool complete() const { return received_bytes() == sizes_.total(); }

  // When complete: makes the inputs those of `work`, which `self` is kept alive
  // by.
  static absl::Status Provide(const std::shared_ptr<Upload>& self,
                              AttentionWork& work);

 private:

  Device& device_;
  const InputSizes sizes_;
  mutable absl::Mutex mutex_;
  const std::unique_ptr<InputUpload> inputs_ ABSL_PT_GUARDED_BY(mutex_);
  StreamNumber stream_ ABSL_GUARDED_BY(mutex_) = 0;
  State state_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attention

#endif  // ATTENTION_SERVER_UPLOADS_UPLOAD_H_
