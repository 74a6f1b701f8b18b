#include "client/cli/progress_line.h"

#include <cstdio>
#include <utility>

#include "absl/strings/str_format.h"

namespace attention::cli {

ProgressLine::ProgressLine(std::string text, bool enabled)
    : text_(std::move(text)) {
  if (enabled) thread_ = std::thread([this] { Run(); });
}

ProgressLine::~ProgressLine() {
  if (!thread_.joinable()) return;
  {
    absl::MutexLock lock(&mutex_);
    finished_ = true;
  }
  thread_.join();
}

void ProgressLine::Run() {
  const absl::Time start = absl::Now();
  absl::Duration interval = absl::Milliseconds(500);
  bool shown = false;
  absl::MutexLock lock(&mutex_);
  while (!mutex_.AwaitWithTimeout(absl::Condition(&finished_), interval)) {
    absl::FPrintF(stderr, "\r%s, %.1f s", text_,
                  absl::ToDoubleSeconds(absl::Now() - start));
    std::fflush(stderr);
    shown = true;
    interval = absl::Milliseconds(200);
  }
  if (shown) absl::FPrintF(stderr, "\r\033[K");
}

}  // namespace attention::cli
