// When the requests of an open loop are due.
#ifndef ATTENTION_CLIENT_LOADTEST_ARRIVAL_SCHEDULE_H_
#define ATTENTION_CLIENT_LOADTEST_ARRIVAL_SCHEDULE_H_

#include <cstdint>
#include <random>

#include "absl/time/time.h"

namespace attention::loadtest {

enum class Arrival {
  kConstant,  // one request every 1 / rate
  kPoisson,   // independent callers: exponentially distributed gaps
};

// An endless sequence of moments, in order. The same seed gives the same
// sequence. Thread-compatible.
class ArrivalSchedule {
 public:
  // `rate` is in requests per second, above 0.
  ArrivalSchedule(Arrival arrival, double rate, uint64_t seed);

  // The next moment, counted from the start of the run.
  absl::Duration Next();

 private:
  const Arrival arrival_;
  const double rate_;
  std::mt19937_64 random_;
  int64_t index_ = 0;
  double seconds_ = 0;
};

}  // namespace attention::loadtest

#endif  // ATTENTION_CLIENT_LOADTEST_ARRIVAL_SCHEDULE_H_
