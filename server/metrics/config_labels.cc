#include "server/metrics/config_labels.h"

#include <algorithm>
#include <atomic>

#include "kernels/validation.h"

namespace attention {
namespace {

std::atomic<uint64_t> last_id = 0;

}  // namespace

ConfigLabels::ConfigLabels(int max_labels, const ConfigFamilies& families)
    : id_(last_id.fetch_add(1, std::memory_order_relaxed) + 1),
      max_labels_(static_cast<size_t>(std::max(max_labels, 0))),
      families_(families) {}

// A request asks half a dozen times, on all threads: even readers of a lock
// wait for each other there.
ConfigSeries& ConfigLabels::SeriesOf(const HeadConfig& config) {
  struct Known {
    uint64_t id = 0;
    HeadConfig config;
    ConfigSeries* series = nullptr;
  };
  static thread_local Known known;
  if (known.id != id_ || !(known.config == config)) {
    known = {id_, config, &Find(config)};
  }
  return *known.series;
}

ConfigSeries& ConfigLabels::Find(const HeadConfig& config) {
  {
    absl::ReaderMutexLock lock(&mutex_);
    const auto it = series_.find(config);
    if (it != series_.end()) return *it->second;
    if (series_.size() >= max_labels_ && other_ != nullptr) return *other_;
  }
  absl::MutexLock lock(&mutex_);
  const auto it = series_.find(config);
  if (it != series_.end()) return *it->second;
  if (series_.size() < max_labels_) {
    auto& series = series_[config];
    series = std::make_unique<ConfigSeries>(families_, ToString(config));
    return *series;
  }
  if (other_ == nullptr) {
    other_ = std::make_unique<ConfigSeries>(families_, "other");
  }
  return *other_;
}

}  // namespace attention
