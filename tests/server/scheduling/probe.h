// A request as its caller sees it.
#ifndef ATTENTION_TESTS_SERVER_SCHEDULING_PROBE_H_
#define ATTENTION_TESTS_SERVER_SCHEDULING_PROBE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/engine/attention_work.h"

namespace attention {

// Different `variant`s are different configurations.
inline HeadConfig TestConfig(int variant) {
  return {.head_dim_qk = variant,
          .head_dim_v = 64,
          .query_head_count = 8,
          .kv_head_count = 8};
}

struct WorkSpec {
  int config = 1;
  size_t bytes = 1;
  int64_t tokens = 1;  // tells works apart in PuppetDevice::Record
  absl::Time deadline = absl::InfiniteFuture();
  std::string tenant = {};
  int32_t priority = 0;
  int64_t keys = 0;  // above 0, there is something to compute
  int required_device = kAnyDevice;
  int32_t page_tokens = 0;  // above 0, the work is resident
};

inline std::unique_ptr<AttentionWork> MakeWork(const WorkSpec& spec) {
  auto work = std::make_unique<AttentionWork>();
  work->config = TestConfig(spec.config);
  work->output_bytes = spec.bytes;
  work->deadline = spec.deadline;
  work->tenant = spec.tenant;
  work->priority = spec.priority;
  work->required_device = spec.required_device;
  WorkSequence sequence;
  sequence.shape.key_length = spec.keys;
  sequence.shape.query_length = spec.tokens;
  work->sequences.push_back(sequence);
  if (spec.page_tokens > 0) {
    work->page_tokens = spec.page_tokens;
    work->kv_steps.push_back({.append_length = spec.tokens});
  }
  return work;
}

// Receives the answer to one work, and counts how often it came. Must outlive
// the work. Thread-safe.
class Probe {
 public:
  // `on_answer` runs inside the work's `done`.
  std::unique_ptr<AttentionWork> Attach(std::unique_ptr<AttentionWork> work,
                                        std::function<void()> on_answer = {}) {
    // The work is there while its `done` runs.
    work->done = [this, raw = work.get(), on_answer = std::move(on_answer)](
                     absl::StatusOr<WorkResult> result) {
      {
        absl::MutexLock lock(&mutex_);
        ++answers_;
        status_ = result.status();
        if (result.ok()) {
          start_time_ = raw->arrival_time + result->queue_duration;
        }
      }
      if (on_answer) on_answer();
    };
    return work;
  }

  int answers() const {
    absl::MutexLock lock(&mutex_);
    return answers_;
  }

  // Blocks until answered.
  absl::Status Await() const {
    const auto answered = [this] { return answers_ > 0; };
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&answered));
    return status_;
  }

  // When it left the queue to run; InfinitePast unless answered with OK.
  absl::Time start_time() const {
    absl::MutexLock lock(&mutex_);
    return start_time_;
  }

 private:
  mutable absl::Mutex mutex_;
  int answers_ = 0;
  absl::Status status_;
  absl::Time start_time_ = absl::InfinitePast();
};

}  // namespace attention

#endif  // ATTENTION_TESTS_SERVER_SCHEDULING_PROBE_H_
