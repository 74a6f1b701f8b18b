// What is left to send of the tensors of a streamed request.
#ifndef ATTENTION_CLIENT_CPP_UPLOAD_PLAN_H_
#define ATTENTION_CLIENT_CPP_UPLOAD_PLAN_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "absl/status/status.h"
#include "attention/v1/attention.pb.h"
#include "client/cpp/attention_client.h"

namespace attention {

// Cuts tensors into chunks, in order. Refers to the caller's memory. Not
// thread-safe.
class UploadPlan {
 public:
  struct Chunk {
    v1::Tensor tensor = v1::TENSOR_UNSPECIFIED;
    int64_t byte_offset = 0;
    const char* data = nullptr;
    size_t size = 0;
  };

  // At first everything is left.
  explicit UploadPlan(const AttentionRequest& request);

  // Only what the server does not have is left. Internal when it claims to have
  // what there is not.
  absl::Status Skip(const v1::UploadState& state);

  // The next chunk; nothing when no more is left.
  std::optional<Chunk> Next();

  // What the server had when it was last asked.
  size_t received_bytes() const { return received_bytes_; }

 private:
  struct Tensor {
    v1::Tensor name;
    const char* data;
    size_t size;
  };

  std::array<Tensor, 3> tensors_;
  std::deque<Chunk> pieces_;  // ranges of any size
  size_t received_bytes_ = 0;
};

}  // namespace attention

#endif  // ATTENTION_CLIENT_CPP_UPLOAD_PLAN_H_
