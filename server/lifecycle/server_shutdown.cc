#include "server/lifecycle/server_shutdown.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpc/grpc.h"
#include "grpc/support/alloc.h"
#include "nlohmann/json.hpp"
#include "server/logging/log.h"

namespace attention {
namespace {

constexpr absl::Duration kCheckInterval = absl::Milliseconds(10);
// For messages that are arriving. Slower ones cannot be told from those that
// callers go on sending.
constexpr absl::Duration kArrivalTime = absl::Seconds(2);
// Answers have this long to get from the operating system to their callers:
// what is on its way is lost when a connection ends on which callers go on
// sending.
constexpr absl::Duration kDeliveryTime = absl::Milliseconds(500);

int64_t Count(const nlohmann::json& data, const char* field) {
  int64_t count = 0;
  const auto found = data.find(field);  // 64-bit integers are strings in JSON
  if (found != data.end() && found->is_string()) {
    (void)absl::SimpleAtoi(found->get<std::string>(), &count);
  }
  return count;
}

// Calls under way on all servers of this process, by channelz: the only count
// that has calls whose message is still arriving.
int64_t CallsInFlight() {
  const std::unique_ptr<char, void (*)(void*)> text(
      grpc_channelz_get_servers(0), gpr_free);
  if (text == nullptr) return 0;
  const auto servers = nlohmann::json::parse(text.get(), nullptr, false);
  int64_t calls = 0;
  if (!servers.is_object() || !servers.contains("server")) return 0;
  for (const nlohmann::json& server : servers["server"]) {
    if (!server.contains("data")) continue;
    const nlohmann::json& data = server["data"];
    calls += Count(data, "callsStarted") - Count(data, "callsSucceeded") -
             Count(data, "callsFailed");
  }
  return calls;
}

// At least those whose message has not wholly arrived.
int64_t ArrivingCalls(const AttentionService& service) {
  // What ends meanwhile must not hide what arrives.
  const int64_t started = service.call_counts().started;
  const int64_t in_flight = CallsInFlight();
  return in_flight - (started - service.call_counts().finished);
}

// Returns when it does no longer hold, or at `deadline`.
template <typename Condition>
void WaitWhile(const Condition& condition, absl::Time deadline) {
  while (absl::Now() < deadline && condition()) absl::SleepFor(kCheckInterval);
}

}  // namespace

bool ShutDownServer(grpc::Server& server, AttentionService& service,
                    const WriteWatch& writes, absl::Time deadline) {
  const absl::Time start = absl::Now();
  WaitWhile([&] { return ArrivingCalls(service) > 0; },
            start + std::min(kArrivalTime, (deadline - start) / 2));
  service.TurnCallsAway();
  absl::Time last_inside = absl::Now();
  WaitWhile(
      [&] {
        if (service.calls_inside() > 0) last_inside = absl::Now();
        return absl::Now() < last_inside + kDeliveryTime;
      },
      deadline);
  const int64_t inside = service.calls_inside();
  const bool all_answered = inside <= writes.under_way();
  if (inside > 0 && all_answered) {
    LogWarning("callers did not take their answers",
               {{"calls", absl::StrCat(inside)}});
  }
  // Before the shutdown, so that nothing is left that it could drop.
  grpc_server_cancel_all_calls(server.c_server());
  absl::SleepFor(kCheckInterval);  // they end on gRPC's threads
  server.Shutdown(absl::ToChronoTime(absl::Now()));
  server.Wait();
  return all_answered;
}

}  // namespace attention
