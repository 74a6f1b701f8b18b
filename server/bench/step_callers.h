// Callers that each keep one stream open and send the next message when they
// have the answer to the one before, as clients that decode do.
#ifndef ATTENTION_SERVER_BENCH_STEP_CALLERS_H_
#define ATTENTION_SERVER_BENCH_STEP_CALLERS_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"

namespace attention {

// Bytes of a message and of its answer.
struct StepSize {
  size_t request_bytes = 0;
  size_t answer_bytes = 0;
};

class StepCallers {
 public:
  virtual ~StepCallers() = default;

  // Every caller calls for so long, at least once. Returns the latencies.
  virtual absl::StatusOr<std::vector<absl::Duration>> CallFor(
      absl::Duration duration) = 0;

  // `count` callers that share the channels in turn. They wait for gRPC's
  // events in an event loop that polls for `poll_time`, or, with `callbacks`,
  // as gRPC's callback API does.
  static std::unique_ptr<StepCallers> Create(
      const std::vector<std::shared_ptr<grpc::Channel>>& channels, int count,
      const StepSize& size, bool callbacks, absl::Duration poll_time);
};

}  // namespace attention

#endif  // ATTENTION_SERVER_BENCH_STEP_CALLERS_H_
