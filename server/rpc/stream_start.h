// The first message of a stream: every check on it is here.
#ifndef ATTENTION_SERVER_RPC_STREAM_START_H_
#define ATTENTION_SERVER_RPC_STREAM_START_H_

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "attention/v1/attention.pb.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/rpc/work_builder.h"
#include "server/uploads/upload.h"
#include "server/uploads/upload_registry.h"

namespace attention {

// The lease of an upload whose start names none, unless the longest one is
// shorter.
inline constexpr absl::Duration kDefaultUploadLease = absl::Seconds(30);

struct DecodedStart {
  DecodedRequest request;  // without payloads
  UploadRegistry::Description upload;
};

// Errors: those of DecodeMetadata, INVALID_ARGUMENT when the request carries
// tensors or refers to regions or a size is negative, and RESOURCE_EXHAUSTED
// (REQUEST_TOO_LARGE) beyond limits.max_stream_bytes. Lease and id are for the
// registry to check.
absl::StatusOr<DecodedStart> DecodeStart(const v1::StreamAttentionStart& start,
                                         const RequestLimits& limits,
                                         absl::Duration max_lease);

// The tensor of a chunk. INVALID_ARGUMENT unless it is an input.
absl::StatusOr<InputTensor> InputOf(v1::Tensor tensor);

// A message with the state of the upload; `lease` is 0 if it is not resumable.
grpc::ByteBuffer EncodeUploadState(const Upload& upload, absl::Duration lease);

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_STREAM_START_H_
