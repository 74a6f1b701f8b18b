// attention-load: measures an attention server under load. See README.md.
#include <grpc/grpc.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "client/loadtest/client_sender.h"
#include "client/loadtest/decode_runner.h"
#include "client/loadtest/input_set.h"
#include "client/loadtest/load_runner.h"
#include "client/loadtest/options.h"
#include "client/loadtest/progress_line.h"
#include "event_loop/event_loops.h"
#include "client/loadtest/region_sender.h"
#include "client/loadtest/report.h"
#include "client/loadtest/tensor_memory.h"
#include "client/output_file/output_file.h"

namespace attention::loadtest {
namespace {

// Documented in README.md and --help.
enum ExitCode { kSuccess = 0, kUsage = 1, kFailures = 2, kNoServer = 3 };

int Fail(ExitCode code, const absl::Status& status) {
  std::fprintf(stderr, "attention-load: %s\n",
               std::string(status.message()).c_str());
  return code;
}

// While Watch is in effect, the first SIGINT or SIGTERM stops the run, which
// then reports what it has; the second ends the process. Create it before other
// threads, which must inherit the signal mask.
class StopOnSignal {
 public:
  StopOnSignal() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGINT);
    sigaddset(&signals_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
  }

  ~StopOnSignal() {
    if (!thread_.joinable()) return;
    ended_ = true;
    pthread_kill(thread_.native_handle(), SIGTERM);
    thread_.join();
  }

  // Until Watch, a signal ends the process as usual. Call both on the thread
  // that created this.
  void LetThrough() { pthread_sigmask(SIG_UNBLOCK, &signals_, nullptr); }

  // `stop` is called at most once.
  void Watch(std::function<void()> stop) {
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    thread_ = std::thread([this, stop = std::move(stop)] {
      int signal = 0;
      sigwait(&signals_, &signal);
      if (ended_) return;
      stop();
      sigwait(&signals_, &signal);
      if (!ended_) _exit(128 + signal);
    });
  }

 private:
  sigset_t signals_;
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

// Runs a LoadRunner or a DecodeRunner.
template <typename Runner>
auto RunUntilSignal(Runner& runner, const LoadOptions& options,
                    StopOnSignal& signals) {
  signals.Watch([&runner] { runner.Stop(); });
  std::optional<ProgressLine> progress;
  if (options.show_progress) {
    progress.emplace([&runner] { return runner.TakeProgress(); }, stderr);
  }
  return runner.Run();
}

// Puts what came of the load into `report`. Errors are those of its sessions.
absl::Status RunLoad(const LoadOptions& options, const InputSet& inputs,
                     RequestSender& sender, std::vector<Client*> clients,
                     StopOnSignal& signals, LoadReport& report) {
  if (!options.decode.has_value()) {
    LoadRunner runner(options.plan, options.mix, inputs, sender,
                      LoadClock::Steady());
    report.result = RunUntilSignal(runner, options, signals);
    return absl::OkStatus();
  }
  DecodeRunner runner(options.plan, *options.decode, options.mix[0].shape,
                      inputs, std::move(clients), LoadClock::Steady());
  absl::StatusOr<DecodeLoadResult> result =
      RunUntilSignal(runner, options, signals);
  if (!result.ok()) return result.status();
  report.result = std::move(result->calls);
  report.decode = {*options.decode, *std::move(result)};
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RegionSender>> MakeRegionSender(
    const LoadOptions& options, const InputSet& inputs, ClientSender& sender) {
  return RegionSender::Create(
      sender.callers(), options.mix, inputs,
      {.max_outstanding = options.plan.max_outstanding,
       .max_bytes = options.inputs.max_bytes,
       .copy_results = options.plan.verified_fraction > 0},
      [&options](Client& client, size_t bytes) {
        return options.placement == Placement::kCudaIpc
                   ? MakeCudaMemory(client, bytes, options.cuda_device)
                   : MakeSharedMemory(client, bytes);
      });
}

int Main(int argc, char** argv) {
  // Requests are due to the microsecond; the kernel's default slack is 50 us.
  prctl(PR_SET_TIMERSLACK, 1000UL);

  // Distributions build Abseil with its checks: every lock would be entered
  // into one global graph.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);

  absl::StatusOr<LoadOptions> options = ParseCommandLine(argc, argv);
  if (!options.ok()) return Fail(kUsage, options.status());
  for (const std::string& path : {options->json_path, options->csv_path}) {
    if (path.empty()) continue;
    if (absl::Status s = CheckOutputFile(path); !s.ok()) return Fail(kUsage, s);
  }

  StopOnSignal signals;
  // Never matched by grpc_shutdown: after a deadline in the middle of an upload
  // that waits for gRPC's background poller, up to 10 s.
  grpc_init();
  absl::StatusOr<std::unique_ptr<ClientSender>> sender =
      ClientSender::Create(options->sender);
  if (!sender.ok()) return Fail(kUsage, sender.status());
  auto servers = (*sender)->GetServerInfos(options->connect_timeout);
  if (!servers.ok()) return Fail(kNoServer, servers.status());

  signals.LetThrough();  // making inputs may take a while
  absl::StatusOr<InputSet> inputs =
      InputSet::Create(options->mix, options->inputs);
  if (!inputs.ok()) return Fail(kUsage, inputs.status());

  std::unique_ptr<RegionSender> regions;
  if (options->placement != Placement::kOwnMemory) {
    auto created = MakeRegionSender(*options, *inputs, **sender);
    if (!created.ok()) return Fail(kUsage, created.status());
    regions = *std::move(created);
  }
  RequestSender& used =
      regions != nullptr ? static_cast<RequestSender&>(*regions) : **sender;

  LoadReport report{.plan = options->plan,
                    .mix = options->mix,
                    .targets = options->sender.targets,
                    .servers = *std::move(servers)};
  if (absl::Status s = RunLoad(*options, *inputs, used, (*sender)->clients(),
                               signals, report);
      !s.ok()) {
    return Fail(kFailures, s);
  }

  std::fputs(ToText(report).c_str(), stdout);
  absl::Status written;
  if (!options->json_path.empty()) {
    written.Update(WriteOutputFile(options->json_path, {ToJson(report)}));
  }
  if (!options->csv_path.empty()) {
    written.Update(WriteOutputFile(options->csv_path, {ToCsv(report)}));
  }
  if (!written.ok()) return Fail(kUsage, written);
  const absl::Status verdict = options->Verdict(report.result.Total());
  return verdict.ok() ? kSuccess : Fail(kFailures, verdict);
}

}  // namespace
}  // namespace attention::loadtest

int main(int argc, char** argv) {
  attention::EventLoops::SeparateSockets();
  return attention::loadtest::Main(argc, argv);
}
