#include "server/uploads/upload.h"

#include <algorithm>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "server/engine/error_reason.h"

namespace attention {
namespace {

using Fragments = absl::InlinedVector<absl::string_view, 64>;

// The bytes from `begin` to `end` of the fragments' concatenation.
Fragments Cut(absl::Span<const absl::string_view> fragments, size_t begin,
              size_t end) {
  Fragments part;
  size_t at = 0;
  for (absl::string_view fragment : fragments) {
    const size_t from = std::max(begin, at);
    const size_t to = std::min(end, at + fragment.size());
    if (from < to) part.push_back(fragment.substr(from - at, to - from));
    at += fragment.size();
  }
  return part;
}

}  // namespace

absl::string_view ToString(InputTensor tensor) {
  return tensor == InputTensor::kQuery ? "query"
         : tensor == InputTensor::kKey ? "key"
                                       : "value";
}

void Upload::SetStream(StreamNumber stream) {
  absl::MutexLock lock(&mutex_);
  stream_ = stream;
}

absl::Status Upload::Write(StreamNumber stream, InputTensor tensor,
                           int64_t byte_offset,
                           absl::Span<const absl::string_view> fragments) {
  size_t size = 0;
  for (absl::string_view fragment : fragments) size += fragment.size();
  const size_t tensor_size = sizes_.of(tensor);
  if (byte_offset < 0 || static_cast<size_t>(byte_offset) > tensor_size ||
      size > tensor_size - static_cast<size_t>(byte_offset)) {
    return InvalidRequest(absl::StrCat(
        "a chunk of ", ToString(tensor), " must lie in its ", tensor_size,
        " bytes; got ", size, " from byte_offset ", byte_offset, " on"));
  }
  const ByteRange range{static_cast<size_t>(byte_offset),
                        static_cast<size_t>(byte_offset) + size};

  absl::MutexLock lock(&mutex_);
  if (stream != stream_) {
    return WithReason(
        absl::AbortedError("another stream has taken the upload over"),
        error_reason::kUploadTakenOver);
  }
  ReceivedRanges& received = state_[static_cast<size_t>(tensor)];
  if (received.CountWith(range) > kMaxReceivedRanges) {
    return InvalidRequest(absl::StrCat(
        "what has arrived of ", ToString(tensor), " must be in at most ",
        kMaxReceivedRanges, " pieces; fill gaps first"));
  }
  for (const ByteRange& missing : received.Missing(range)) {
    absl::Status status = inputs_->Write(
        tensor, missing.begin,
        Cut(fragments, missing.begin - range.begin, missing.end - range.begin));
    if (!status.ok()) return status;
  }
  received.Add(range);
  return absl::OkStatus();
}

Upload::State Upload::state() const {
  absl::MutexLock lock(&mutex_);
  return state_;
}

size_t Upload::received_bytes() const {
  absl::MutexLock lock(&mutex_);
  size_t bytes = 0;
  for (const ReceivedRanges& received : state_) {
    bytes += received.received_bytes();
  }
  return bytes;
}

absl::Status Upload::Provide(const std::shared_ptr<Upload>& self,
                             AttentionWork& work) {
  absl::MutexLock lock(&self->mutex_);
  absl::Status status = self->inputs_->Provide(work);
  if (status.ok()) work.payload_owner = self;
  return status;
}

}  // namespace attention
