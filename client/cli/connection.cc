#include <utility>

#include "absl/strings/cord.h"
#include "client/cli/commands.h"

namespace attention::cli {
namespace {

constexpr char kUsagePayload[] = "attention-cli/usage";

}  // namespace

std::vector<FlagSpec> ConnectionFlags() {
  return {
      {"server", "TARGET",
       "host:port, unix:path or any gRPC target\n(default localhost:50051)"},
      {"timeout", "TIME", "for the whole call, such as 30s (default 5m)"},
  };
}

absl::StatusOr<std::unique_ptr<Client>> Connect(const Arguments& arguments) {
  const auto timeout = arguments.GetDuration("timeout");
  if (!timeout.ok()) return InvalidUsage(timeout.status());
  Client::Options options;
  options.target = arguments.GetString("server", "localhost:50051");
  options.channel_count = 1;
  options.tenant = arguments.GetString("tenant", "");  // of some commands
  if (timeout->has_value()) options.timeout = **timeout;
  auto client = Client::Create(std::move(options));
  if (!client.ok()) return InvalidUsage(client.status());
  return client;
}

absl::Status InvalidUsage(absl::Status status) {
  status.SetPayload(kUsagePayload, absl::Cord());
  return status;
}

bool IsInvalidUsage(const absl::Status& status) {
  return status.GetPayload(kUsagePayload).has_value();
}

}  // namespace attention::cli
