// Compares what stands between a caller and a device: bare echoes of the same
// bytes, generated stubs, and the whole server without computation. See
// RESULTS.md for the commands.
//
// Every server, and every client of one over a transport, has its own process,
// which keeps its connections and memory. A repetition visits, size by size,
// every variant over every transport before the next one begins.
//
// A variant is a server, "+library" to call it through attention::Client (or
// "+stream", which has it use StreamAttention; only for "server"), "+steps" to
// send messages on open streams from the library's event loop ("queue" and
// "echo"; "+callback_steps": with gRPC's callbacks), and "@KEY=VALUE" for each
// setting:
//   arenas, processors          numbers: malloc arenas of the server, and
//                               processors of its gRPC threads (0: all)
//   poll_us                     how long "server", "queue", and the library, look
//                               for the next event before they sleep
//   channels, callers           connections and concurrent calls of the client
//   client_malloc               "default": the client as glibc sets it up
//   an environment variable, in capitals, for both processes
//   a gRPC channel argument (integer), for both sides; not for "server", and
//   not through the library
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "event_loop/event_loops.h"
#include "server/bench/bench_client.h"
#include "server/bench/bench_server.h"
#include "server/bench/child_process.h"
#include "server/lifecycle/attention_server.h"
#include "server/lifecycle/host_memory.h"

ABSL_FLAG(std::string, variants, "gather echo stubs server server+library",
          "what to measure, separated by spaces; ratios are to the first");
ABSL_FLAG(std::vector<std::string>, transports,
          std::vector<std::string>({"tcp", "unix"}), "of tcp, unix");
ABSL_FLAG(std::vector<std::string>, sizes,
          std::vector<std::string>({"4KiB", "1MiB", "16MiB", "96MiB"}),
          "bytes of Q, K, V and O together, or \"decode\"; for steps \"step\" "
          "or \"reference\"");
ABSL_FLAG(int, repetitions, 5, "how often each variant is visited");
ABSL_FLAG(absl::Duration, duration, absl::Milliseconds(300),
          "of each visit; the first one of a size has as long a warm-up");
ABSL_FLAG(int, rpc_processors,
          attention::AttentionServer::Options().rpc_processors,
          "of the gRPC threads of servers without \"processors\"");
ABSL_FLAG(std::string, role, "", "what a child process is: server or client");
ABSL_FLAG(std::string, target, "", "client: the server's address");
ABSL_FLAG(std::vector<std::string>, listen, {}, "server: its addresses");

namespace attention {
namespace {

struct Variant {
  explicit Variant(std::string text) : name(text) {
    const std::vector<std::string> parts = absl::StrSplit(text, '@');
    absl::string_view head = parts[0];
    for (const char* kind : {"library", "stream", "callback_steps", "steps"}) {
      if (absl::ConsumeSuffix(&head, absl::StrCat("+", kind))) client = kind;
    }
    server = std::string(head);
    for (size_t i = 1; i < parts.size(); ++i) {
      const std::pair<std::string, std::string> setting =
          absl::StrSplit(parts[i], absl::MaxSplits('=', 1));
      if (absl::ascii_isupper(setting.first[0])) {
        environment.push_back(setting);
      } else if (setting.first == "client_malloc") {
        tunes_client = setting.second != "default";
      } else {
        int value = 0;
        if (!absl::SimpleAtoi(setting.second, &value)) {
          std::fprintf(stderr, "not a number: %s\n", parts[i].c_str());
          std::exit(1);
        }
        numbers.emplace_back(setting.first, value);
      }
    }
  }

  // Takes the setting out of `numbers`.
  int Take(absl::string_view key, int otherwise) {
    for (auto it = numbers.begin(); it != numbers.end(); ++it) {
      if (it->first != key) continue;
      const int value = it->second;
      numbers.erase(it);
      return value;
    }
    return otherwise;
  }

  std::string name;
  std::string server;
  std::string client = "raw";
  bool tunes_client = true;
  std::vector<std::pair<std::string, std::string>> environment;
  std::vector<std::pair<std::string, int>> numbers;
};

int Report(const absl::Status& status) {
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}

int RunChild() {
  Variant variant(absl::GetFlag(FLAGS_variants));
  const int arenas = variant.Take("arenas", 0);
  const int processors =
      variant.Take("processors", absl::GetFlag(FLAGS_rpc_processors));
  const int poll_us = variant.Take("poll_us", -1);
  std::optional<absl::Duration> poll_time;
  if (poll_us >= 0) poll_time = absl::Microseconds(poll_us);
  const int callers = variant.Take("callers", 1);
  const int channels = variant.Take("channels", 1);
  if (absl::GetFlag(FLAGS_role) == "server") {
    return Report(
        RunBenchServer({.mode = variant.server,
                        .listen = absl::GetFlag(FLAGS_listen),
                        .channel_arguments = variant.server == "server"
                                                 ? decltype(variant.numbers)()
                                                 : variant.numbers,
                        .malloc_arenas = arenas,
                        .rpc_processors = processors,
                        .poll_time = poll_time}));
  }
  if (variant.tunes_client) TuneAllocator();
  const int result = Report(
      RunBenchClient({.target = absl::GetFlag(FLAGS_target),
                      .kind = variant.client,
                      .callers = callers,
                      .channels = channels,
                      .poll_time = poll_time,
                      .duration = absl::GetFlag(FLAGS_duration),
                      .channel_arguments = variant.numbers}));
  // Without gRPC's shutdown, which waits up to 10 s for a poller that it starts
  // when a socket's buffer is full.
  std::_Exit(result);
}

struct Cell {
  std::vector<double> microseconds;
  std::vector<double> calls_per_second;
};

double Median(std::vector<double> values) {
  const auto middle = values.begin() + values.size() / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::string Range(const std::vector<double>& values, double scale) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  const auto format = [scale](double value) {
    value *= scale;
    return absl::StrFormat(value < 10    ? "%.2f"
                           : value < 100 ? "%.1f"
                                         : "%.0f",
                           value);
  };
  return absl::StrCat(format(Median(values)), " [", format(*low), "–",
                      format(*high), "]");
}

class Benchmark {
 public:
  Benchmark()
      : transports_(absl::GetFlag(FLAGS_transports)),
        sizes_(absl::GetFlag(FLAGS_sizes)) {
    const std::vector<std::string> names =
        absl::StrSplit(absl::GetFlag(FLAGS_variants), ' ', absl::SkipEmpty());
    for (const std::string& name : names) variants_.emplace_back(name);
  }

  int Run() {
    StartServers();
    const int repetitions = absl::GetFlag(FLAGS_repetitions);
    for (int i = 0; i < repetitions; ++i) {
      for (const std::string& size : sizes_) {
        for (const std::string& transport : transports_) {
          for (const Variant& variant : variants_) {
            if (!Visit(variant, transport, size)) return 1;
          }
        }
      }
    }
    for (const std::string& transport : transports_) Print(transport);
    return 0;
  }

 private:
  void StartServers() {
    for (size_t i = 0; i < variants_.size(); ++i) {
      const std::string path =
          absl::StrFormat("unix:/tmp/transport_bench.%d.%d", getpid(), i);
      servers_.push_back(std::make_unique<ChildProcess>(
          std::vector<std::string>{
              "--role=server", absl::StrCat("--variants=", variants_[i].name),
              absl::StrCat("--listen=127.0.0.1:0,", path),
              absl::StrCat("--rpc_processors=",
                           absl::GetFlag(FLAGS_rpc_processors))},
          variants_[i].environment));
      addresses_[variants_[i].name + "tcp"] = servers_.back()->ReadLine();
      addresses_[variants_[i].name + "unix"] = servers_.back()->ReadLine();
    }
  }

  bool Visit(const Variant& variant, const std::string& transport,
             const std::string& size) {
    std::unique_ptr<ChildProcess>& client = clients_[variant.name + transport];
    if (client == nullptr) {
      client = std::make_unique<ChildProcess>(
          std::vector<std::string>{
              "--role=client", absl::StrCat("--variants=", variant.name),
              absl::StrCat("--target=", addresses_[variant.name + transport]),
              absl::StrCat("--duration=", absl::FormatDuration(
                                              absl::GetFlag(FLAGS_duration)))},
          variant.environment);
    }
    client->WriteLine(size);
    const std::vector<std::string> fields =
        absl::StrSplit(client->ReadLine(), ' ');
    double latency = 0;
    double rate = 0;
    if (fields.size() != 3 || fields[0] != size ||
        !absl::SimpleAtod(fields[1], &latency) ||
        !absl::SimpleAtod(fields[2], &rate)) {
      std::fprintf(stderr, "%s over %s failed\n", variant.name.c_str(),
                   transport.c_str());
      return false;
    }
    // At once, so that a run that is cut short is not lost.
    std::fprintf(stderr, "%s, %s, %s: %.0f us, %.1f/s\n", transport.c_str(),
                 variant.name.c_str(), size.c_str(), latency, rate);
    Cell& cell = cells_[variant.name + transport + size];
    cell.microseconds.push_back(latency);
    cell.calls_per_second.push_back(rate);
    return true;
  }

  // Medians of the visits' median latencies with the lowest and the highest,
  // and rates relative to the first variant.
  void Print(const std::string& transport) {
    std::printf("\n%s, ms", transport.c_str());
    for (const std::string& size : sizes_) std::printf(" | %s", size.c_str());
    std::printf("\n|---");
    for (size_t i = 0; i < sizes_.size(); ++i) std::printf("|---");
    std::printf("|\n");
    for (const Variant& variant : variants_) {
      std::printf("| %s", variant.name.c_str());
      for (const std::string& size : sizes_) {
        const Cell& cell = cells_[variant.name + transport + size];
        const Cell& first = cells_[variants_[0].name + transport + size];
        std::printf(" | %s, %.0f/s, %.2fx",
                    Range(cell.microseconds, 1e-3).c_str(),
                    Median(cell.calls_per_second),
                    Median(first.microseconds) / Median(cell.microseconds));
      }
      std::printf(" |\n");
    }
  }

  const std::vector<std::string> transports_;
  const std::vector<std::string> sizes_;
  std::vector<Variant> variants_;
  std::vector<std::unique_ptr<ChildProcess>> servers_;  // as variants_
  std::map<std::string, std::string> addresses_;  // by variant and transport
  std::map<std::string, std::unique_ptr<ChildProcess>> clients_;  // likewise
  std::map<std::string, Cell> cells_;  // by variant, transport and size
};

}  // namespace
}  // namespace attention

int main(int argc, char** argv) {
  attention::EventLoops::SeparateSockets();
  absl::ParseCommandLine(argc, argv);
  return absl::GetFlag(FLAGS_role).empty() ? attention::Benchmark().Run()
                                           : attention::RunChild();
}
