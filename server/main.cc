// attention-server: serves until SIGTERM, SIGINT or a device's failure, then
// drains. Exits with 0 when every request was answered, 1 otherwise; a second
// signal ends it at once, with 128 plus the signal's number.
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "command_line/version.h"
#include "event_loop/event_loops.h"
#include "server/flags.h"
#include "server/lifecycle/attention_server.h"
#include "server/lifecycle/host_memory.h"
#include "server/lifecycle/signals.h"
#include "server/logging/log.h"

namespace attention {
namespace {

// Beyond the drain's own timeout: the exporter of metrics takes more than a
// second to stop.
constexpr absl::Duration kStopTime = absl::Seconds(5);

// Ends the process when draining hangs, which it does for as long as a device
// computes: that cannot be interrupted.
class DrainWatchdog {
 public:
  explicit DrainWatchdog(absl::Duration timeout)
      : thread_([this, timeout] {
          if (drained_.WaitForNotificationWithTimeout(timeout)) return;
          LogError("stopped with requests unfinished", {});
          _exit(1);
        }) {}

  ~DrainWatchdog() {
    drained_.Notify();
    thread_.join();
  }

 private:
  absl::Notification drained_;
  std::thread thread_;
};

int Fail(const absl::Status& status) {
  LogError("cannot start", {{"detail", std::string(status.message())}});
  return 1;
}

int Run(int argc, char** argv) {
  EventLoops::SeparateSockets();
  // A client that goes away while it is written to must not end the server.
  std::signal(SIGPIPE, SIG_IGN);
  const absl::StatusOr<ServerFlags> flags = ParseServerFlags(argc, argv);
  if (!flags.ok()) return Fail(flags.status());
  InitializeLog(flags->log_format, flags->log_level);
  TuneAllocator();

  auto signals = SignalWatcher::Create([](int signal) {
    LogWarning("stopping at once", {{"signal", strsignal(signal)}});
    _exit(128 + signal);
  });
  if (!signals.ok()) return Fail(signals.status());
  LogInfo("starting", {{"version", kProgramVersion}});
  auto server = AttentionServer::Create(flags->server);
  if (!server.ok()) return Fail(server.status());
  if (auto s = (*server)->Start(); !s.ok()) return Fail(s);

  int signal = 0;
  absl::Status device = absl::OkStatus();
  while (signal == 0 && device.ok()) {
    signal = (*signals)->Wait(absl::Milliseconds(200));
    device = (*server)->device_health();
    (*server)->ReleaseMemoryIfIdle();
    (*server)->ReleaseExpired();
  }
  if (!device.ok()) {
    LogError("device failed", {{"detail", device.ToString()}});
  }
  LogInfo("draining", {{"reason", signal == 0 ? "device failure" : strsignal(signal)},
                       {"timeout", absl::FormatDuration(flags->drain_timeout)}});
  bool drained;
  {
    const DrainWatchdog watchdog(flags->drain_timeout + kStopTime);
    drained = (*server)->Drain(flags->drain_timeout);
    server->reset();
  }
  LogInfo("stopped", {{"drained", drained ? "true" : "false"}});
  return drained && device.ok() ? 0 : 1;
}

}  // namespace
}  // namespace attention

int main(int argc, char** argv) { return attention::Run(argc, argv); }
