// Puts the messages of a stream's answer together.
#ifndef ATTENTION_CLIENT_CPP_STREAMED_ANSWER_H_
#define ATTENTION_CLIENT_CPP_STREAMED_ANSWER_H_

#include <cstddef>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/v1/attention.pb.h"
#include "client/cpp/attention_client.h"
#include "client/cpp/messages.h"
#include "google/protobuf/io/coded_stream.h"
#include "grpcpp/support/byte_buffer.h"

namespace attention {

// Copies tensors once, from the messages to where they belong: the caller's
// buffers, or the result. Not thread-safe.
class StreamedAnswer {
 public:
  // Where the caller wants results, if anywhere.
  struct Buffers {
    ResultBuffer output;
    ResultBuffer log_sum_exp;
    ResultBuffer weights;
  };

  StreamedAnswer(const Buffers& buffers, const RegionResults& sizes)
      : buffers_(buffers), sizes_(sizes) {}

  // Returns the state of the upload if the message has one. Internal when the
  // server's messages contradict each other.
  absl::StatusOr<std::optional<v1::UploadState>> Take(grpc::ByteBuffer message);

  // After the last message. Internal when something is missing.
  absl::StatusOr<AttentionResult> Finish() &&;

 private:
  struct Target;

  absl::StatusOr<Target> TargetOf(int tensor);
  absl::Status TakeData(int tensor, int64_t byte_offset,
                        google::protobuf::io::CodedInputStream& input,
                        int size);

  const Buffers buffers_;
  const RegionResults sizes_;
  bool has_result_ = false;
  v1::ComputeAttentionResponse response_;
  // Bytes in the caller's buffers.
  size_t output_bytes_ = 0;
  size_t log_sum_exp_bytes_ = 0;
  size_t weights_bytes_ = 0;
};

}  // namespace attention

#endif  // ATTENTION_CLIENT_CPP_STREAMED_ANSWER_H_
