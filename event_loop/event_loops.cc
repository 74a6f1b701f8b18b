#include "event_loop/event_loops.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/base/const_init.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

namespace attention {
namespace {

constexpr char kStrategy[] = "GRPC_POLL_STRATEGY";
constexpr char kSeparate[] = "poll";
constexpr int kProcessorsOfALoop = 4;
constexpr int kMaxLoops = 8;
// One leads, and another when that computes.
constexpr int kThreadsOfSeveral = 2;

int ProcessorCount() {
  return static_cast<int>(std::thread::hardware_concurrency());
}

}  // namespace

EventLoops::EventLoops(
    std::vector<std::unique_ptr<grpc::CompletionQueue>> queues,
    absl::Duration poll_time) {
  const bool is_one = queues.size() == 1;
  const auto calls_under_way = std::make_shared<std::atomic<int>>(0);
  for (std::unique_ptr<grpc::CompletionQueue>& queue : queues) {
    loops_.push_back(std::make_unique<EventLoop>(
        std::move(queue),
        EventLoop::Options{.thread_count = is_one
                                               ? EventLoop::DefaultThreadCount()
                                               : kThreadsOfSeveral,
                           .shares_events = is_one,
                           .calls_under_way = calls_under_way,
                           .poll_time = poll_time}));
  }
}

std::shared_ptr<EventLoops> EventLoops::Shared(absl::Duration poll_time) {
  static absl::Mutex mutex(absl::kConstInit);
  static auto* const all =
      new absl::flat_hash_map<absl::Duration, std::weak_ptr<EventLoops>>();
  absl::MutexLock lock(&mutex);
  std::weak_ptr<EventLoops>& known = (*all)[poll_time];
  std::shared_ptr<EventLoops> loops = known.lock();
  if (loops == nullptr) {
    std::vector<std::unique_ptr<grpc::CompletionQueue>> queues(DefaultCount());
    for (auto& queue : queues)
      queue = std::make_unique<grpc::CompletionQueue>();
    loops = std::make_shared<EventLoops>(std::move(queues), poll_time);
    known = loops;
  }
  return loops;
}

int EventLoops::DefaultCount() {
  const char* strategy = std::getenv(kStrategy);
  if (strategy == nullptr || std::string_view(strategy) != kSeparate) return 1;
  return std::clamp(ProcessorCount() / kProcessorsOfALoop, 1, kMaxLoops);
}

void EventLoops::SeparateSockets() {
  if (ProcessorCount() < 2 * kProcessorsOfALoop) return;
  setenv(kStrategy, kSeparate, /*overwrite=*/0);
}

}  // namespace attention
