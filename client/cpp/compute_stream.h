// Requests over one stream, which do not wait for each other: what a small
// request costs beside its computation is least so, above all if its tensors
// lie in a region.
//
//   std::unique_ptr<attention::ComputeStream> stream =
//       client->OpenComputeStream();
//   stream->Send(request, [](absl::StatusOr<attention::AttentionResult> result)
//   {
//     ...
//   });
//   absl::Status status = stream->Close();
#ifndef ATTENTION_CLIENT_CPP_COMPUTE_STREAM_H_
#define ATTENTION_CLIENT_CPP_COMPUTE_STREAM_H_

#include "absl/status/status.h"
#include "client/cpp/attention_client.h"

namespace attention {

// Thread-safe. Destroying it cancels what is under way and waits until each
// callback has returned; do so before the client, and not in a callback.
class ComputeStream {
 public:
  virtual ~ComputeStream() = default;

  // Each request is one message, of at most the server's --max_message_bytes;
  // a larger one ends the stream. `done` is called exactly once, on a thread of
  // the client's, or before this returns: when the stream has ended, or with
  // InvalidArgument as with Client::Compute. It may Send, but must not block.
  // Answers come in any order. The server takes
  // ServerLimits.max_pipelined_messages at a time, further ones wait in this
  // process. Tensors may go as soon as this has returned, those in regions when
  // `done` is called.
  //
  // Requests are not repeated. An error of a request leaves the others alone;
  // that of the stream comes to all that are under way, after which another
  // stream may be opened.
  virtual void Send(const AttentionRequest& request, Client::Done done) = 0;

  // False once it has been closed or has broken, at the latest when `done` gets
  // the error that ended it.
  virtual bool IsOpen() const = 0;

  // Waits for every answer, and ends the stream. OK unless it broke.
  virtual absl::Status Close() = 0;
};

}  // namespace attention

#endif  // ATTENTION_CLIENT_CPP_COMPUTE_STREAM_H_
