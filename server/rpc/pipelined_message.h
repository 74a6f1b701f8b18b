// One message of a call that pipelines them, from its arrival to its answer;
// what it asks for and what it answers is its subclass's.
#ifndef ATTENTION_SERVER_RPC_PIPELINED_MESSAGE_H_
#define ATTENTION_SERVER_RPC_PIPELINED_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "grpcpp/support/byte_buffer.h"
#include "kernels/attention_params.h"
#include "server/rpc/call_support.h"
#include "server/rpc/work_builder.h"
#include "server/rpc/work_group.h"

namespace attention {

class PipelinedMessage : public WorkGroup::Owner,
                         public std::enable_shared_from_this<PipelinedMessage> {
 public:
  class Stream {
   public:
    virtual ~Stream() = default;
    // The message has its answer. Called once, on any thread, perhaps before
    // the message's Start has returned.
    virtual void OnAnswered(
        const std::shared_ptr<PipelinedMessage>& message) = 0;
  };

  // What the messages of a stream have in common. Of its reading side.
  struct Caller {
    std::string tenant;
    absl::Time deadline;
    std::optional<int32_t> priority;  // if they must agree: the first one's
  };

  PipelinedMessage(std::shared_ptr<Stream> stream,
                   CallEnvironment* environment);

  // Reads the message and what it asks for. An error ends the stream: it is no
  // message of the method. All others are the message's own.
  absl::Status Read(const std::shared_ptr<WireMessage>& message,
                    Caller& caller);

  // Computes it, once the stream has put it in order.
  void Start();
  void Cancel() { works_.Cancel(); }
  // In place of what it asks for, before Start.
  void Refuse(const absl::Status& status) {
    to_start_.clear();
    status_ = status;
  }

  // Whether the next message may be started before this one.
  virtual bool may_be_overtaken() const { return true; }
  // The sessions whose messages are answered in the order in which they came.
  // After Read.
  virtual absl::Span<const std::string> sessions() const { return {}; }

  // What it and its answer move. After Read.
  size_t moved_bytes() const { return moved_bytes_; }

  // After OnAnswered, once.
  grpc::ByteBuffer TakeAnswer() { return std::move(answer_); }

  // The order of a stream's answers: guarded by the stream's lock.
  struct Order {
    int predecessors = 0;  // that have not been answered, with a common session
    std::vector<PipelinedMessage*> successors;
    bool answered = false;
  };
  Order order;

 protected:
  // Sets the tag and the works, whose payloads are the message's memory, or why
  // there are none. An error is Read's.
  virtual absl::Status Decode(const WireMessage& message, Caller& caller,
                              int64_t& tag, absl::StatusOr<Works>& works) = 0;
  // The answer, or the error of the message as a whole. Gives the memory of the
  // results away.
  virtual absl::StatusOr<grpc::ByteBuffer> Encode(WorkGroup::Results& results,
                                                  int64_t tag) = 0;
  virtual grpc::ByteBuffer EncodeError(
      const absl::Status& status, std::optional<absl::Duration> retry_delay,
      int64_t tag) = 0;
  // Lets go of what is the caller's, right before it learns of the answer.
  virtual void Release() {}

  CallEnvironment& environment() const { return *environment_; }

 private:
  void OnWorksDone() override;

  const std::shared_ptr<Stream> stream_;
  CallEnvironment* const environment_;
  const absl::Time start_time_;
  int64_t tag_ = 0;
  absl::Status status_;  // of the message as a whole
  Works to_start_;
  size_t moved_bytes_ = 0;
  std::optional<HeadConfig> config_;
  WorkGroup works_;
  grpc::ByteBuffer answer_;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_PIPELINED_MESSAGE_H_
