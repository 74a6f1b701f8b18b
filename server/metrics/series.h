// Series of one head configuration, of one device and of one reason, with the
// pointers cached so that reporting neither allocates nor builds label sets.
#ifndef ATTENTION_SERVER_METRICS_SERIES_H_
#define ATTENTION_SERVER_METRICS_SERIES_H_

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "server/engine/attention_work.h"
#include "server/metrics/metrics.h"

namespace attention {

template <typename T>
using Family = prometheus::Family<T>;

inline constexpr size_t kPhaseCount = static_cast<size_t>(Phase::kTotal) + 1;
inline constexpr size_t kFlushReasonCount =
    static_cast<size_t>(FlushReason::kDrain) + 1;
inline constexpr size_t kStatusCodeCount =
    static_cast<size_t>(absl::StatusCode::kUnauthenticated) + 1;

const char* ToString(Phase phase);
const char* ToString(FlushReason reason);

// One counter per status code under a fixed label, made when the code first
// occurs: most of the 17 never do. Thread-safe.
class CodeCounters {
 public:
  // Series are {label_name=label_value, code="..."} of `family`.
  CodeCounters(Family<prometheus::Counter>& family, std::string label_name,
               std::string label_value);

  // A code outside the canonical ones counts as UNKNOWN.
  void Increment(absl::StatusCode code);

 private:
  Family<prometheus::Counter>& family_;
  const std::string label_name_;
  const std::string label_value_;
  std::array<std::atomic<prometheus::Counter*>, kStatusCodeCount> counters_ =
      {};
};

struct ConfigFamilies {
  Family<prometheus::Counter>& requests;
  Family<prometheus::Histogram>& phases;
  Family<prometheus::Gauge>& queue_requests;
  Family<prometheus::Gauge>& queue_bytes;
};

// Everything labelled with one head configuration.
struct ConfigSeries {
  ConfigSeries(const ConfigFamilies& families, const std::string& label);

  // A negative time (the clock was set back) counts as 0.
  void ObservePhase(Phase phase, absl::Duration time, int count);

  CodeCounters requests;
  std::array<prometheus::Histogram*, kPhaseCount> phases;
  prometheus::Gauge& queue_requests;
  prometheus::Gauge& queue_bytes;
};

struct DeviceFamilies {
  Family<prometheus::Counter>& batches;
  Family<prometheus::Gauge>& batches_in_flight;
  Family<prometheus::Counter>& batch_failures;
  Family<prometheus::Counter>& copied_bytes;
  Family<prometheus::Counter>& flops;
  Family<prometheus::Counter>& compute_seconds;
  Family<prometheus::Gauge>& achieved_flops;
  Family<prometheus::Counter>& resident_bytes;
  Family<prometheus::Gauge>& achieved_resident_bytes;
  Family<prometheus::Histogram>& prediction_ratio;
};

// Everything labelled with one device.
struct DeviceSeries {
  DeviceSeries(const DeviceFamilies& families, const std::string& device);

  std::array<prometheus::Counter*, kFlushReasonCount> batches;
  prometheus::Gauge& batches_in_flight;
  CodeCounters batch_failures;
  prometheus::Counter& copied_in_bytes;
  prometheus::Counter& copied_out_bytes;
  prometheus::Counter& flops;
  prometheus::Counter& compute_seconds;
  prometheus::Gauge& achieved_flops;
  prometheus::Counter& resident_bytes;
  prometheus::Gauge& achieved_resident_bytes;
  prometheus::Histogram& prediction_ratio;
};

// A counter labelled with a reason.
struct ReasonSeries {
  ReasonSeries(Family<prometheus::Counter>& family, const std::string& reason)
      : count(family.Add({{"reason", reason}})) {}

  prometheus::Counter& count;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_METRICS_SERIES_H_
