#include "server/lifecycle/connection_acceptor.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace attention {
namespace {

// How long a machine without free descriptors or memory is left alone.
constexpr absl::Duration kRetryDelay = absl::Milliseconds(100);

}  // namespace

absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> ConnectionAcceptor::Start(
    std::vector<Listener> listeners, std::unique_ptr<Target> target) {
  const int stop_fd = eventfd(0, EFD_CLOEXEC);
  if (stop_fd < 0) return absl::ErrnoToStatus(errno, "eventfd");
  return std::unique_ptr<ConnectionAcceptor>(
      new ConnectionAcceptor(std::move(listeners), std::move(target), stop_fd));
}

ConnectionAcceptor::ConnectionAcceptor(std::vector<Listener> listeners,
                                       std::unique_ptr<Target> target,
                                       int stop_fd)
    : listeners_(std::move(listeners)),
      target_(std::move(target)),
      stop_fd_(stop_fd),
      thread_([this] { Run(); }) {}

ConnectionAcceptor::~ConnectionAcceptor() {
  const uint64_t one = 1;
  // Cannot fail: the counter is far from its maximum.
  [[maybe_unused]] const ssize_t written = write(stop_fd_, &one, sizeof(one));
  thread_.join();
  close(stop_fd_);
}

void ConnectionAcceptor::Run() {
  std::vector<pollfd> polled = {{stop_fd_, POLLIN, 0}};
  for (const Listener& listener : listeners_) {
    for (int socket : listener.sockets()) polled.push_back({socket, POLLIN, 0});
  }
  for (;;) {
    if (poll(polled.data(), polled.size(), -1) < 0) continue;  // interrupted
    if (polled[0].revents != 0) return;
    for (size_t i = 1; i < polled.size(); ++i) {
      if (polled[i].revents == 0 || Accept(polled[i].fd)) continue;
      poll(polled.data(), 1,
           static_cast<int>(absl::ToInt64Milliseconds(kRetryDelay)));
    }
  }
}

bool ConnectionAcceptor::Accept(int socket) {
  Target::NewConnectionParameters connection;
  connection.listener_fd = socket;
  connection.fd =
      accept4(socket, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (connection.fd >= 0) {
    target_->HandleNewConnection(&connection);
    return true;
  }
  // Whoever connected has left again.
  if (errno == EAGAIN || errno == ECONNABORTED || errno == EINTR) return true;
  log_.Warn("cannot accept connections", "accept",
            absl::ErrnoToStatus(errno, "accept"));
  return false;
}

}  // namespace attention
