#include "client/cpp/compute_stream_impl.h"

#include <cstdint>
#include <utility>

#include "client/cpp/messages.h"
#include "client/cpp/request_serializer.h"

namespace attention {

ComputeStreamImpl::ComputeStreamImpl(CallRunner& runner,
                                     const RegionTable& regions,
                                     RequestMemory& memory,
                                     absl::Duration timeout)
    : regions_(regions),
      memory_(memory),
      stream_(runner, "/attention.v1.AttentionService/StreamComputeAttention",
              timeout) {}

void ComputeStreamImpl::Send(const AttentionRequest& request,
                             Client::Done done) {
  const int64_t tag = stream_.NewTag();
  // Not under the stream's lock: it may take long.
  absl::StatusOr<grpc::ByteBuffer> message =
      SerializeRequest(request, regions_, memory_, tag);
  stream_.Send(
      tag, [&] { return std::move(message); },
      [results = RegionResults(request), done = std::move(done)](
          absl::StatusOr<v1::StreamComputeAttentionResponse> response) mutable {
        std::move(done)(
            response.ok()
                ? FromProto(std::move(*response->mutable_response()), results)
                : response.status());
      });
}

}  // namespace attention
