// Everything the server counts, in the Prometheus data model.
//
// One object per server; it owns a prometheus::Registry. The request handler,
// the scheduler and the devices report to it; nothing reads it back except
// tests. Every method is thread-safe and cheap (no allocation after the first
// use of a label set).
//
// Callers choose head configurations, so the label `config` is bounded: after
// max_config_labels different ones, further ones are counted as "other".
//
// Conservation: attention_requests_started_total equals the sum of
// attention_requests_total plus attention_requests_in_flight.
#ifndef ATTENTION_SERVER_METRICS_METRICS_H_
#define ATTENTION_SERVER_METRICS_METRICS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "kernels/attention_params.h"
#include "server/engine/attention_work.h"
#include "server/memory/memory_pool.h"
#include "server/metrics/session_usage.h"

namespace prometheus {
class Registry;
}

namespace attention {

class SessionMetrics;

// Phases of a request, in order; label `phase` of
// attention_phase_duration_seconds.
enum class Phase {
  kReceive,  // decoding and checking the request
  kQueue,    // waiting for a batch
  kCopyIn,   // host to device
  kCompute,  // kernels
  kCopyOut,  // device to host
  kSend,     // building the answer
  kTotal,    // from the arrival of the request to the hand-over of the answer
};

class Metrics {
 public:
  struct Options {
    int max_config_labels = 64;
    std::string version;
    std::string backend;
  };

  explicit Metrics(Options options);
  ~Metrics();

  // --- Requests; reported by server/rpc ---------------------------------
  void RequestStarted();
  // `config` is null when the request could not be decoded (label "invalid").
  void RequestFinished(const HeadConfig* config, absl::StatusCode code,
                       absl::Duration total);
  void BytesReceived(size_t bytes);
  void BytesSent(size_t bytes);
  // Of tensors that lie in shared memory; not part of the two above.
  void SharedMemoryBytesReceived(size_t bytes);
  void SharedMemoryBytesSent(size_t bytes);
  // A single request's phase, for kReceive and kSend, and from the scheduler
  // kQueue. The phases of a
  // batch are reported by BatchFinished.
  void PhaseFinished(Phase phase, const HeadConfig& config, absl::Duration time);

  // --- Regions; reported by server/regions ------------------------------
  // How many there are now, and their size.
  void SetSharedMemoryRegions(int count, int64_t bytes);

  // --- Uploads; reported by server/uploads ------------------------------
  // How many there are now, idle ones included, and the size of their inputs.
  void SetUploads(int count, int64_t bytes);
  void UploadOpened(bool resumed);
  // Its lease has ended.
  void UploadExpired();

  // --- Sessions; reported by server/sessions ----------------------------
  SessionMetrics& sessions();

  // --- Queues; reported by server/scheduling ----------------------------
  // The bounds on all queues together, for alerts to compare with.
  // Without a bound on their time it is 0, and not exported.
  void SetQueueLimits(int requests, size_t bytes, absl::Duration time);
  void WorkQueued(const HeadConfig& config, size_t bytes);
  // Whatever the reason it leaves for: batch, expiry, cancellation.
  void WorkDequeued(const HeadConfig& config, size_t bytes);
  // Predicted time in which the devices work off what waits.
  void SetPredictedQueueTime(absl::Duration time);
  // reason: "queue_full_requests", "queue_full_bytes", "queue_full_time",
  // "too_large", "no_device", "draining", "device_failed", "deadline",
  // "deadline_predicted" (not passed, but out of reach).
  void WorkRefused(absl::string_view reason);
  // It left the queue without running. reason: "deadline", "cancelled",
  // "draining" or "device_failed".
  void WorkDropped(absl::string_view reason);
  // A batch was predicted to take so much of the device's time, and took so
  // much. Ignored unless both are above 0.
  void BatchPredicted(absl::string_view device, absl::Duration predicted,
                      absl::Duration taken);

  // --- Batches; reported by server/engine -------------------------------
  struct BatchReport {
    HeadConfig config;
    FlushReason flush_reason = FlushReason::kIdle;
    std::string device;  // DeviceDescription::name
    int request_count = 0;
    int64_t sequence_count = 0;
    int64_t query_tokens = 0;
    double flops = 0;  // over visible pairs
    double resident_bytes = 0;  // of keys and values read that stay
    size_t copied_in_bytes = 0;
    size_t copied_out_bytes = 0;
    absl::Duration copy_in;
    absl::Duration compute;
    absl::Duration copy_out;
  };
  void BatchStarted(absl::string_view device);
  void BatchFinished(const BatchReport& report);
  // A batch that ended without a report; balances BatchStarted.
  void BatchFailed(absl::string_view device, absl::StatusCode code);

  // --- State read at scrape time ----------------------------------------
  // Exports the pool's usage with labels pool and device. The pool must outlive
  // this object or be removed before.
  void AddPool(const MemoryPool* pool, absl::string_view device);
  void RemovePool(const MemoryPool* pool);
  // The same for what the sessions of a device hold.
  void AddSessions(const SessionUsageSource* sessions,
                   absl::string_view device);
  void RemoveSessions(const SessionUsageSource* sessions);

  // For the HTTP exposer and for tests.
  std::shared_ptr<prometheus::Registry> registry() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_METRICS_METRICS_H_
