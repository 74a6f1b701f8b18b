// How long the devices take per request, learned from the batches they ran.
#ifndef ATTENTION_SERVER_SCHEDULING_SERVICE_TIME_H_
#define ATTENTION_SERVER_SCHEDULING_SERVICE_TIME_H_

#include "absl/time/time.h"

namespace attention {

// A mean over about the last ten batches. Not thread-safe.
class ServiceTime {
 public:
  // A batch of `requests` occupied one slot for `duration`.
  void Observe(int requests, absl::Duration duration) {
    seconds_ = kKeep * seconds_ + absl::ToDoubleSeconds(duration);
    requests_ = kKeep * requests_ + requests;
  }

  // Slot time of one request; 0 before the first batch.
  absl::Duration PerRequest() const {
    return requests_ == 0 ? absl::ZeroDuration()
                          : absl::Seconds(seconds_ / requests_);
  }

 private:
  static constexpr double kKeep = 0.9;
  // Both decay alike: large batches weigh by what they did.
  double seconds_ = 0;
  double requests_ = 0;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_SCHEDULING_SERVICE_TIME_H_
