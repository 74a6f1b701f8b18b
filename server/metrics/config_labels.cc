#include "server/metrics/config_labels.h"

#include <algorithm>

#include "kernels/validation.h"

namespace attention {

ConfigLabels::ConfigLabels(int max_labels, const ConfigFamilies& families)
    : max_labels_(static_cast<size_t>(std::max(max_labels, 0))),
      families_(families) {}

ConfigSeries& ConfigLabels::SeriesOf(const HeadConfig& config) {
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
