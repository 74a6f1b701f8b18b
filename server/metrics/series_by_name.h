// Finds series by the value of their label.
#ifndef ATTENTION_SERVER_METRICS_SERIES_BY_NAME_H_
#define ATTENTION_SERVER_METRICS_SERIES_BY_NAME_H_

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace attention {

// Makes Series(families, name) when a name first occurs, and keeps it. For
// names that the server itself chooses (devices, reasons): nothing bounds their
// number. Thread-safe; a known name costs a hash look-up under a shared lock.
template <typename Series, typename Families>
class SeriesByName {
 public:
  // `families` must outlive this object.
  explicit SeriesByName(Families& families) : families_(families) {}

  Series& Of(absl::string_view name) ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      absl::ReaderMutexLock lock(&mutex_);
      const auto it = series_.find(name);
      if (it != series_.end()) return *it->second;
    }
    absl::MutexLock lock(&mutex_);
    std::unique_ptr<Series>& series = series_[name];
    if (series == nullptr) {
      series = std::make_unique<Series>(families_, std::string(name));
    }
    return *series;
  }

 private:
  Families& families_;
  absl::Mutex mutex_;
  absl::flat_hash_map<std::string, std::unique_ptr<Series>> series_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace attention

#endif  // ATTENTION_SERVER_METRICS_SERIES_BY_NAME_H_
