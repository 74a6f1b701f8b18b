#include "tests/server/lifecycle/breaking_proxy.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace attention::test {
namespace {

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

}  // namespace

BreakingProxy::BreakingProxy(const std::string& target,
                             std::deque<Limits> limits)
    : target_(target), limits_(std::move(limits)) {
  listener_ = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(bind(listener_, generic, size), 0);
  EXPECT_EQ(listen(listener_, 16), 0);
  EXPECT_EQ(getsockname(listener_, generic, &size), 0);
  address_ = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  acceptor_ = std::thread([this] { Accept(); });
}

BreakingProxy::~BreakingProxy() {
  shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  std::vector<std::thread> threads;
  {
    absl::MutexLock lock(&mutex_);
    for (int socket : sockets_) shutdown(socket, SHUT_RDWR);
    threads = std::move(threads_);
  }
  for (std::thread& thread : threads) thread.join();
  absl::MutexLock lock(&mutex_);
  for (int socket : sockets_) close(socket);
  close(listener_);
}

size_t BreakingProxy::connection_count() const {
  absl::MutexLock lock(&mutex_);
  return sockets_.size() / 2;
}

void BreakingProxy::Accept() {
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(target_.substr(target_.rfind(':') + 1), &port));
  for (;;) {
    const int client = accept(listener_, nullptr, nullptr);
    if (client < 0) return;
    const int server = socket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in address = Loopback(port);
    EXPECT_EQ(connect(server, reinterpret_cast<const sockaddr*>(&address),
                      sizeof(address)),
              0);
    absl::MutexLock lock(&mutex_);
    Limits limits;
    if (!limits_.empty()) {
      limits = limits_.front();
      limits_.pop_front();
    }
    sockets_.push_back(client);
    sockets_.push_back(server);
    threads_.emplace_back([=, this] {
      Forward(client, server, limits.to_server, limits.hold_to_server);
    });
    threads_.emplace_back(
        [=, this] { Forward(server, client, limits.to_client, ~size_t{0}); });
  }
}

void BreakingProxy::Forward(int from, int to, size_t limit, size_t hold) {
  std::vector<char> buffer(64 << 10);
  while (limit > 0) {
    const ssize_t received =
        recv(from, buffer.data(), std::min({buffer.size(), limit, hold}), 0);
    if (received <= 0) break;
    limit -= static_cast<size_t>(received);
    hold -= static_cast<size_t>(received);
    for (ssize_t sent = 0; sent < received;) {
      const ssize_t n =
          send(to, buffer.data() + sent, static_cast<size_t>(received - sent),
               MSG_NOSIGNAL);
      if (n <= 0) break;
      sent += n;
    }
    if (hold == 0) {
      held_.Notify();
      released_.WaitForNotification();
      hold = ~size_t{0};
    }
  }
  // Both directions: the connection is gone.
  shutdown(from, SHUT_RDWR);
  shutdown(to, SHUT_RDWR);
}

}  // namespace attention::test
