// Gathers requests into batches and hands them to devices.
//
// Batch while busy: an idle device takes work at once; while all devices are
// busy, work gathers; when a slot becomes free, the next batch takes what fits
// the limits of one head configuration, so that interleaved A,B,A,B traffic
// still fills its batches. Of several free devices the one with the least
// predicted work takes it.
//
// Fairness. Tenants share the devices by predicted device time (deficit round
// robin), and so do the configurations of a tenant. Works of one tenant and
// configuration run by priority, then deadline, then arrival. A batch may carry
// several tenants' works; each tenant is charged its own and its part of the
// launch. However much one tenant sends, it delays another only by its turns.
//
// Latency bound. A work waits in the queue at most
//
//   max_queue_delay + B + T * (A + C * min(A, Q) + B)
//
// where T is the number of tenants with work, C of other configurations (or
// required devices) with work of its own tenant, Q the most predicted time that
// waits in one of them, A the predicted time of what comes before it in its own
// queue, and B the longest batch; divide by the number of slots that work at
// full speed and may run it. It holds as far as predictions do. On an idle
// server the wait is 0 unless max_queue_delay is set.
//
// Deadlines and cancellation are honoured in the queue: expired or cancelled
// work is answered at once, also while every device is busy, and never runs.
//
// Refusal of hopeless work. A work is refused with DEADLINE_EXCEEDED, instead
// of being left to expire, when even the lowest estimate says that it will be
// late:
//
//   earliest free slot + works ahead / devices + its own time  >  time left
//
// Ahead are only works of its tenant, configuration and required device, which
// is then the only one that counts, that surely run before or with it; every
// time is the prediction divided by a margin of at least 1.5 that grows with
// the error of the predictions; and no device is judged by fewer than 16
// batches of the class. So what is refused would have to run faster than nearly
// every batch of late; what is taken may still expire.
//
// Knobs: raise max_batch_* for throughput until latency suffers; set
// max_queue_delay above 0 only for small requests that arrive just too slowly
// to meet; bound queues by what callers are willing to wait for, best in time.
#ifndef ATTENTION_SERVER_SCHEDULING_SCHEDULER_H_
#define ATTENTION_SERVER_SCHEDULING_SCHEDULER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
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
    // Most predicted device time of one batch; 0: unlimited. A longer request
    // runs alone.
    absl::Duration max_batch_time = absl::ZeroDuration();
    // How long an idle device waits for a batch to fill; 0: not at all.
    absl::Duration max_queue_delay = absl::ZeroDuration();
    // The longest predicted device time of a batch that the thread which brings
    // it to an idle device computes itself (see Batch::is_short); 0: none.
    absl::Duration max_inline_time = absl::Milliseconds(1);
    // Whether the calling thread is one that may do so; unset: all are.
    std::function<bool()> may_run_inline;
    // Bounds on what waits in all queues together. An empty queue takes any
    // request, however large.
    int max_queued_requests = 4096;
    size_t max_queued_bytes = size_t{8} << 30;
    // Most predicted time that the devices may need for what waits, together; 0:
    // unlimited. An empty queue takes any request.
    absl::Duration max_queued_time = absl::ZeroDuration();
    // Tenants told apart at the same time; any further ones share a turn.
    int max_tenants = 64;
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

  // Runs works of these configurations on every device, one after the other, and
  // learns from their times, so that predictions are about right from the first
  // request on. Blocks. Before the first Enqueue. Returns the first error; what
  // did run is learned all the same.
  virtual absl::Status Calibrate(absl::Span<const HeadConfig> configs) = 0;

  // Takes ownership iff OK; then `work->done` is called exactly once, perhaps
  // before Enqueue returns. Otherwise `work` is untouched and `done` is not
  // called:
  //   RESOURCE_EXHAUSTED  a queue bound is reached (worth a retry, see
  //                       RetryDelay), or larger than max_request_bytes (not)
  //   DEADLINE_EXCEEDED   the deadline has passed already, or cannot be met
  //   (see
  //                       above)
  //   UNAVAILABLE         draining, or every device or the required one has
  //                       failed
  //   INVALID_ARGUMENT    there is no such required_device
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

  // How long a refused caller should wait: half the predicted time to work off
  // the queue, in [10 ms, 5 s].
  virtual absl::Duration RetryDelay() const = 0;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_SCHEDULING_SCHEDULER_H_
