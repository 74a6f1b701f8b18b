#include "server/lifecycle/signals.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <utility>

namespace attention {

absl::StatusOr<std::unique_ptr<SignalWatcher>> SignalWatcher::Create(
    std::function<void(int signal)> on_repeat) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  if (const int error = pthread_sigmask(SIG_BLOCK, &signals, nullptr);
      error != 0) {
    return absl::ErrnoToStatus(error, "cannot block signals");
  }
  const int signal_fd = signalfd(-1, &signals, SFD_CLOEXEC);
  if (signal_fd < 0) return absl::ErrnoToStatus(errno, "signalfd");
  const int stop_fd = eventfd(0, EFD_CLOEXEC);
  if (stop_fd < 0) {
    const int error = errno;
    close(signal_fd);
    return absl::ErrnoToStatus(error, "eventfd");
  }
  return std::unique_ptr<SignalWatcher>(
      new SignalWatcher(signal_fd, stop_fd, std::move(on_repeat)));
}

SignalWatcher::SignalWatcher(int signal_fd, int stop_fd,
                             std::function<void(int signal)> on_repeat)
    : signal_fd_(signal_fd),
      stop_fd_(stop_fd),
      on_repeat_(std::move(on_repeat)),
      thread_([this] { Run(); }) {}

SignalWatcher::~SignalWatcher() {
  const uint64_t one = 1;
  // Cannot fail: the counter is far from its maximum.
  [[maybe_unused]] const ssize_t written = write(stop_fd_, &one, sizeof(one));
  thread_.join();
  close(stop_fd_);
  close(signal_fd_);
}

int SignalWatcher::Wait(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto arrived = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return first_ != 0;
  };
  mutex_.AwaitWithTimeout(absl::Condition(&arrived), timeout);
  return first_;
}

void SignalWatcher::Run() {
  for (;;) {
    pollfd fds[2] = {{signal_fd_, POLLIN, 0}, {stop_fd_, POLLIN, 0}};
    if (poll(fds, 2, -1) < 0) {
      if (errno == EINTR) continue;
      return;
    }
    if (fds[1].revents != 0) return;
    signalfd_siginfo info;
    if (read(signal_fd_, &info, sizeof(info)) != sizeof(info)) continue;
    const int signal = static_cast<int>(info.ssi_signo);
    bool repeated;
    {
      absl::MutexLock lock(&mutex_);
      repeated = first_ != 0;
      if (!repeated) first_ = signal;
    }
    if (repeated) on_repeat_(signal);
  }
}

}  // namespace attention
