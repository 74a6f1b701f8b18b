#include "event_loop/event_loop.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/time/clock.h"
#include "grpc/support/time.h"

namespace attention {
namespace {

// Events that the thread that leads takes before it leaves the lead to another.
constexpr size_t kMaxTaken = 8;
// How many long events one that had company says to handle without the lead.
constexpr int kCrowdedEvents = 32;
// Up to so many calls under way a thread that waits may also compute.
constexpr int kFewCalls = 3;
// How long one that is too many waits before it notices.
constexpr absl::Duration kSharedWait = absl::Milliseconds(100);

}  // namespace

struct EventLoop::Turn {
  EventLoop* const loop;
  bool leads = false;
  // The event before took long, and the lead was kept.
  bool was_long = false;
  // What is handled now came while that was so.
  bool came_meanwhile = false;
  // The wait before, with others, has brought an event.
  bool found_with_others = false;
  // Events that came with the one before, to be handled next.
  std::deque<Ready> put_off;
};

namespace {

thread_local void* current_turn = nullptr;  // an EventLoop::Turn

}  // namespace

EventLoop::EventLoop(std::unique_ptr<grpc::CompletionQueue> queue,
                     const Options& options)
    : queue_(std::move(queue)),
      thread_count_(std::max(options.thread_count, 1)),
      shares_events_(options.shares_events),
      all_under_way_(options.calls_under_way != nullptr
                         ? options.calls_under_way
                         : std::make_shared<std::atomic<int>>(0)),
      poll_limit_(options.poll_time) {
  for (int i = 0; i < thread_count_; ++i) {
    threads_.emplace_back([this] { Run(); });
    pthread_setname_np(threads_.back().native_handle(), "event_loop");
  }
}

EventLoop::~EventLoop() {
  queue_->Shutdown();
  for (std::thread& thread : threads_) thread.join();
}

int EventLoop::DefaultThreadCount() {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 2,
                    2, 16);
}

absl::Duration EventLoop::DefaultPollTime() {
  return std::thread::hardware_concurrency() > 4 ? absl::Microseconds(100)
                                                 : absl::ZeroDuration();
}

int EventLoop::LeaderLimit() const {
  return std::clamp(under_way_.load(std::memory_order_relaxed), 1,
                    MaxLeaders());
}

void EventLoop::Begin() {
  all_under_way_->fetch_add(1, std::memory_order_relaxed);
  const int count = under_way_.fetch_add(1, std::memory_order_relaxed) + 1;
  if (count < 2 || count > MaxLeaders()) return;
  absl::MutexLock lock(&mutex_);
  wake_.Signal();
}

void EventLoop::End() {
  under_way_.fetch_sub(1, std::memory_order_relaxed);
  all_under_way_->fetch_sub(1, std::memory_order_relaxed);
}

void EventLoop::NoteArrival() {
  auto* turn = static_cast<Turn*>(current_turn);
  if (turn != nullptr && turn->came_meanwhile) {
    turn->loop->crowded_.store(kCrowdedEvents, std::memory_order_relaxed);
  }
}

void EventLoop::LetOthersPoll() {
  auto* turn = static_cast<Turn*>(current_turn);
  if (turn == nullptr || !turn->leads || turn->loop->LeaderLimit() > 1) return;
  if (!turn->loop->shares_events_) {
    // With many calls what takes long is not done here.
    if (!HasFewCalls()) return;
    if (!turn->put_off.empty()) return turn->loop->PassLead(*turn, {});
  }
  std::atomic<int>& crowded = turn->loop->crowded_;
  // A guess: only the thread that leads counts down, and it may be overwritten.
  const int left = crowded.load(std::memory_order_relaxed);
  if (left > 0) {
    crowded.store(left - 1, std::memory_order_relaxed);
    turn->loop->PassLead(*turn, {});
  } else {
    turn->was_long = true;
  }
}

bool EventLoop::HasFewCalls() {
  const auto* turn = static_cast<const Turn*>(current_turn);
  return turn == nullptr || turn->loop->all_under_way_->load(
                                std::memory_order_relaxed) <= kFewCalls;
}

void EventLoop::Run() {
  Turn turn = {this};
  current_turn = &turn;
  for (Ready ready; Next(turn, ready);) ready.event->Handle(ready.ok);
}

bool EventLoop::Next(Turn& turn, Ready& ready) {
  for (;;) {
    if (!turn.put_off.empty()) {
      ready = turn.put_off.front();
      turn.put_off.pop_front();
      return true;
    }
    Retire(turn);
    const Outcome outcome = turn.leads ? Lead(turn, ready) : Join(turn, ready);
    if (outcome != Outcome::kNothing) return outcome == Outcome::kEvent;
  }
}

EventLoop::Outcome EventLoop::Join(Turn& turn, Ready& ready) {
  absl::MutexLock lock(&mutex_);
  while (taken_.empty() && leaders_ >= LeaderLimit() && !over_) {
    wake_.Wait(&mutex_);
  }
  const bool has_event = !taken_.empty();
  if (has_event) {
    ready = taken_.front();
    taken_.pop_front();
    turn.came_meanwhile = false;
  } else if (over_) {
    return Outcome::kOver;
  } else {
    ++leaders_;
    turn.leads = true;
    turn.was_long = false;
  }
  if (!taken_.empty() || leaders_ < LeaderLimit()) wake_.Signal();
  return has_event ? Outcome::kEvent : Outcome::kNothing;
}

void EventLoop::Retire(Turn& turn) {
  if (!turn.leads || leaders_ <= LeaderLimit()) return;
  absl::MutexLock lock(&mutex_);
  if (leaders_ <= LeaderLimit()) return;
  --leaders_;
  turn.leads = false;
}

EventLoop::Outcome EventLoop::Lead(Turn& turn, Ready& ready) {
  Outcome outcome = Outcome::kEvent;
  if (LeaderLimit() > 1) {
    turn.came_meanwhile = turn.was_long = false;
    outcome = LeadWithOthers(turn, ready);
  } else {
    std::array<Ready, kMaxTaken> taken;
    const size_t count = Wait(absl::MakeSpan(taken), turn);
    if (count == 0) outcome = Outcome::kOver;
    if (count > 0) ready = taken[0];
    if (count > 1) {
      const auto others = absl::MakeSpan(taken).subspan(1, count - 1);
      if (shares_events_) {
        PassLead(turn, others);
      } else {
        turn.put_off.insert(turn.put_off.end(), others.begin(), others.end());
      }
    }
  }
  if (outcome == Outcome::kOver) {
    absl::MutexLock lock(&mutex_);
    over_ = true;
    wake_.SignalAll();
  }
  return outcome;
}

EventLoop::Outcome EventLoop::LeadWithOthers(Turn& turn, Ready& ready) {
  grpc::CompletionQueue::NextStatus status;
  bool found = TakeOne(ready, status);
  if (!found && turn.found_with_others) {
    const absl::Time end = absl::Now() + poll_limit_.base();
    while (!found && status == grpc::CompletionQueue::TIMEOUT &&
           absl::Now() < end) {
      found = TakeOne(ready, status);
    }
  }
  if (!found && status == grpc::CompletionQueue::TIMEOUT) {
    found = TakeOne(ready, status, absl::Now() + kSharedWait);
  }
  turn.found_with_others = found;
  if (found) return Outcome::kEvent;
  return status == grpc::CompletionQueue::SHUTDOWN ? Outcome::kOver
                                                   : Outcome::kNothing;
}

void EventLoop::PassLead(Turn& turn, absl::Span<const Ready> others) {
  turn.leads = false;
  absl::MutexLock lock(&mutex_);
  taken_.insert(taken_.end(), others.begin(), others.end());
  taken_.insert(taken_.end(), turn.put_off.begin(), turn.put_off.end());
  turn.put_off.clear();
  --leaders_;
  wake_.Signal();
}

bool EventLoop::TakeOne(Ready& ready, grpc::CompletionQueue::NextStatus& status,
                        absl::Time deadline) {
  void* tag = nullptr;
  status = queue_->AsyncNext(
      &tag, &ready.ok,
      deadline == absl::InfinitePast()
          ? gpr_time_0(GPR_CLOCK_MONOTONIC)
          : grpc::TimePoint(absl::ToChronoTime(deadline)).raw_time());
  ready.event = static_cast<Event*>(tag);
  return status == grpc::CompletionQueue::GOT_EVENT;
}

size_t EventLoop::Wait(absl::Span<Ready> ready, Turn& turn) {
  const bool was_long = std::exchange(turn.was_long, false);
  grpc::CompletionQueue::NextStatus status;
  bool taken = TakeOne(ready[0], status);
  turn.came_meanwhile = taken && was_long;
  if (!taken) {
    const absl::Time begin = absl::Now();
    const absl::Time end = begin + poll_limit_.Get();
    absl::Time now = begin;
    while (!taken && status == grpc::CompletionQueue::TIMEOUT && now < end) {
      taken = TakeOne(ready[0], status);
      now = absl::Now();
    }
    if (!taken) {
      void* tag = nullptr;
      if (status == grpc::CompletionQueue::SHUTDOWN ||
          !queue_->Next(&tag, &ready[0].ok)) {
        return 0;
      }
      ready[0].event = static_cast<Event*>(tag);
      now = absl::Now();
    }
    poll_limit_.Note(now - begin);
  }
  size_t count = 1;
  while (count < ready.size() && TakeOne(ready[count], status)) ++count;
  return count;
}

}  // namespace attention
