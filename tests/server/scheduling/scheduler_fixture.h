// A scheduler with a fake clock, puppet devices and probes for callers.
#ifndef ATTENTION_TESTS_SERVER_SCHEDULING_SCHEDULER_FIXTURE_H_
#define ATTENTION_TESTS_SERVER_SCHEDULING_SCHEDULER_FIXTURE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
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

// Checks at the end of every test that each accepted work was answered exactly
// once and that the queue's gauges are back at 0.
class SchedulerFixture : public testing::Test {
 protected:
  void Start(const Scheduler::Options& options, int device_count = 1,
             int slot_count = 1) {
    std::vector<Device*> devices;
    for (int i = 0; i < device_count; ++i) {
      devices_.push_back(std::make_unique<PuppetDevice>(
          absl::StrCat("puppet:", i), slot_count));
      devices.push_back(devices_.back().get());
    }
    auto scheduler =
        Scheduler::Create(options, std::move(devices), &metrics_, &clock_);
    ASSERT_TRUE(scheduler.ok()) << scheduler.status();
    scheduler_ = *std::move(scheduler);
  }

  // Answers everything and stops the scheduler.
  void Stop() {
    while (FinishAny()) {
    }
    scheduler_.reset();
  }

  void TearDown() override {
    Stop();
    for (const Probe& probe : probes_) EXPECT_EQ(probe.answers(), 1);
    EXPECT_EQ(reader_.Sum("attention_queue_requests"), 0);
    EXPECT_EQ(reader_.Sum("attention_queue_bytes"), 0);
  }

  struct Queued {
    Probe* probe;
    WorkId id;
  };

  // A work that is accepted.
  Queued Enqueue(const WorkSpec& spec, std::function<void()> on_answer = {}) {
    Probe& probe = probes_.emplace_back();
    auto work = probe.Attach(MakeWork(spec), std::move(on_answer));
    const absl::StatusOr<WorkId> id = scheduler_->Enqueue(work);
    EXPECT_TRUE(id.ok()) << id.status();
    if (!id.ok()) {
      probes_.pop_back();
      return {nullptr, 0};
    }
    EXPECT_EQ(work, nullptr);
    return {&probe, *id};
  }

  // A work that is refused; checks that it stays the caller's, unanswered.
  absl::Status Refused(const WorkSpec& spec) {
    Probe probe;
    auto work = probe.Attach(MakeWork(spec));
    const absl::StatusOr<WorkId> id = scheduler_->Enqueue(work);
    EXPECT_FALSE(id.ok());
    EXPECT_NE(work, nullptr);
    EXPECT_EQ(work->arrival_time, absl::InfinitePast());
    EXPECT_EQ(probe.answers(), 0);
    return id.status();
  }

  bool FinishAny() {
    for (const auto& device : devices_) {
      if (device->Finish()) return true;
    }
    return false;
  }

  PuppetDevice& device(size_t index = 0) { return *devices_[index]; }

  // Tokens of the works in each batch of a device, in order.
  std::vector<std::vector<int64_t>> Batches(size_t index = 0) {
    std::vector<std::vector<int64_t>> batches;
    for (const auto& record : device(index).records()) {
      batches.push_back(record.query_tokens);
    }
    return batches;
  }

  double Refusals(const std::string& reason) {
    return reader_.Value("attention_refused_total", {{"reason", reason}})
        .value_or(-1);
  }
  double Drops(const std::string& reason) {
    return reader_.Value("attention_dropped_total", {{"reason", reason}})
        .value_or(-1);
  }
  double QueuedRequests() { return reader_.Sum("attention_queue_requests"); }
  double QueuedBytes() { return reader_.Sum("attention_queue_bytes"); }

  FakeClock clock_;
  Metrics metrics_{Metrics::Options{}};
  MetricReader reader_{metrics_};
  std::vector<std::unique_ptr<PuppetDevice>> devices_;
  std::deque<Probe> probes_;
  std::unique_ptr<Scheduler> scheduler_;
};

}  // namespace attention

#endif  // ATTENTION_TESTS_SERVER_SCHEDULING_SCHEDULER_FIXTURE_H_
