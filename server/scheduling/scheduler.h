// Gathers requests into batches and hands them to devices.
//
// There is one queue per head configuration. Batch while busy: an idle device
// takes work at once; while all devices are busy, work gathers; when a slot
// becomes free, the next batch takes everything of one configuration that fits
// the limits. Configurations take turns (round robin), so that none starves and
// interleaved A,B,A,B traffic still fills its batches.
//
// Latency bound. A work waits in the queue at most
//
//   max_queue_delay + (C + ceil(A / max_batch)) * B
//
// where C is the number of other configurations with work queued, A what lies
// ahead of it in its own queue, and B the longest batch divided by the number
// of slots. On an idle server the wait is 0 unless max_queue_delay is set.
//
// Deadlines and cancellation are honoured in the queue: expired or cancelled
// work is answered at once, also while every device is busy, and never runs.
//
// Knobs: raise max_batch_* for throughput until latency suffers; set
// max_queue_delay above 0 only for small requests that arrive just too slowly
// to meet; bound queues by what callers are willing to wait for.
#ifndef ATTENTION_SERVER_SCHEDULING_SCHEDULER_H_
#define ATTENTION_SERVER_SCHEDULING_SCHEDULER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/engine/attention_work.h"
#include "server/engine/device.h"
#include "server/metrics/metrics.h"
#include "server/scheduling/clock.h"

namespace attention {

// Names a queued work for cancellation; never reused.
using WorkId = uint64_t;

class Scheduler {
 public:
  struct Options {
    // Most requests in one batch, at least 1.
    int max_batch_requests = 256;
    // Most tensor bytes, in and out, in one batch. A larger request runs alone.
    size_t max_batch_bytes = size_t{1} << 30;
    // Most query tokens in one batch. A larger request runs alone.
    int64_t max_batch_tokens = 1 << 20;
    // How long an idle device waits for a batch to fill; 0: not at all.
    absl::Duration max_queue_delay = absl::ZeroDuration();
    // Bounds on what waits in all queues together. An empty queue takes any
    // request, however large.
    int max_queued_requests = 4096;
    size_t max_queued_bytes = size_t{8} << 30;
    // A request of more tensor bytes, in and out, than this is refused at once;
    // it could never get memory.
    size_t max_request_bytes = size_t{16} << 30;
  };

  // InvalidArgument when an option is out of its range or `devices` is empty.
  // Devices, metrics and clock must outlive the scheduler.
  static absl::StatusOr<std::unique_ptr<Scheduler>> Create(
      Options options, std::vector<Device*> devices, Metrics* metrics,
      Clock* clock);

  virtual ~Scheduler() = default;  // as Drain with no time

  // Takes ownership iff OK; then `work->done` is called exactly once, perhaps
  // before Enqueue returns. Otherwise `work` is untouched and `done` is not
  // called:
  //   RESOURCE_EXHAUSTED  a queue bound is reached (worth a retry, see
  //                       RetryDelay), or larger than max_request_bytes (not)
  //   DEADLINE_EXCEEDED   the deadline has passed already
  //   UNAVAILABLE         draining, or every device has failed
  // The scheduler's own errors, here and in `done`, carry a reason
  // (server/engine/error_reason.h). Sets arrival_time.
  virtual absl::StatusOr<WorkId> Enqueue(std::unique_ptr<AttentionWork>& work) = 0;

  // Takes the work out of its queue and calls `done` with CANCELLED. Does
  // nothing when it has left the queue. Never blocks on a device.
  virtual void Cancel(WorkId id) = 0;

  // Refuses new work, runs what is queued and waits, up to `deadline` by the
  // clock, until nothing is queued or in flight. Answers what is then still
  // queued with UNAVAILABLE. Returns whether everything was finished.
  virtual bool Drain(absl::Time deadline) = 0;

  // How long a refused caller should wait: the present estimate of the time to
  // work off half the queue, in [10 ms, 5 s].
  virtual absl::Duration RetryDelay() const = 0;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_SCHEDULING_SCHEDULER_H_
