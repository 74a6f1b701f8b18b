// One message of a StreamDecode call, from its arrival to its answer.
#ifndef ATTENTION_SERVER_RPC_DECODE_MESSAGE_H_
#define ATTENTION_SERVER_RPC_DECODE_MESSAGE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/support/byte_buffer.h"
#include "kernels/attention_params.h"
#include "server/rpc/call_support.h"
#include "server/rpc/step_decoder.h"
#include "server/rpc/work_group.h"

namespace attention {

class DecodeMessage final : public WorkGroup::Owner,
                            public std::enable_shared_from_this<DecodeMessage> {
 public:
  class Stream {
   public:
    virtual ~Stream() = default;
    // The message has its answer. Called once, on any thread, perhaps before the
    // message's Start has returned.
    virtual void OnAnswered(const std::shared_ptr<DecodeMessage>& message) = 0;
  };

  DecodeMessage(std::shared_ptr<Stream> stream, CallEnvironment* environment);

  // Reads the message and what it asks for. An error ends the stream: it is no
  // StreamDecodeRequest. All others are the message's own.
  absl::Status Read(const std::shared_ptr<const WireMessage>& message,
                    const std::string& tenant, absl::Time deadline,
                    std::optional<int32_t> priority_of_stream);

  // Computes it, once the stream has put it in order.
  void Start();
  void Cancel() { works_.Cancel(); }

  // After Read.
  const std::vector<std::string>& sessions() const { return sessions_; }
  int32_t priority() const { return priority_; }

  // After OnAnswered, once.
  grpc::ByteBuffer TakeAnswer() { return std::move(answer_); }

  // The order of a stream's answers: guarded by the stream's lock.
  struct Order {
    int predecessors = 0;  // that have not been answered, with a common session
    std::vector<DecodeMessage*> successors;
    bool answered = false;
  };
  Order order;

 private:
  absl::Status Decode(StepsRequest request, const std::string& tenant,
                      std::optional<int32_t> priority_of_stream);
  void OnWorksDone() override;

  const std::shared_ptr<Stream> stream_;
  CallEnvironment* const environment_;
  const absl::Time start_time_;
  int64_t tag_ = 0;
  int32_t priority_ = 0;
  std::vector<std::string> sessions_;
  absl::Status status_;  // of the message as a whole
  Works to_start_;
  StepsPlan plan_;
  std::optional<HeadConfig> config_;
  WorkGroup works_;
  grpc::ByteBuffer answer_;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_DECODE_MESSAGE_H_
