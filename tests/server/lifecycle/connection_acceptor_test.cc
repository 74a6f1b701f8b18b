#include "server/lifecycle/connection_acceptor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace attention {
namespace {

using ::testing::HasSubstr;

// Keeps the connections.
class Connections {
 public:
  ~Connections() {
    for (int fd : fds_) close(fd);
  }

  void Add(int fd) {
    absl::MutexLock lock(&mutex_);
    fds_.push_back(fd);
  }

  // Blocks until there are so many.
  void Await(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return fds_.size() >= count;
    };
    mutex_.Await(absl::Condition(&there));
  }

  int Last() {
    absl::MutexLock lock(&mutex_);
    return fds_.back();
  }

 private:
  absl::Mutex mutex_;
  std::vector<int> fds_ ABSL_GUARDED_BY(mutex_);
};

class Target : public ConnectionAcceptor::Target {
 public:
  explicit Target(Connections* connections) : connections_(connections) {}

 private:
  void HandleNewConnection(NewConnectionParameters* connection) override {
    connections_->Add(connection->fd);
  }

  Connections* const connections_;
};

class ConnectionAcceptorTest : public ::testing::Test {
 protected:
  ConnectionAcceptorTest() {
    std::string pattern = testing::TempDir() + "attention-XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~ConnectionAcceptorTest() override {
    acceptor_.reset();
    rmdir(folder_.c_str());
  }

  std::string Path(int i) const { return folder_ + "/" + std::to_string(i); }

  std::vector<Listener> Open(int count) {
    std::vector<Listener> listeners;
    for (int i = 0; i < count; ++i) {
      auto listener = Listener::Open(*ParseListenAddress("unix:" + Path(i)));
      EXPECT_TRUE(listener.ok()) << listener.status();
      listeners.push_back(*std::move(listener));
    }
    return listeners;
  }

  void Start(std::vector<Listener> listeners) {
    auto acceptor = ConnectionAcceptor::Start(
        std::move(listeners), std::make_unique<Target>(&connections_));
    ASSERT_TRUE(acceptor.ok()) << acceptor.status();
    acceptor_ = *std::move(acceptor);
  }

  static int NewSocket() { return socket(AF_UNIX, SOCK_STREAM, 0); }

  bool Connect(int fd, int i) {
    sockaddr_un name = {};
    name.sun_family = AF_UNIX;
    Path(i).copy(name.sun_path, sizeof(name.sun_path) - 1);
    return connect(fd, reinterpret_cast<sockaddr*>(&name), sizeof(name)) == 0;
  }

  std::string folder_;
  Connections connections_;
  std::unique_ptr<ConnectionAcceptor> acceptor_;
};

TEST_F(ConnectionAcceptorTest, AcceptsOnEveryListener) {
  std::vector<Listener> listeners = Open(2);
  const int early = NewSocket();
  EXPECT_TRUE(Connect(early, 1));  // waits
  Start(std::move(listeners));
  connections_.Await(1);
  const int late = NewSocket();
  EXPECT_TRUE(Connect(late, 0));
  connections_.Await(2);
  EXPECT_EQ(send(late, "x", 1, 0), 1);
  char byte = 0;
  EXPECT_EQ(recv(connections_.Last(), &byte, 1, 0), 1);
  EXPECT_EQ(byte, 'x');
  close(early);
  close(late);
}

TEST_F(ConnectionAcceptorTest, RefusesConnectionsOnceItIsGone) {
  Start(Open(1));
  const int before = NewSocket();
  EXPECT_TRUE(Connect(before, 0));
  connections_.Await(1);
  acceptor_.reset();
  const int after = NewSocket();
  EXPECT_FALSE(Connect(after, 0));
  EXPECT_NE(access(Path(0).c_str(), F_OK), 0);
  // Connections that were accepted stay.
  EXPECT_EQ(send(before, "x", 1, 0), 1);
  char byte = 0;
  EXPECT_EQ(recv(connections_.Last(), &byte, 1, 0), 1);
  close(before);
  close(after);
}

TEST_F(ConnectionAcceptorTest, GoesOnWhenThereAreDescriptorsAgain) {
  Start(Open(1));
  int log[2];
  ASSERT_EQ(pipe(log), 0);
  const int standard_error = dup(STDERR_FILENO);
  const int client = NewSocket();
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  rlimit none = limit;
  none.rlim_cur = static_cast<rlim_t>(client);  // all below are taken
  ASSERT_EQ(dup2(log[1], STDERR_FILENO), STDERR_FILENO);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_TRUE(Connect(client, 0));  // the kernel keeps it
  std::string text(1000, 0);
  EXPECT_GT(read(log[0], text.data(), text.size()), 0);  // once it has failed
  EXPECT_THAT(text, HasSubstr("cannot accept connections"));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  dup2(standard_error, STDERR_FILENO);
  connections_.Await(1);
  for (int fd : {log[0], log[1], standard_error, client}) close(fd);
}

}  // namespace
}  // namespace attention
