// Shows once a second how a run is going.
#ifndef ATTENTION_CLIENT_LOADTEST_PROGRESS_LINE_H_
#define ATTENTION_CLIENT_LOADTEST_PROGRESS_LINE_H_

#include <cstdio>
#include <functional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/loadtest/load_runner.h"

namespace attention::loadtest {

// E.g. "[  12s] 5321 done/s, p50 1.23 ms, p99 4.56 ms, 64 outstanding".
std::string FormatProgress(const LoadRunner::Progress& progress);

// Writes a line a second from its construction to its destruction; on a
// terminal each overwrites the one before. What is called, and the stream, must
// outlive it.
class ProgressLine {
 public:
  ProgressLine(std::function<LoadRunner::Progress()> take_progress,
               std::FILE* stream);
  ~ProgressLine();

 private:
  void Loop();

  const std::function<LoadRunner::Progress()> take_progress_;
  std::FILE* const stream_;
  const bool terminal_;
  absl::Mutex mutex_;
  absl::CondVar ended_changed_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace attention::loadtest

#endif  // ATTENTION_CLIENT_LOADTEST_PROGRESS_LINE_H_
