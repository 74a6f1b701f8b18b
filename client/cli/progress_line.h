// A line on stderr while something takes long.
#ifndef ATTENTION_CLIENT_CLI_PROGRESS_LINE_H_
#define ATTENTION_CLIENT_CLI_PROGRESS_LINE_H_

#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace attention::cli {

// From its construction to its destruction rewrites the line "TEXT, 1.2 s" five
// times a second, and clears it at the end. What takes less than half a second
// shows nothing.
class ProgressLine {
 public:
  // Does nothing at all unless `enabled`.
  ProgressLine(std::string text, bool enabled);
  ~ProgressLine() ABSL_LOCKS_EXCLUDED(mutex_);
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);

  const std::string text_;
  absl::Mutex mutex_;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace attention::cli

#endif  // ATTENTION_CLIENT_CLI_PROGRESS_LINE_H_
