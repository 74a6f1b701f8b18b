#include "client/loadtest/progress_line.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_format.h"

namespace attention::loadtest {

std::string FormatProgress(const LoadRunner::Progress& progress) {
  const double seconds = absl::ToDoubleSeconds(progress.interval);
  std::string line = absl::StrFormat(
      "[%4.0fs] %.0f done/s", absl::ToDoubleSeconds(progress.since_start),
      seconds > 0 ? static_cast<double>(progress.finished) / seconds : 0);
  if (progress.latency.count() > 0) {
    absl::StrAppendFormat(
        &line, ", p50 %.3g ms, p99 %.3g ms",
        absl::ToDoubleMilliseconds(progress.latency.Percentile(50)),
        absl::ToDoubleMilliseconds(progress.latency.Percentile(99)));
  }
  absl::StrAppendFormat(&line, ", %d outstanding", progress.outstanding);
  if (progress.failed > 0) {
    absl::StrAppendFormat(&line, ", %d FAILED", progress.failed);
  }
  if (progress.warming_up) line += ", warming up";
  return line;
}

ProgressLine::ProgressLine(std::function<LoadRunner::Progress()> take_progress,
                           std::FILE* stream)
    : take_progress_(std::move(take_progress)),
      stream_(stream),
      terminal_(isatty(fileno(stream)) != 0),
      thread_([this] { Loop(); }) {}

ProgressLine::~ProgressLine() {
  {
    absl::MutexLock lock(&mutex_);
    ended_ = true;
    ended_changed_.Signal();
  }
  thread_.join();
  if (terminal_) std::fputs("\r\033[K", stream_);
}

void ProgressLine::Loop() {
  absl::Duration next = LoadClock::Steady().Now() + absl::Seconds(1);
  absl::MutexLock lock(&mutex_);
  while (!ended_) {
    LoadClock::Steady().WaitUntil(ended_changed_, mutex_, next);
    if (ended_ || LoadClock::Steady().Now() < next) continue;
    next += absl::Seconds(1);
    const std::string line = FormatProgress(take_progress_());
    if (terminal_) {
      std::fprintf(stream_, "\r%s\033[K", line.c_str());
    } else {
      std::fprintf(stream_, "%s\n", line.c_str());
    }
    std::fflush(stream_);
  }
}

}  // namespace attention::loadtest
