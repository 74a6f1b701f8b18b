// Finds the series of a head configuration, and keeps their number bounded.
#ifndef ATTENTION_SERVER_METRICS_CONFIG_LABELS_H_
#define ATTENTION_SERVER_METRICS_CONFIG_LABELS_H_

#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "kernels/attention_params.h"
#include "server/metrics/series.h"

namespace attention {

// The first `max_labels` configurations get series of their own, labelled with
// ToString(HeadConfig); all later ones share the label "other". A configuration
// keeps its label for ever, so that gauges balance. Thread-safe.
class ConfigLabels {
 public:
  // `max_labels` may be 0. The families must outlive this object.
  ConfigLabels(int max_labels, const ConfigFamilies& families);

  // A configuration costs a comparison if the thread asked for it before, and a
  // hash look-up under a shared lock if someone else did.
  ConfigSeries& SeriesOf(const HeadConfig& config) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  ConfigSeries& Find(const HeadConfig& config) ABSL_LOCKS_EXCLUDED(mutex_);

  const uint64_t id_;  // never used again, unlike this object's address
  const size_t max_labels_;
  const ConfigFamilies families_;
  absl::Mutex mutex_;
  absl::flat_hash_map<HeadConfig, std::unique_ptr<ConfigSeries>> series_
      ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<ConfigSeries> other_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attention

#endif  // ATTENTION_SERVER_METRICS_CONFIG_LABELS_H_
