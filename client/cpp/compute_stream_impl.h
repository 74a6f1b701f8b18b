// The ComputeStream of this client.
#ifndef ATTENTION_CLIENT_CPP_COMPUTE_STREAM_IMPL_H_
#define ATTENTION_CLIENT_CPP_COMPUTE_STREAM_IMPL_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "attention/v1/attention.pb.h"
#include "client/cpp/call_runner.h"
#include "client/cpp/compute_stream.h"
#include "client/cpp/region_table.h"
#include "client/cpp/request_memory.h"
#include "client/cpp/tagged_stream.h"

namespace attention {

class ComputeStreamImpl final : public ComputeStream {
 public:
  // As TaggedStream. All outlive it.
  ComputeStreamImpl(CallRunner& runner, const RegionTable& regions,
                    RequestMemory& memory, absl::Duration timeout);

  void Send(const AttentionRequest& request, Client::Done done) override;
  bool IsOpen() const override { return stream_.IsOpen(); }
  absl::Status Close() override { return stream_.Close(); }

 private:
  const RegionTable& regions_;
  RequestMemory& memory_;
  TaggedStream<v1::StreamComputeAttentionResponse> stream_;
};

}  // namespace attention

#endif  // ATTENTION_CLIENT_CPP_COMPUTE_STREAM_IMPL_H_
