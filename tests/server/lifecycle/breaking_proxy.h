// Forwards TCP connections and breaks or holds them where a test says.
#ifndef ATTENTION_TESTS_SERVER_LIFECYCLE_BREAKING_PROXY_H_
#define ATTENTION_TESTS_SERVER_LIFECYCLE_BREAKING_PROXY_H_

#include <cstddef>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

namespace attention::test {

class BreakingProxy {
 public:
  // After how many bytes of either direction a connection breaks, and after how
  // many to the server it stands still until Release().
  struct Limits {
    size_t to_server = ~size_t{0};
    size_t to_client = ~size_t{0};
    size_t hold_to_server = ~size_t{0};
  };

  // Listens on a free port of the loopback; the limits are those of the first
  // connections, further ones do not break.
  BreakingProxy(const std::string& target, std::deque<Limits> limits);
  ~BreakingProxy();

  const std::string& address() const { return address_; }
  size_t connection_count() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns when a connection stands still.
  void AwaitHeld() { held_.WaitForNotification(); }
  // Call once.
  void Release() { released_.Notify(); }

 private:
  void Accept();
  void Forward(int from, int to, size_t limit, size_t hold);

  const std::string target_;
  int listener_ = -1;
  std::string address_;
  mutable absl::Mutex mutex_;
  std::deque<Limits> limits_ ABSL_GUARDED_BY(mutex_);
  std::vector<int> sockets_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
  absl::Notification held_;
  absl::Notification released_;
  std::thread acceptor_;
};

}  // namespace attention::test

#endif  // ATTENTION_TESTS_SERVER_LIFECYCLE_BREAKING_PROXY_H_
