#include "tests/server/engine/fake_streams.h"

#include <gtest/gtest.h>

#include <deque>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace attention::test {
namespace {

// Over all streams and events, also while operations run.
ABSL_CONST_INIT absl::Mutex mutex(absl::kConstInit);
StreamPace current_pace ABSL_GUARDED_BY(mutex) = StreamPace::kLate;

std::set<FakeOperations*>& AllStreams() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
  static auto* const streams = new std::set<FakeOperations*>;
  return *streams;
}

}  // namespace

// What a stream has been given.
struct FakeOperations {
  struct Operation {
    std::function<void()> run;
    // Or it waits until so many of that stream are done.
    std::shared_ptr<FakeOperations> awaited;
    int64_t awaited_end = 0;

    bool is_blocked() const {
      return awaited != nullptr && awaited->done < awaited_end;
    }
  };

  int64_t end() const { return done + static_cast<int64_t>(pending.size()); }

  void RunUntil(int64_t until) {
    while (done < until && !pending.empty()) {
      const Operation& next = pending.front();
      if (next.is_blocked()) next.awaited->RunUntil(next.awaited_end);
      RunNext();
    }
  }
  void RunUnlessBlocked() {
    while (!pending.empty() && !pending.front().is_blocked()) RunNext();
  }
  void RunNext() {
    const Operation next = std::move(pending.front());
    pending.pop_front();
    if (next.run) next.run();
    ++done;
  }
  // To be called after anything has been added.
  void KeepPace() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (current_pace == StreamPace::kEarly) RunUntil(end());
  }

  std::deque<Operation> pending;
  int64_t done = 0;
};

void SetStreamPace(StreamPace pace) {
  absl::MutexLock lock(&mutex);
  current_pace = pace;
}

bool FakeEvent::has_happened() const {
  absl::MutexLock lock(&mutex);
  return operations_ != nullptr && operations_->done >= end_;
}

FakeStream::FakeStream() : operations_(std::make_shared<FakeOperations>()) {
  absl::MutexLock lock(&mutex);
  AllStreams().insert(operations_.get());
}

FakeStream::~FakeStream() {
  absl::MutexLock lock(&mutex);
  EXPECT_TRUE(operations_->pending.empty()) << "not waited for";
  AllStreams().erase(operations_.get());
}

void FakeStream::Enqueue(std::function<void()> operation) {
  absl::MutexLock lock(&mutex);
  operations_->pending.push_back({.run = std::move(operation)});
  operations_->KeepPace();
}

void FakeStream::Record(FakeEvent& event) {
  absl::MutexLock lock(&mutex);
  event.operations_ = operations_;
  event.end_ = operations_->end();
}

void FakeStream::Wait(const FakeEvent& event) {
  absl::MutexLock lock(&mutex);
  if (event.operations_ == nullptr) return;  // as CUDA
  operations_->pending.push_back(
      {.awaited = event.operations_, .awaited_end = event.end_});
  operations_->KeepPace();
}

void FakeStream::Run() {
  absl::MutexLock lock(&mutex);
  if (current_pace == StreamPace::kOthersFirst) {
    for (FakeOperations* other : AllStreams()) {
      if (other != operations_.get()) other->RunUnlessBlocked();
    }
  }
  operations_->RunUntil(operations_->end());
}

void FakeStream::Discard() {
  absl::MutexLock lock(&mutex);
  operations_->done = operations_->end();
  operations_->pending.clear();
}

}  // namespace attention::test
