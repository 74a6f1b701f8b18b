// Many threads that enqueue, cancel, let expire, finish, fail and drain at the
// same time. Meant for ThreadSanitizer and AddressSanitizer, and checks that
// every work has exactly one end, everywhere the same one.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/engine/error_reason.h"
#include "server/metrics/metrics.h"
#include "server/scheduling/scheduler.h"
#include "tests/server/metrics/metric_reader.h"
#include "tests/server/scheduling/probe.h"
#include "tests/support/fake_clock.h"
#include "tests/support/puppet_device.h"

namespace attention {
namespace {

constexpr int kCallers = 4;
constexpr int kRequestsPerCaller = 1500;

class SchedulerStormTest : public testing::Test {
 protected:
  struct Request {
    Probe probe;
    absl::Time deadline;
    bool accepted = false;
    absl::Status refusal;
  };

  void Start(const Scheduler::Options& options) {
    auto scheduler = Scheduler::Create(
        options, {devices_[0].get(), devices_[1].get()}, &metrics_, &clock_);
    ASSERT_TRUE(scheduler.ok()) << scheduler.status();
    scheduler_ = *std::move(scheduler);
    for (const auto& device : devices_) {
      helpers_.emplace_back([this, device = device.get()] {
        while (!stop_) {
          if (!device->Finish(device->health())) std::this_thread::yield();
        }
      });
    }
    helpers_.emplace_back([this] {
      while (!stop_) {
        clock_.Advance(absl::Microseconds(200));
        std::this_thread::yield();
      }
    });
  }

  // Enqueues and cancels from several threads, one of which does `midway` when
  // it is half through; returns when all are.
  void Storm(std::function<void()> midway = [] {}) {
    std::vector<std::thread> callers;
    for (int c = 0; c < kCallers; ++c) {
      callers.emplace_back([this, c, &midway] {
        Call(c, 0, kRequestsPerCaller / 2);
        if (c == 0) midway();
        Call(c, kRequestsPerCaller / 2, kRequestsPerCaller);
      });
    }
    for (std::thread& caller : callers) caller.join();
  }

  void Call(int caller, int begin, int end) {
    std::mt19937_64 random(static_cast<uint64_t>(caller + begin));
    std::vector<WorkId> ids;
    for (int i = begin; i < end; ++i) {
      Request& request = requests_[caller * kRequestsPerCaller + i];
      request.deadline =
          random() % 2 == 0
              ? absl::InfiniteFuture()
              : clock_.Now() + absl::Microseconds(100 * (random() % 40));
      const int required_device = static_cast<int>(random() % 4) - 1;
      const bool is_resident = required_device >= 0 && random() % 2 == 0;
      auto work = request.probe.Attach(
          MakeWork({.config = 1 + static_cast<int>(random() % 5),
                    .bytes = random() % 300,
                    .tokens = static_cast<int64_t>(random() % 10),
                    .deadline = request.deadline,
                    .required_device = required_device,
                    .page_tokens = is_resident ? 16 : 0}));
      const auto id = scheduler_->Enqueue(work);
      request.accepted = id.ok();
      EXPECT_EQ(work == nullptr, id.ok());
      if (id.ok()) {
        ids.push_back(*id);
      } else {
        request.refusal = id.status();
        std::this_thread::yield();
      }
      // Of any age: queued, running, answered.
      if (!ids.empty() && random() % 3 == 0) {
        scheduler_->Cancel(ids[random() % ids.size()]);
      }
      if (!ids.empty() && random() % 3 == 0) scheduler_->Cancel(ids.back());
      if (random() % 16 == 0) scheduler_->RetryDelay();
    }
  }

  void StopHelpers() {
    stop_ = true;
    for (std::thread& helper : helpers_) helper.join();
    helpers_.clear();
  }

  struct Ends {
    int ok = 0, device_error = 0, cancelled = 0, expired = 0, draining = 0,
        stranded = 0, refused = 0;
  };

  // Checks each request and counts how they ended.
  Ends Count() {
    Ends ends;
    for (const Request& request : requests_) {
      EXPECT_EQ(request.probe.answers(), request.accepted ? 1 : 0);
      if (!request.accepted) {
        ++ends.refused;
        EXPECT_FALSE(ReasonOf(request.refusal).empty());
        continue;
      }
      const absl::Status status = request.probe.Await();
      const std::string_view reason = ReasonOf(status);
      if (status.ok()) {
        ++ends.ok;
        EXPECT_LT(request.probe.start_time(), request.deadline);
      } else if (reason == error_reason::kCancelled) {
        ++ends.cancelled;
      } else if (reason == error_reason::kDeadlineExceeded) {
        ++ends.expired;
      } else if (reason == error_reason::kDraining) {
        ++ends.draining;
      } else if (reason == error_reason::kDeviceFailed) {
        ++ends.stranded;
      } else {
        ++ends.device_error;
      }
    }
    return ends;
  }

  // That no number is missing; returns how many there are. Batches may arrive
  // in another order.
  static size_t CheckNumbers(const std::vector<PuppetDevice::Record>& records) {
    std::set<uint64_t> numbers;
    size_t count = 0;
    for (const auto& record : records) {
      if (!record.kv_batch_number.has_value()) continue;
      numbers.insert(*record.kv_batch_number);
      ++count;
    }
    EXPECT_EQ(numbers.size(), count);
    if (count > 0) {
      EXPECT_EQ(*numbers.rbegin(), count - 1);
    }
    return count;
  }

  void CheckConservation(const Ends& ends) {
    EXPECT_EQ(ends.ok + ends.device_error + ends.cancelled + ends.expired +
                  ends.draining + ends.stranded + ends.refused,
              kCallers * kRequestsPerCaller);
    const auto dropped = [this](const char* reason) {
      return reader_.Value("attention_dropped_total", {{"reason", reason}});
    };
    EXPECT_EQ(dropped("cancelled"), ends.cancelled);
    EXPECT_EQ(dropped("deadline"), ends.expired);
    EXPECT_EQ(dropped("draining"), ends.draining);
    EXPECT_EQ(dropped("device_failed"), ends.stranded);
    EXPECT_EQ(reader_.Sum("attention_refused_total"), ends.refused);
    EXPECT_EQ(reader_.Sum("attention_queue_requests"), 0);
    EXPECT_EQ(reader_.Sum("attention_queue_bytes"), 0);
    size_t ran = 0;
    size_t resident_batches = 0;
    for (size_t i = 0; i < devices_.size(); ++i) {
      EXPECT_EQ(devices_[i]->in_flight(), 0u);
      for (const auto& record : devices_[i]->records()) {
        EXPECT_LE(record.query_tokens.size(), 8u);
        EXPECT_TRUE(record.required_device == kAnyDevice ||
                    record.required_device == static_cast<int>(i));
        ran += record.query_tokens.size();
      }
      resident_batches += CheckNumbers(devices_[i]->records());
    }
    EXPECT_GT(resident_batches, 0u);
    EXPECT_EQ(ran, static_cast<size_t>(ends.ok + ends.device_error));
  }

  FakeClock clock_;
  Metrics metrics_{Metrics::Options{}};
  MetricReader reader_{metrics_};
  std::vector<Request> requests_{kCallers * kRequestsPerCaller};
  std::vector<std::unique_ptr<PuppetDevice>> devices_ = [] {
    std::vector<std::unique_ptr<PuppetDevice>> devices;
    devices.push_back(std::make_unique<PuppetDevice>("puppet:0", 2));
    devices.push_back(std::make_unique<PuppetDevice>("puppet:1", 1));
    return devices;
  }();
  std::atomic<bool> stop_ = false;
  std::vector<std::thread> helpers_;
  std::unique_ptr<Scheduler> scheduler_;
};

class SchedulerStormDelayTest
    : public SchedulerStormTest,
      public testing::WithParamInterface<absl::Duration> {};

INSTANTIATE_TEST_SUITE_P(Delays, SchedulerStormDelayTest,
                         testing::Values(absl::ZeroDuration(),
                                         absl::Microseconds(500)),
                         [](const auto& info) {
                           return absl::StrCat(
                               absl::ToInt64Microseconds(info.param), "us");
                         });

TEST_P(SchedulerStormDelayTest, EveryWorkEndsOnce) {
  Start({.max_batch_requests = 8,
         .max_batch_bytes = 1000,
         .max_queue_delay = GetParam(),
         .max_queued_requests = 64,
         .max_queued_bytes = 5000});
  Storm();
  EXPECT_TRUE(scheduler_->Drain(absl::InfiniteFuture()));
  StopHelpers();
  scheduler_.reset();
  const Ends ends = Count();
  CheckConservation(ends);
  EXPECT_EQ(ends.draining + ends.stranded + ends.device_error, 0);
  EXPECT_GT(ends.ok, 0);
}

TEST_F(SchedulerStormTest, OneDeviceFailsInTheMiddle) {
  Start({.max_batch_requests = 8, .max_queued_requests = 64});
  Storm([this] { devices_[1]->SetHealth(absl::UnavailableError("failed")); });
  EXPECT_TRUE(scheduler_->Drain(absl::InfiniteFuture()));
  StopHelpers();
  scheduler_.reset();
  const Ends ends = Count();
  CheckConservation(ends);
  EXPECT_EQ(ends.draining, 0);
  EXPECT_GT(ends.ok, kRequestsPerCaller / 8);
  EXPECT_GE(ends.refused, kRequestsPerCaller / 8);
}

TEST_F(SchedulerStormTest, DevicesFailInTheMiddle) {
  Start({.max_batch_requests = 8, .max_queued_requests = 64});
  Storm([this] {
    for (const auto& device : devices_) {
      device->SetHealth(absl::UnavailableError("failed"));
    }
  });
  StopHelpers();
  for (const auto& device : devices_) {
    while (device->Finish(device->health())) {
    }
  }
  scheduler_.reset();
  const Ends ends = Count();
  CheckConservation(ends);
  EXPECT_EQ(ends.draining, 0);
  EXPECT_GT(ends.ok + ends.device_error, 0);
  EXPECT_GE(ends.refused, kRequestsPerCaller / 2);
}

TEST_F(SchedulerStormTest, DrainsInTheMiddle) {
  Start({.max_batch_requests = 8, .max_queued_requests = 64});
  Storm([this] { scheduler_->Drain(clock_.Now() + absl::Milliseconds(1)); });
  scheduler_.reset();  // devices may still be busy
  StopHelpers();
  const Ends ends = Count();
  CheckConservation(ends);
  EXPECT_EQ(ends.stranded + ends.device_error, 0);
  EXPECT_GT(ends.ok, 0);
  EXPECT_GE(ends.refused, kRequestsPerCaller / 2);
}

}  // namespace
}  // namespace attention
