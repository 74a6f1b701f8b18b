#include "server/metrics/exposer.h"

#include <prometheus/exposer.h>
#include <prometheus/registry.h>

#include <exception>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace attention {
namespace {

struct HostPort {
  std::string host;
  int port;
};

// Checked here because the HTTP server takes more than one address and options
// behind the port ("80s"), and says nothing about what it does not understand.
absl::StatusOr<HostPort> ParseAddress(absl::string_view address) {
  const absl::Status error = absl::InvalidArgumentError(absl::StrCat(
      "the metrics address must be host:port with a port in [0, 65535] and an "
      "IPv6 host in brackets; got \"",
      address, "\""));
  const size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos || colon == 0) return error;
  const absl::string_view host = address.substr(0, colon);
  const absl::string_view digits = address.substr(colon + 1);
  if (digits.empty() || digits.size() > 5 ||
      digits.find_first_not_of("0123456789") != absl::string_view::npos) {
    return error;
  }
  int port;
  if (!absl::SimpleAtoi(digits, &port) || port > 65535) return error;
  const bool bracketed = host.front() == '[' && host.back() == ']';
  const bool has_separator =
      host.find_first_of(", +") != absl::string_view::npos;
  if (has_separator ||
      (!bracketed && host.find(':') != absl::string_view::npos)) {
    return error;
  }
  return HostPort{std::string(host), port};
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsExposer>> MetricsExposer::Create(
    absl::string_view address, const Metrics& metrics) {
  auto parsed = ParseAddress(address);
  if (!parsed.ok()) return parsed.status();
  std::unique_ptr<prometheus::Exposer> exposer;
  try {
    // Connections that send nothing hold a thread each until they time out, and
    // must not keep the scraper out.
    exposer = std::make_unique<prometheus::Exposer>(std::vector<std::string>{
        "listening_ports", std::string(address), "num_threads", "16",
        "request_timeout_ms", "2000"});
  } catch (const std::exception&) {  // carries no cause
    return absl::UnavailableError(absl::StrCat(
        "cannot listen for metrics on ", address,
        ": the port is taken or the address is not one of this host"));
  }
  const std::vector<int> ports = exposer->GetListeningPorts();
  if (ports.empty()) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen for metrics on ", address));
  }
  std::shared_ptr<prometheus::Registry> registry = metrics.registry();
  exposer->RegisterCollectable(registry);
  // The constructor is private, so make_unique cannot call it.
  return std::unique_ptr<MetricsExposer>(
      new MetricsExposer(absl::StrCat(parsed->host, ":", ports.front()),
                         std::move(exposer), std::move(registry)));
}

MetricsExposer::MetricsExposer(std::string address,
                               std::unique_ptr<prometheus::Exposer> exposer,
                               std::shared_ptr<prometheus::Registry> registry)
    : address_(std::move(address)),
      registry_(std::move(registry)),
      exposer_(std::move(exposer)) {}

MetricsExposer::~MetricsExposer() = default;

}  // namespace attention
