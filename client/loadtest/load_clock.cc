#include "client/loadtest/load_clock.h"

#include <chrono>

namespace attention::loadtest {
namespace {

class SteadyClock : public LoadClock {
 public:
  absl::Duration Now() override {
    return absl::FromChrono(
        std::chrono::steady_clock::now().time_since_epoch());
  }

  void WaitUntil(absl::CondVar& condition, absl::Mutex& mutex,
                 absl::Duration moment) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    condition.WaitWithTimeout(&mutex, moment - Now());
  }
};

}  // namespace

LoadClock& LoadClock::Steady() {
  static SteadyClock* clock = new SteadyClock;
  return *clock;
}

}  // namespace attention::loadtest
