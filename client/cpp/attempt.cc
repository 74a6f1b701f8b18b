#include "client/cpp/attempt.h"

#include <algorithm>
#include <chrono>

#include "absl/random/random.h"
#include "absl/strings/string_view.h"
#include "client/cpp/attention_client.h"

namespace attention {

std::optional<Pushback> FindPushback(const grpc::ClientContext& context) {
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto it = trailers.find("grpc-retry-pushback-ms");
  if (it == trailers.end()) return std::nullopt;
  return ParsePushback(absl::string_view(it->second.data(), it->second.size()));
}

void SetDeadline(absl::Duration remaining, grpc::ClientContext& context) {
  // The system clock must not overflow at an infinite timeout.
  context.set_deadline(
      std::chrono::system_clock::now() +
      absl::ToChronoNanoseconds(std::min(remaining, absl::Hours(24 * 365))));
}

void SetTenant(const std::string& tenant, grpc::ClientContext& context) {
  if (!tenant.empty()) context.AddMetadata("attention-tenant", tenant);
}

absl::StatusCode CodeForRetry(const absl::Status& status) {
  // This process stood still for a while.
  return absl::IsAborted(status) && ErrorReason(status) == "STREAM_IDLE"
             ? absl::StatusCode::kUnavailable
             : status.code();
}

double RandomFraction() {
  thread_local absl::InsecureBitGen generator;
  return absl::Uniform(generator, 0.0, 1.0);
}

}  // namespace attention
