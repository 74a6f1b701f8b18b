#include "client/loadtest/arrival_schedule.h"

namespace attention::loadtest {

ArrivalSchedule::ArrivalSchedule(Arrival arrival, double rate, uint64_t seed)
    : arrival_(arrival), rate_(rate), random_(seed) {}

absl::Duration ArrivalSchedule::Next() {
  if (arrival_ == Arrival::kConstant) {
    // From the index, so that rounding does not add up.
    return absl::Seconds(static_cast<double>(index_++) / rate_);
  }
  seconds_ += std::exponential_distribution<double>(rate_)(random_);
  return absl::Seconds(seconds_);
}

}  // namespace attention::loadtest
