// The DecodeStream of this client.
#ifndef ATTENTION_CLIENT_CPP_DECODE_STREAM_H_
#define ATTENTION_CLIENT_CPP_DECODE_STREAM_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "attention/v1/attention.pb.h"
#include "client/cpp/session_caller.h"
#include "client/cpp/sessions.h"
#include "client/cpp/tagged_stream.h"

namespace attention {

class DecodeStreamImpl final : public DecodeStream {
 public:
  // As TaggedStream.
  DecodeStreamImpl(const SessionCaller& caller, absl::Duration timeout)
      : caller_(caller),
        stream_(*caller.runner, SessionCaller::Method("StreamDecode"),
                timeout) {}

  void Send(const DecodeRequest& request, Done done) override;
  absl::Status Close() override { return stream_.Close(); }

 private:
  const SessionCaller caller_;
  TaggedStream<v1::StreamDecodeResponse> stream_;
};

}  // namespace attention

#endif  // ATTENTION_CLIENT_CPP_DECODE_STREAM_H_
