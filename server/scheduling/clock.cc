#include "server/scheduling/clock.h"

#include "absl/time/clock.h"

namespace attention {
namespace {

class RealClock final : public Clock {
 public:
  absl::Time Now() override { return absl::Now(); }

  void WaitUntil(absl::CondVar& condition, absl::Mutex& mutex,
                 absl::Time deadline) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    condition.WaitWithDeadline(&mutex, deadline);
  }
};

}  // namespace

Clock& Clock::Real() {
  static auto* const clock = new RealClock;
  return *clock;
}

}  // namespace attention
