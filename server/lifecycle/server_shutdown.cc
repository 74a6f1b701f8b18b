#include "server/lifecycle/server_shutdown.h"

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "grpc/grpc.h"
#include "grpc/support/alloc.h"
#include "nlohmann/json.hpp"

namespace attention {
namespace {

// A quiet server stays so for this long before its connections are ended.
constexpr absl::Duration kCheckInterval = absl::Milliseconds(100);
constexpr int kQuietChecks = 5;

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
  const std::unique_ptr<char, void (*)(void*)> text(grpc_channelz_get_servers(0),
                                                    gpr_free);
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

}  // namespace

bool ShutDownServer(grpc::Server& server, absl::Time deadline) {
  absl::Notification stopped;
  bool busy = true;  // read after the thread has ended
  std::thread watch([&] {
    int quiet_checks = 0;
    while (!stopped.WaitForNotificationWithTimeout(kCheckInterval)) {
      const bool calls_left = CallsInFlight() > 0;
      // From then on calls are cut off, which is not their end.
      if (absl::Now() >= deadline) break;
      busy = calls_left;
      quiet_checks = busy ? 0 : quiet_checks + 1;
      if (quiet_checks == kQuietChecks) {
        grpc_server_cancel_all_calls(server.c_server());
      }
    }
  });
  server.Shutdown(absl::ToChronoTime(deadline));
  const bool in_time = absl::Now() < deadline;
  stopped.Notify();
  watch.join();
  server.Wait();
  return in_time || !busy;
}

}  // namespace attention
