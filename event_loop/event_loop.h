// The threads that wait for gRPC's events and handle them.
//
// gRPC's own callback threads hand the socket over to each other with every
// event, so each one finds its thread asleep and its caches cold, which costs a
// small call more than all else (server/bench/RESULTS.md). Here one thread
// leads while one call is under way: it waits, handles what comes, and waits
// again, and for a moment it looks for the next event without going to sleep.
// The others sleep until the lead is free. With more calls several threads wait
// at the same time, as each also reads from the sockets what its event brings.
#ifndef ATTENTION_EVENT_LOOP_EVENT_LOOP_H_
#define ATTENTION_EVENT_LOOP_EVENT_LOOP_H_

#include <atomic>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "event_loop/poll_limit.h"
#include "grpcpp/completion_queue.h"

namespace attention {

// What an operation of gRPC's is tagged with.
class Event {
 public:
  // For gRPC, when an operation is started.
  void* Tag() {
    started_.store(true, std::memory_order_release);
    return this;
  }

  // For the event loop.
  void Handle(bool ok) {
    // gRPC orders this after Tag, which sanitizers do not see.
    started_.load(std::memory_order_acquire);
    OnEvent(ok);
  }

 protected:
  ~Event() = default;

 private:
  // The operation is over. Of several events of one object any may be handled
  // first, and at the same time.
  virtual void OnEvent(bool ok) = 0;

  std::atomic<bool> started_ = false;
};

class EventLoop {
 public:
  struct Options {
    // At least 1. As many events are handled at the same time. At most half of
    // the threads wait for events.
    int thread_count = 1;
    // Whether events that come together are shared among threads. Otherwise the
    // thread that leads handles them one after the other, which saves waking
    // others, for loops that are several (see event_loops.h).
    bool shares_events = true;
    // How many calls are under way on all loops that belong together; null: on
    // this one.
    std::shared_ptr<std::atomic<int>> calls_under_way;
    // How long after an event the thread that leads looks for the next one
    // before it sleeps, several times as long while calls are that short (see
    // PollLimit); a processor is busy meanwhile. 0: not at all.
    absl::Duration poll_time;
  };

  // All tags of the queue are those of Events. No other thread may wait for it.
  EventLoop(std::unique_ptr<grpc::CompletionQueue> queue,
            const Options& options);
  // Shuts the queue down, handles the events that are left, and waits for the
  // threads. Nothing may be started on the queue any more.
  ~EventLoop();

  // What gRPC would start, which is enough: most of them sleep.
  static int DefaultThreadCount();
  // 100 us where there are more than 4 processors: on fewer, whoever is waited
  // for may need the one that would be kept busy.
  static absl::Duration DefaultPollTime();

  grpc::CompletionQueue* queue() { return queue_.get(); }

  // A call begins that will bring events, or is over.
  void Begin() ABSL_LOCKS_EXCLUDED(mutex_);
  void End();

  // For those who handle an event that someone else has caused: it brought
  // something to do.
  static void NoteArrival();
  // For those who handle an event, before they do something that takes long:
  // another thread takes the lead if, lately, more arrived meanwhile. Elsewhere
  // it does nothing.
  static void LetOthersPoll();
  // Whether so few calls are under way that the thread which handles an event
  // may do all that follows from it: otherwise it is one of those that read for
  // all, and what takes long is left to threads that do not. True elsewhere.
  static bool HasFewCalls();

 private:
  struct Ready {
    Event* event;
    bool ok;
  };
  // What a thread is at.
  struct Turn;
  enum class Outcome { kEvent, kNothing, kOver };

  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits for the next event that this thread is to handle; false when none is
  // left.
  bool Next(Turn& turn, Ready& ready) ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until this thread leads, or gets an event that another has taken:
  // then, and in the end, it does not lead.
  Outcome Join(Turn& turn, Ready& ready) ABSL_LOCKS_EXCLUDED(mutex_);
  // As Join, for a thread that leads: alone, or with others for a while.
  Outcome Lead(Turn& turn, Ready& ready) ABSL_LOCKS_EXCLUDED(mutex_);
  Outcome LeadWithOthers(Turn& turn, Ready& ready);
  // Leaves the lead if more threads have it than should.
  void Retire(Turn& turn) ABSL_LOCKS_EXCLUDED(mutex_);
  int LeaderLimit() const;
  // More would be in each other's way, and what they leave to others needs
  // threads as well.
  int MaxLeaders() const { return (thread_count_ + 1) / 2; }
  // Leaves the lead, these events and those that it has put off to others.
  void PassLead(Turn& turn, absl::Span<const Ready> others)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits for an event, and takes those that are there already. Returns how
  // many; 0 when the queue has been shut down and is empty.
  size_t Wait(absl::Span<Ready> ready, Turn& turn);
  // Waits until then; by default it only looks.
  bool TakeOne(Ready& ready, grpc::CompletionQueue::NextStatus& status,
               absl::Time deadline = absl::InfinitePast());

  const std::unique_ptr<grpc::CompletionQueue> queue_;
  const int thread_count_;
  const bool shares_events_;
  const std::shared_ptr<std::atomic<int>> all_under_way_;
  PollLimit poll_limit_;            // longer only for a thread that leads alone
  std::atomic<int> under_way_ = 0;  // calls
  // Long events that are yet to be handled without the lead.
  std::atomic<int> crowded_ = 0;

  absl::Mutex mutex_;
  absl::CondVar wake_;  // there is an event, or a lead to take
  std::deque<Ready> taken_ ABSL_GUARDED_BY(mutex_);  // not yet handled
  // Changed under the lock.
  std::atomic<int> leaders_ = 0;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

// What a stream that lasts counts for as calls under way: for as many as it has
// messages under way, which may be none. Part of a call that has begun and is
// not over. Not thread-safe.
class StreamLoad {
 public:
  explicit StreamLoad(EventLoop* loop) : loop_(loop) { loop_->End(); }
  ~StreamLoad() {
    loop_->Begin();
    while (message_count_ > 0) MessageEnds();
  }
  StreamLoad(const StreamLoad&) = delete;
  StreamLoad& operator=(const StreamLoad&) = delete;

  void MessageBegins() {
    ++message_count_;
    loop_->Begin();
  }
  void MessageEnds() {
    --message_count_;
    loop_->End();
  }

 private:
  EventLoop* const loop_;
  int message_count_ = 0;
};

}  // namespace attention

#endif  // ATTENTION_EVENT_LOOP_EVENT_LOOP_H_
