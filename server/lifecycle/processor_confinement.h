// Keeps the threads that gRPC starts together on a few processors.
#ifndef ATTENTION_SERVER_LIFECYCLE_PROCESSOR_CONFINEMENT_H_
#define ATTENTION_SERVER_LIFECYCLE_PROCESSOR_CONFINEMENT_H_

#include <sched.h>

#include <optional>

namespace attention {

// As long as it exists, the calling thread runs on `processor_count`
// neighbouring ones of the processors that it may use, and so do, for all their
// life, the threads that it starts meanwhile and those that they start. Does
// nothing when the count is 0 or not below the number of processors. To be
// destroyed by the thread that made it.
//
// gRPC's threads hand a call over to each other from event to event. On many
// processors each of them is asleep then, and its caches know nothing of the
// call, which costs a small one more than all else (server/bench/RESULTS.md).
class ProcessorConfinement {
 public:
  explicit ProcessorConfinement(int processor_count);
  ~ProcessorConfinement();

  ProcessorConfinement(const ProcessorConfinement&) = delete;
  ProcessorConfinement& operator=(const ProcessorConfinement&) = delete;

 private:
  std::optional<cpu_set_t> previous_;  // set while the thread is confined
};

}  // namespace attention

#endif  // ATTENTION_SERVER_LIFECYCLE_PROCESSOR_CONFINEMENT_H_
