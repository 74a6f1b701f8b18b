// What ComputeAttention does with a request, whether it is a call of its own or
// a message of a stream.
#ifndef ATTENTION_SERVER_RPC_COMPUTATION_H_
#define ATTENTION_SERVER_RPC_COMPUTATION_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/rpc/call_support.h"
#include "server/rpc/request_scanner.h"
#include "server/rpc/response_encoder.h"
#include "server/rpc/work_group.h"

namespace attention {

// Of one request.
class Computation {
 public:
  // The work, whose payloads are the message's memory.
  absl::StatusOr<Works> Decode(ScannedRequest request,
                               CallEnvironment& environment);

  // Writes results to where they belong and encodes the answer; with a tag that
  // of a stream. Gives the memory of the results away.
  absl::StatusOr<grpc::ByteBuffer> Encode(WorkGroup::Results& results,
                                          std::optional<int64_t> tag,
                                          CallEnvironment& environment);

  // Lets go of the caller's memory.
  void Release() { plan_.targets = {}; }

 private:
  ResponsePlan plan_;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_COMPUTATION_H_
