#include "server/metrics/series.h"

#include <algorithm>
#include <utility>

#include "server/metrics/buckets.h"

namespace attention {

const char* ToString(Phase phase) {
  switch (phase) {
    case Phase::kReceive:
      return "receive";
    case Phase::kQueue:
      return "queue";
    case Phase::kCopyIn:
      return "copy_in";
    case Phase::kCompute:
      return "compute";
    case Phase::kCopyOut:
      return "copy_out";
    case Phase::kSend:
      return "send";
    case Phase::kTotal:
      return "total";
  }
  return "unknown";
}

const char* ToString(FlushReason reason) {
  switch (reason) {
    case FlushReason::kIdle:
      return "idle";
    case FlushReason::kFull:
      return "full";
    case FlushReason::kDelay:
      return "delay";
    case FlushReason::kDrain:
      return "drain";
  }
  return "unknown";
}

CodeCounters::CodeCounters(Family<prometheus::Counter>& family,
                           std::string label_name, std::string label_value)
    : family_(family),
      label_name_(std::move(label_name)),
      label_value_(std::move(label_value)) {}

void CodeCounters::Increment(absl::StatusCode code) {
  size_t index = static_cast<size_t>(code);
  if (index >= kStatusCodeCount) {
    code = absl::StatusCode::kUnknown;
    index = static_cast<size_t>(code);
  }
  // Acquire pairs with the release below: the counter is constructed before
  // its address is seen.
  prometheus::Counter* counter =
      counters_[index].load(std::memory_order_acquire);
  if (counter == nullptr) {
    // Two threads may get here; the family gives both the same counter.
    counter = &family_.Add({{label_name_, label_value_},
                            {"code", absl::StatusCodeToString(code)}});
    counters_[index].store(counter, std::memory_order_release);
  }
  counter->Increment();
}

ConfigSeries::ConfigSeries(const ConfigFamilies& families,
                           const std::string& label)
    : requests(families.requests, "config", label),
      queue_requests(families.queue_requests.Add({{"config", label}})),
      queue_bytes(families.queue_bytes.Add({{"config", label}})) {
  for (size_t i = 0; i < kPhaseCount; ++i) {
    phases[i] = &families.phases.Add(
        {{"phase", ToString(static_cast<Phase>(i))}, {"config", label}},
        DurationBuckets());
  }
}

void ConfigSeries::ObservePhase(Phase phase, absl::Duration time, int count) {
  const double seconds =
      absl::ToDoubleSeconds(std::max(time, absl::ZeroDuration()));
  ObserveTimes(*phases[static_cast<size_t>(phase)], DurationBuckets(), seconds,
               count);
}

DeviceSeries::DeviceSeries(const DeviceFamilies& families,
                           const std::string& device)
    : batches_in_flight(families.batches_in_flight.Add({{"device", device}})),
      batch_failures(families.batch_failures, "device", device),
      copied_in_bytes(
          families.copied_bytes.Add({{"device", device}, {"direction", "in"}})),
      copied_out_bytes(families.copied_bytes.Add(
          {{"device", device}, {"direction", "out"}})),
      flops(families.flops.Add({{"device", device}})),
      compute_seconds(families.compute_seconds.Add({{"device", device}})),
      achieved_flops(families.achieved_flops.Add({{"device", device}})),
      resident_bytes(families.resident_bytes.Add({{"device", device}})),
      achieved_resident_bytes(
          families.achieved_resident_bytes.Add({{"device", device}})),
      prediction_ratio(families.prediction_ratio.Add({{"device", device}},
                                                     RatioBuckets())) {
  for (size_t i = 0; i < kFlushReasonCount; ++i) {
    batches[i] = &families.batches.Add(
        {{"device", device},
         {"flush_reason", ToString(static_cast<FlushReason>(i))}});
  }
}

}  // namespace attention
