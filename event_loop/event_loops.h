// Event loops, each with a completion queue, threads and sockets of its own.
//
// gRPC's default way to poll, epoll1, has one set of sockets for the whole
// process, in which one thread waits and reads at a time, whatever queue it
// waits for: several loops only hand the sockets over to each other, so that
// there is one. With GRPC_POLL_STRATEGY=poll each queue has the sockets of its
// own connections, and loops read at the same time. It costs a system call that
// gets longer with the number of connections.
#ifndef ATTENTION_EVENT_LOOP_EVENT_LOOPS_H_
#define ATTENTION_EVENT_LOOP_EVENT_LOOPS_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "event_loop/event_loop.h"
#include "grpcpp/completion_queue.h"

namespace attention {

// Most of one process: each has threads.
inline constexpr int kMaxEventLoops = 64;

class EventLoops {
 public:
  // One for each queue, at least one.
  EventLoops(std::vector<std::unique_ptr<grpc::CompletionQueue>> queues,
             absl::Duration poll_time);

  // Those of all who ask for the same time at the same time, DefaultCount().
  static std::shared_ptr<EventLoops> Shared(absl::Duration poll_time);

  // How many a process should have: one for each 4 processors, at most 8, where
  // queues have sockets of their own, otherwise one.
  static int DefaultCount();
  // Makes gRPC give queues sockets of their own where that is worth it, on 8
  // processors or more, unless the environment has GRPC_POLL_STRATEGY already.
  // For programs, before they use gRPC and have threads.
  static void SeparateSockets();

  size_t size() const { return loops_.size(); }
  // That of the index modulo their number.
  EventLoop& at(size_t index) const { return *loops_[index % loops_.size()]; }

 private:
  std::vector<std::unique_ptr<EventLoop>> loops_;
};

}  // namespace attention

#endif  // ATTENTION_EVENT_LOOP_EVENT_LOOPS_H_
