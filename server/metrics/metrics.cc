#include "server/metrics/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>

#include <utility>

#include "server/metrics/buckets.h"
#include "server/metrics/config_labels.h"
#include "server/metrics/pool_registry.h"
#include "server/metrics/series.h"
#include "server/metrics/series_by_name.h"
#include "server/metrics/session_metrics.h"

namespace attention {
namespace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;

Family<Counter>& AddCounter(PoolRegistry& registry, const char* name,
                            const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
}

Family<Gauge>& AddGauge(PoolRegistry& registry, const char* name,
                        const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
}

Family<Histogram>& AddHistogram(PoolRegistry& registry, const char* name,
                                const char* help) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry);
}

}  // namespace

struct Metrics::Impl {
  explicit Impl(const Options& options);

  const std::shared_ptr<PoolRegistry> registry =
      std::make_shared<PoolRegistry>();

  Counter& requests_started =
      AddCounter(*registry, "attention_requests_started_total",
                 "Requests that have arrived.")
          .Add({});
  Gauge& requests_in_flight =
      AddGauge(*registry, "attention_requests_in_flight",
               "Requests that have arrived and are not answered yet.")
          .Add({});

  Family<Counter>& bytes =
      AddCounter(*registry, "attention_bytes_total",
                 "Bytes of request messages received and of answers sent.");
  Counter& bytes_received = bytes.Add({{"direction", "received"}});
  Counter& bytes_sent = bytes.Add({{"direction", "sent"}});

  Family<Counter>& shared_memory_bytes =
      AddCounter(*registry, "attention_shared_memory_bytes_total",
                 "Bytes of tensors read from and written to shared memory.");
  Counter& shared_memory_bytes_received =
      shared_memory_bytes.Add({{"direction", "received"}});
  Counter& shared_memory_bytes_sent =
      shared_memory_bytes.Add({{"direction", "sent"}});
  Gauge& shared_memory_regions =
      AddGauge(*registry, "attention_shared_memory_regions",
               "Shared memory regions that are registered or in use.")
          .Add({});
  Gauge& shared_memory_region_bytes =
      AddGauge(*registry, "attention_shared_memory_region_bytes",
               "Size of these regions together.")
          .Add({});

  Gauge& uploads =
      AddGauge(*registry, "attention_uploads",
               "Uploads of streamed requests that are under way, computed or "
               "waiting to be resumed.")
          .Add({});
  Gauge& upload_bytes =
      AddGauge(*registry, "attention_upload_bytes",
               "Bytes of memory that these have reserved for their inputs.")
          .Add({});
  Family<Counter>& upload_events =
      AddCounter(*registry, "attention_upload_events_total",
                 "Uploads that began, went on after a stream had ended, or were "
                 "forgotten at the end of their lease.");
  Counter& uploads_started = upload_events.Add({{"event", "started"}});
  Counter& uploads_resumed = upload_events.Add({{"event", "resumed"}});
  Counter& uploads_expired = upload_events.Add({{"event", "expired"}});

  SessionMetrics sessions{*registry};

  const ConfigFamilies config_families = {
      .requests = AddCounter(
          *registry, "attention_requests_total",
          "Requests answered, by head configuration and status code."),
      .phases = AddHistogram(
          *registry, "attention_phase_duration_seconds",
          "Time that a request spent in each phase. The total is of requests "
          "answered with OK; copies and computation are those of its batch."),
      .queue_requests = AddGauge(*registry, "attention_queue_requests",
                                 "Requests waiting for a batch."),
      .queue_bytes =
          AddGauge(*registry, "attention_queue_bytes",
                   "Tensor bytes, in and out, of requests that wait."),
  };
  ConfigLabels configs;
  // Only counted by code: what could not be decoded has no phases.
  CodeCounters invalid_requests{config_families.requests, "config", "invalid"};

  Histogram& batch_requests =
      AddHistogram(*registry, "attention_batch_requests",
                   "Requests in a batch.")
          .Add({}, BatchRequestBuckets());
  Histogram& batch_sequences =
      AddHistogram(*registry, "attention_batch_sequences",
                   "Sequences in a batch.")
          .Add({}, BatchSequenceBuckets());
  Histogram& batch_query_tokens =
      AddHistogram(*registry, "attention_batch_query_tokens",
                   "Query tokens in a batch.")
          .Add({}, BatchTokenBuckets());

  Family<prometheus::Gauge>& queue_limit =
      AddGauge(*registry, "attention_queue_limit",
               "Most requests, tensor bytes and predicted seconds of device "
               "time that may wait.");
  prometheus::Gauge& queue_limit_requests = queue_limit.Add({{"kind", "requests"}});
  prometheus::Gauge& queue_limit_bytes = queue_limit.Add({{"kind", "bytes"}});
  prometheus::Gauge& queue_predicted_seconds =
      AddGauge(*registry, "attention_queue_predicted_seconds",
               "Predicted time in which the devices work off what waits.")
          .Add({});

  Family<Counter>& refused_family =
      AddCounter(*registry, "attention_refused_total",
                 "Requests that the scheduler did not take.");
  Family<Counter>& dropped_family =
      AddCounter(*registry, "attention_dropped_total",
                 "Requests that left the queue without running.");
  SeriesByName<ReasonSeries, Family<Counter>> refused{refused_family};
  SeriesByName<ReasonSeries, Family<Counter>> dropped{dropped_family};

  const DeviceFamilies device_families = {
      .batches = AddCounter(*registry, "attention_batches_total",
                            "Batches computed, by why they were closed."),
      .batches_in_flight = AddGauge(*registry, "attention_batches_in_flight",
                                    "Batches on the device."),
      .batch_failures = AddCounter(*registry, "attention_batch_failures_total",
                                   "Batches that failed as a whole."),
      .copied_bytes =
          AddCounter(*registry, "attention_copied_bytes_total",
                     "Bytes copied to (in) and from (out) the device."),
      .flops = AddCounter(*registry, "attention_flops_total",
                          "Floating-point operations of both matrix products "
                          "over visible query and key pairs."),
      .compute_seconds =
          AddCounter(*registry, "attention_compute_seconds_total",
                     "Time that kernels ran."),
      .achieved_flops =
          AddGauge(*registry, "attention_achieved_flops_per_second",
                   "Operations per second of the last batch's kernels."),
      .resident_bytes =
          AddCounter(*registry, "attention_resident_bytes_read_total",
                     "Bytes of keys and values that stay on the device, read by "
                     "kernels: those that some query of a sequence sees, once."),
      .achieved_resident_bytes =
          AddGauge(*registry, "attention_achieved_resident_bytes_per_second",
                   "The same per second of the last such batch's kernels."),
      .prediction_ratio =
          AddHistogram(*registry, "attention_batch_prediction_ratio",
                       "Device time that a batch took by the time that was "
                       "predicted."),
  };
  SeriesByName<DeviceSeries, const DeviceFamilies> devices{device_families};
};

Metrics::Impl::Impl(const Options& options)
    : configs(options.max_config_labels, config_families) {
  AddGauge(*registry, "attention_build_info", "Always 1; the labels count.")
      .Add({{"version", options.version}, {"backend", options.backend}})
      .Set(1);
  // Exported as 0 from the start, so that rates over them are right from the
  // first event on.
  for (const char* reason :
       {"queue_full_requests", "queue_full_bytes", "queue_full_time",
        "too_large", "no_device", "draining", "device_failed", "deadline",
        "deadline_predicted"}) {
    refused.Of(reason);
  }
  for (const char* reason :
       {"deadline", "cancelled", "draining", "device_failed"}) {
    dropped.Of(reason);
  }
}

Metrics::Metrics(Options options) : impl_(std::make_unique<Impl>(options)) {}
Metrics::~Metrics() = default;

void Metrics::RequestStarted() {
  impl_->requests_started.Increment();
  impl_->requests_in_flight.Increment();
}

void Metrics::RequestFinished(const HeadConfig* config, absl::StatusCode code,
                              absl::Duration total) {
  if (config == nullptr) {
    impl_->invalid_requests.Increment(code);
  } else {
    ConfigSeries& series = impl_->configs.SeriesOf(*config);
    series.requests.Increment(code);
    // Refusals take microseconds: among them the percentiles of an overloaded
    // server would look best when it is at its worst.
    if (code == absl::StatusCode::kOk) {
      series.ObservePhase(Phase::kTotal, total, 1);
    }
  }
  impl_->requests_in_flight.Decrement();
}

void Metrics::BytesReceived(size_t bytes) {
  impl_->bytes_received.Increment(static_cast<double>(bytes));
}

void Metrics::BytesSent(size_t bytes) {
  impl_->bytes_sent.Increment(static_cast<double>(bytes));
}

void Metrics::SharedMemoryBytesReceived(size_t bytes) {
  impl_->shared_memory_bytes_received.Increment(static_cast<double>(bytes));
}

void Metrics::SharedMemoryBytesSent(size_t bytes) {
  impl_->shared_memory_bytes_sent.Increment(static_cast<double>(bytes));
}

void Metrics::SetSharedMemoryRegions(int count, int64_t bytes) {
  impl_->shared_memory_regions.Set(count);
  impl_->shared_memory_region_bytes.Set(static_cast<double>(bytes));
}

void Metrics::SetUploads(int count, int64_t bytes) {
  impl_->uploads.Set(count);
  impl_->upload_bytes.Set(static_cast<double>(bytes));
}

void Metrics::UploadOpened(bool resumed) {
  (resumed ? impl_->uploads_resumed : impl_->uploads_started).Increment();
}

void Metrics::UploadExpired() { impl_->uploads_expired.Increment(); }

SessionMetrics& Metrics::sessions() { return impl_->sessions; }

void Metrics::PhaseFinished(Phase phase, const HeadConfig& config,
                            absl::Duration time) {
  impl_->configs.SeriesOf(config).ObservePhase(phase, time, 1);
}

void Metrics::SetQueueLimits(int requests, size_t bytes, absl::Duration time) {
  impl_->queue_limit_requests.Set(requests);
  impl_->queue_limit_bytes.Set(static_cast<double>(bytes));
  if (time > absl::ZeroDuration()) {
    impl_->queue_limit.Add({{"kind", "seconds"}})
        .Set(absl::ToDoubleSeconds(time));
  }
}

void Metrics::SetPredictedQueueTime(absl::Duration time) {
  impl_->queue_predicted_seconds.Set(absl::ToDoubleSeconds(time));
}

void Metrics::BatchPredicted(absl::string_view device, absl::Duration predicted,
                             absl::Duration taken) {
  if (predicted <= absl::ZeroDuration() || taken <= absl::ZeroDuration()) return;
  impl_->devices.Of(device).prediction_ratio.Observe(
      absl::FDivDuration(taken, predicted));
}

void Metrics::WorkQueued(const HeadConfig& config, size_t bytes) {
  ConfigSeries& series = impl_->configs.SeriesOf(config);
  series.queue_requests.Increment();
  series.queue_bytes.Increment(static_cast<double>(bytes));
}

void Metrics::WorkDequeued(const HeadConfig& config, size_t bytes) {
  ConfigSeries& series = impl_->configs.SeriesOf(config);
  series.queue_requests.Decrement();
  series.queue_bytes.Decrement(static_cast<double>(bytes));
}

void Metrics::WorkRefused(absl::string_view reason) {
  impl_->refused.Of(reason).count.Increment();
}

void Metrics::WorkDropped(absl::string_view reason) {
  impl_->dropped.Of(reason).count.Increment();
}

void Metrics::BatchStarted(absl::string_view device) {
  impl_->devices.Of(device).batches_in_flight.Increment();
}

void Metrics::BatchFinished(const BatchReport& report) {
  DeviceSeries& device = impl_->devices.Of(report.device);
  device.batches[static_cast<size_t>(report.flush_reason)]->Increment();
  device.copied_in_bytes.Increment(static_cast<double>(report.copied_in_bytes));
  device.copied_out_bytes.Increment(
      static_cast<double>(report.copied_out_bytes));
  device.flops.Increment(report.flops);
  const double compute_seconds = absl::ToDoubleSeconds(report.compute);
  if (compute_seconds > 0) {
    device.compute_seconds.Increment(compute_seconds);
    device.achieved_flops.Set(report.flops / compute_seconds);
  }
  if (report.resident_bytes > 0) {
    device.resident_bytes.Increment(report.resident_bytes);
    if (compute_seconds > 0) {
      device.achieved_resident_bytes.Set(report.resident_bytes /
                                         compute_seconds);
    }
  }

  impl_->batch_requests.Observe(report.request_count);
  impl_->batch_sequences.Observe(static_cast<double>(report.sequence_count));
  impl_->batch_query_tokens.Observe(static_cast<double>(report.query_tokens));

  ConfigSeries& config = impl_->configs.SeriesOf(report.config);
  config.ObservePhase(Phase::kCopyIn, report.copy_in, report.request_count);
  config.ObservePhase(Phase::kCompute, report.compute, report.request_count);
  config.ObservePhase(Phase::kCopyOut, report.copy_out, report.request_count);
  device.batches_in_flight.Decrement();
}

void Metrics::BatchFailed(absl::string_view device, absl::StatusCode code) {
  DeviceSeries& series = impl_->devices.Of(device);
  series.batch_failures.Increment(code);
  series.batches_in_flight.Decrement();
}

void Metrics::AddPool(const MemoryPool* pool, absl::string_view device) {
  impl_->registry->AddPool(pool, device);
}

void Metrics::RemovePool(const MemoryPool* pool) {
  impl_->registry->RemovePool(pool);
}

void Metrics::AddSessions(const SessionUsageSource* sessions,
                          absl::string_view device) {
  impl_->registry->AddSessions(sessions, device);
}

void Metrics::RemoveSessions(const SessionUsageSource* sessions) {
  impl_->registry->RemoveSessions(sessions);
}

std::shared_ptr<prometheus::Registry> Metrics::registry() const {
  return impl_->registry;
}

}  // namespace attention
