// Serves the metrics over HTTP, for Prometheus to scrape.
#ifndef ATTENTION_SERVER_METRICS_EXPOSER_H_
#define ATTENTION_SERVER_METRICS_EXPOSER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/metrics/metrics.h"

namespace prometheus {
class Exposer;
class Registry;
}  // namespace prometheus

namespace attention {

// Answers GET /metrics in the Prometheus text format, on threads of its own,
// from Create until it is destroyed.
class MetricsExposer {
 public:
  // `address` is "host:port": an IPv4 address, an IPv6 address in brackets or
  // "localhost". Port 0 takes a free port. The registry stays readable after
  // `metrics` is gone.
  //   InvalidArgument  the address has another form
  //   Unavailable      the port is taken, or the address is not of this host
  static absl::StatusOr<std::unique_ptr<MetricsExposer>> Create(
      absl::string_view address, const Metrics& metrics);

  // Takes up to 2 s: the HTTP server looks that often whether it should stop.
  ~MetricsExposer();

  // Where it listens, with the port that was bound.
  const std::string& address() const { return address_; }

 private:
  MetricsExposer(std::string address,
                 std::unique_ptr<prometheus::Exposer> exposer,
                 std::shared_ptr<prometheus::Registry> registry);

  const std::string address_;
  // The exposer holds the registry weakly. Declared first, destroyed last.
  const std::shared_ptr<prometheus::Registry> registry_;
  const std::unique_ptr<prometheus::Exposer> exposer_;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_METRICS_EXPOSER_H_
