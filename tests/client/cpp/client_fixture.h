// What the tests of the client share.
#ifndef ATTENTION_TESTS_CLIENT_CPP_CLIENT_FIXTURE_H_
#define ATTENTION_TESTS_CLIENT_CPP_CLIENT_FIXTURE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/cpp/attention_client.h"
#include "client/cpp/client_factory.h"
#include "gtest/gtest.h"

namespace attention {

// Lets no time pass in waits, but says that it did.
class FakeClock : public CallClock {
 public:
  absl::Time Now() override {
    absl::MutexLock lock(&mutex_);
    return now_;
  }

  std::unique_ptr<Wait> RunAfter(absl::Duration delay,
                                 std::function<void()> callback) override {
    {
      absl::MutexLock lock(&mutex_);
      now_ += delay;
      delays_.push_back(delay);
    }
    return Real()->RunAfter(absl::ZeroDuration(), std::move(callback));
  }

  std::vector<absl::Duration> delays() {
    absl::MutexLock lock(&mutex_);
    return delays_;
  }

 private:
  absl::Mutex mutex_;
  absl::Time now_ ABSL_GUARDED_BY(mutex_) = absl::UnixEpoch();
  std::vector<absl::Duration> delays_ ABSL_GUARDED_BY(mutex_);
};

// A float16 request whose query, key and value are `bytes`.
inline AttentionRequest MakeRequest(const std::string& bytes) {
  AttentionRequest request;
  request.data_type = DataType::kFloat16;
  const auto count = static_cast<int64_t>(bytes.size() / 2);
  request.query = TensorView::Contiguous(bytes.data(), {1, count, 1, 1}, 2);
  request.key = request.value = request.query;
  return request;
}

class AttentionClientTest : public testing::Test {
 protected:
  std::unique_ptr<Client> Connect(const std::string& target,
                                  Client::Options options = {}) {
    options.target = target;
    auto client = CreateClient(options, RetryPolicy(), &clock_);
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }

  FakeClock clock_;
  const std::string bytes_ = "some elements!";
  const AttentionRequest request_ = MakeRequest(bytes_);
};

}  // namespace attention

#endif  // ATTENTION_TESTS_CLIENT_CPP_CLIENT_FIXTURE_H_
