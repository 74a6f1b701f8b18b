// The channels of a client, which take turns, and the event loop of each.
#ifndef ATTENTION_CLIENT_CPP_STUB_POOL_H_
#define ATTENTION_CLIENT_CPP_STUB_POOL_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "event_loop/event_loops.h"
#include "grpcpp/channel.h"
#include "grpcpp/generic/generic_stub.h"

namespace attention {

// Thread-safe.
class StubPool {
 public:
  struct Entry {
    std::unique_ptr<grpc::GenericStub> stub;
    EventLoop* loop;
  };

  // `loops` outlive the pool.
  StubPool(const std::vector<std::shared_ptr<grpc::Channel>>& channels,
           const EventLoops& loops) {
    for (size_t i = 0; i < channels.size(); ++i) {
      entries_.push_back(
          {std::make_unique<grpc::GenericStub>(channels[i]), &loops.at(i)});
    }
  }

  const Entry& Next() {
    // Only spreads load: no order with anything else is needed.
    return entries_[next_.fetch_add(1, std::memory_order_relaxed) %
                    entries_.size()];
  }

 private:
  std::vector<Entry> entries_;
  std::atomic<size_t> next_ = 0;
};

}  // namespace attention

#endif  // ATTENTION_CLIENT_CPP_STUB_POOL_H_
