#include "client/loadtest/options.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <thread>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/loadtest/decode_options.h"
#include "client/loadtest/given_flags.h"
#include "client/loadtest/shape_options.h"
#include "command_line/program_flags.h"

namespace attention::loadtest {

// The value of --verify: a fraction, or a boolean for 1 and 0.
struct VerifiedFraction {
  double value = 0;
};

bool AbslParseFlag(absl::string_view text, VerifiedFraction* fraction,
                   std::string* error) {
  if (text == "true" || text == "false") {
    fraction->value = text == "true" ? 1 : 0;
    return true;
  }
  if (absl::SimpleAtod(text, &fraction->value) && fraction->value >= 0 &&
      fraction->value <= 1) {
    return true;
  }
  *error = "must be a number in [0, 1], true or false";
  return false;
}

std::string AbslUnparseFlag(const VerifiedFraction& fraction) {
  return absl::StrCat(fraction.value);
}

}  // namespace attention::loadtest

using attention::loadtest::VerifiedFraction;

ABSL_FLAG(std::vector<std::string>, server, {"localhost:50051"},
          "Targets, comma-separated; requests take turns. \"host:port\", "
          "\"unix:/path\" or any gRPC target");
ABSL_FLAG(
    std::string, transport, "inline",
    "How tensors travel: \"inline\" in messages, \"stream\" in chunks; to "
    "servers on this machine also \"shm\" in shared memory "
    "(--allow_shared_memory) or \"cuda_ipc\" in memory of a GPU "
    "(--allow_cuda_ipc)");
ABSL_FLAG(std::string, calls, "unary",
          "How requests are sent: \"unary\", each as a call of its own, or "
          "\"stream\", as messages of streams that stay open, one for each "
          "connection");
ABSL_FLAG(int32_t, cuda_device, 0,
          "The GPU of --transport=cuda_ipc, by CUDA's number; one that the "
          "servers use");
ABSL_FLAG(int32_t, channels, 2, "Connections per target");
ABSL_FLAG(absl::Duration, timeout, absl::Seconds(60), "Deadline of a request");
ABSL_FLAG(absl::Duration, connect_timeout, absl::Seconds(5),
          "How long to wait for each server before the run");
ABSL_FLAG(int32_t, max_attempts, 1,
          "Attempts per request. Retries hide refusals; 1 never retries");
ABSL_FLAG(std::optional<absl::Duration>, poll_time, std::nullopt,
          "How long a thread that has taken an answer looks for the next one "
          "before it sleeps. Unset: the client library's choice");

ABSL_FLAG(int64_t, concurrency, 1,
          "Closed loop: requests outstanding at any time, or clients that "
          "decode");
ABSL_FLAG(double, rate, 0,
          "Open loop: requests per second. Without it the loop is closed");
ABSL_FLAG(std::string, arrival, "poisson",
          "Open loop: gaps between requests, \"poisson\" or \"constant\"");
ABSL_FLAG(
    int64_t, max_outstanding, 1000,
    "Open loop: a request that is due while so many are outstanding waits "
    "(its latency runs). 0: no bound");
ABSL_FLAG(absl::Duration, warmup, absl::Seconds(1),
          "Time before the measurement");
ABSL_FLAG(absl::Duration, duration, absl::Seconds(10),
          "Time of the measurement");
ABSL_FLAG(int64_t, requests, 0,
          "Measure so many requests instead of a duration");
ABSL_FLAG(int32_t, threads, 0,
          "Threads that send. 0: as many as processors, at most 4");
ABSL_FLAG(uint64_t, seed, 1, "Of inputs, arrivals and the order of shapes");

ABSL_FLAG(int32_t, inputs, 8, "Different inputs per shape");
ABSL_FLAG(int64_t, input_memory_mib, 1024,
          "Memory for inputs; fewer than --inputs are made if it is short");
ABSL_FLAG(
    VerifiedFraction, verify, {},
    "Part of the answers to check against the float64 reference; --verify "
    "alone checks all");
ABSL_FLAG(int32_t, verify_rows, 16,
          "Rows of each input that --verify knows the answer to");

ABSL_FLAG(std::string, json, "", "Write the report to this file as JSON");
ABSL_FLAG(std::string, csv, "", "Write the report to this file as CSV");
ABSL_FLAG(std::string, progress, "auto",
          "A line a second on standard error: \"true\", \"false\", or \"auto\" "
          "for on a terminal only");
ABSL_FLAG(std::vector<std::string>, allow_errors, {},
          "Status codes, e.g. RESOURCE_EXHAUSTED,UNAVAILABLE, that do not make "
          "the run a failure; or \"all\"");

namespace attention::loadtest {
namespace {

constexpr char kUsage[] =
    "Sends attention requests to a server and measures the answers.\n\n"
    "  attention-load --concurrency=16 --query_length=1024 --kv_heads=8\n"
    "  attention-load --rate=200 --mix=mix.json --duration=60s "
    "--json=run.json\n"
    "  attention-load --requests=100 --verify --lse --dtype=fp32\n"
    "  attention-load --mode=decode --concurrency=64 --context=4096 "
    "--kv_heads=8\n\n"
    "Exit status: 0 success; 1 wrong usage or files; 2 errors or wrong "
    "answers;\n3 no server.";

absl::Status CheckAtLeast(absl::string_view flag, int64_t value, int64_t low) {
  if (value >= low) return absl::OkStatus();
  return Wrong(flag, absl::StrCat("must be at least ", low, "; got ", value));
}

absl::Status CheckAtLeast(absl::string_view flag, absl::Duration value,
                          absl::Duration low) {
  if (value >= low) return absl::OkStatus();
  return Wrong(flag,
               absl::StrCat("must be at least ", absl::FormatDuration(low),
                            "; got ", absl::FormatDuration(value)));
}

absl::StatusOr<LoadPlan> PlanFromFlags(const GivenFlags& given) {
  LoadPlan plan;
  const bool open_loop = given.Has("rate");
  const double rate = absl::GetFlag(FLAGS_rate);
  const int64_t concurrency = absl::GetFlag(FLAGS_concurrency);
  if (open_loop && given.Has("concurrency")) {
    return absl::InvalidArgumentError(
        "--rate (open loop) and --concurrency (closed loop) exclude each "
        "other");
  }
  if (open_loop && (!(rate > 0) || !std::isfinite(rate))) {
    return Wrong("rate", absl::StrCat("must be above 0; got ", rate));
  }
  const std::string arrival = absl::GetFlag(FLAGS_arrival);
  if (arrival != "poisson" && arrival != "constant") {
    return Wrong("arrival", absl::StrCat("must be one of poisson, constant; "
                                         "got \"",
                                         arrival, "\""));
  }
  plan.arrival = arrival == "poisson" ? Arrival::kPoisson : Arrival::kConstant;
  if (open_loop) plan.rate = rate;
  plan.max_outstanding =
      open_loop ? absl::GetFlag(FLAGS_max_outstanding) : concurrency;
  plan.warmup = absl::GetFlag(FLAGS_warmup);
  plan.duration = absl::GetFlag(FLAGS_duration);
  plan.requests = absl::GetFlag(FLAGS_requests);
  const int threads = absl::GetFlag(FLAGS_threads);
  plan.sender_threads =
      threads > 0 ? threads
                  : std::clamp<int>(std::thread::hardware_concurrency(), 1, 4);
  plan.verified_fraction = absl::GetFlag(FLAGS_verify).value;
  plan.seed = absl::GetFlag(FLAGS_seed);

  absl::Status status;
  status.Update(CheckAtLeast("concurrency", concurrency, 1));
  status.Update(
      CheckAtLeast("max_outstanding", absl::GetFlag(FLAGS_max_outstanding), 0));
  status.Update(CheckAtLeast("requests", plan.requests, 0));
  status.Update(CheckAtLeast("threads", threads, 0));
  status.Update(CheckAtLeast("warmup", plan.warmup, absl::ZeroDuration()));
  status.Update(CheckAtLeast("duration", plan.duration, absl::Milliseconds(1)));
  if (plan.warmup == absl::InfiniteDuration()) {
    status.Update(Wrong("warmup", "must be finite; got inf"));
  }
  if (!open_loop) {
    status.Update(given.Refuse({"arrival", "max_outstanding"},
                               "of an open loop, with --rate"));
  }
  if (!status.ok()) return status;
  return plan;
}

absl::Status AllowedErrorsFromFlags(LoadOptions& options) {
  for (const std::string& name : absl::GetFlag(FLAGS_allow_errors)) {
    if (name == "all") {
      options.all_errors_allowed = true;
      continue;
    }
    int code = 1;
    while (code <= 16 && absl::StatusCodeToString(
                             static_cast<absl::StatusCode>(code)) != name) {
      ++code;
    }
    if (code > 16) {
      return Wrong("allow_errors",
                   absl::StrCat("must hold status codes such as "
                                "RESOURCE_EXHAUSTED, or all; got \"",
                                name, "\""));
    }
    options.allowed_errors.insert(static_cast<absl::StatusCode>(code));
  }
  return absl::OkStatus();
}

absl::Status ProgressFromFlags(LoadOptions& options) {
  const std::string progress = absl::GetFlag(FLAGS_progress);
  if (progress != "auto" && progress != "true" && progress != "false") {
    return Wrong("progress", absl::StrCat("must be one of auto, true, false; "
                                          "got \"",
                                          progress, "\""));
  }
  options.show_progress =
      progress == "true" || (progress == "auto" && isatty(STDERR_FILENO) != 0);
  return absl::OkStatus();
}

// absl::flags would take the next argument as the value of a flag that is not
// boolean; these have a meaning without one.
std::vector<std::string> WithOptionalValues(int argc, char** argv) {
  std::vector<std::string> arguments(argv, argv + argc);
  for (std::string& argument : arguments) {
    if (argument == "--") break;
    if (argument == "--verify" || argument == "--progress") {
      argument += "=true";
    }
  }
  return arguments;
}

// Of --calls.
absl::StatusOr<bool> UsesStreams(const GivenFlags& given,
                                 const std::string& transport) {
  const std::string calls = absl::GetFlag(FLAGS_calls);
  if (calls != "unary" && calls != "stream") {
    return Wrong("calls", absl::StrCat("must be one of unary, stream; got \"",
                                       calls, "\""));
  }
  if (calls == "unary") return false;
  if (transport == "stream") {
    return Wrong("transport",
                 "must be inline, shm or cuda_ipc with --calls=stream");
  }
  // Streams last as long as the run, and repeat nothing.
  absl::Status refused =
      given.Refuse({"timeout", "max_attempts"}, "of --calls=unary");
  if (!refused.ok()) return refused;
  return true;
}

// gRPC's own bound on a message.
absl::Status CheckMessageSizes(const ShapeMix& mix) {
  constexpr int64_t kMaxMessageBytes = std::numeric_limits<int32_t>::max();
  for (const WeightedShape& entry : mix) {
    const RequestShape& shape = entry.shape;
    const int64_t bytes = std::max(
        shape.RequestBytes(), shape.OutputBytes() + shape.LogSumExpBytes());
    if (bytes > kMaxMessageBytes) {
      return Wrong("transport",
                   absl::StrCat("must be stream, shm or cuda_ipc for a request "
                                "or answer of 2 GiB and more; shape ",
                                shape.name, " has ", bytes, " bytes"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status LoadOptions::Verdict(const LoadStats& total) const {
  if (total.mismatched > 0) {
    return absl::DataLossError(
        absl::StrCat(total.mismatched, " answers are wrong"));
  }
  for (const auto& [code, count] : total.errors) {
    if (all_errors_allowed || allowed_errors.count(code) > 0) continue;
    return absl::Status(
        code, absl::StrCat(total.error_count(), " requests ended in errors"));
  }
  if (plan.verified_fraction > 0 && total.answered > 0 && total.verified == 0) {
    return absl::NotFoundError(absl::StrCat(
        "--verify compared none of ", total.answered,
        " answers; let there be more of them, or more --verify_rows"));
  }
  return absl::OkStatus();
}

absl::StatusOr<LoadOptions> ParseCommandLine(int argc, char** argv) {
  std::vector<std::string> arguments = WithOptionalValues(argc, argv);
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  const std::vector<char*> positional = ParseProgramFlags(
      {.name = "attention-load", .usage = kUsage, .flags_file = "options.cc"},
      static_cast<int>(pointers.size()), pointers.data());
  if (positional.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("unexpected argument \"", positional[1], "\""));
  }

  LoadOptions options;
  const GivenFlags given(arguments);
  absl::StatusOr<LoadPlan> plan = PlanFromFlags(given);
  if (!plan.ok()) return plan.status();
  options.plan = *std::move(plan);
  const std::string transport = absl::GetFlag(FLAGS_transport);
  absl::StatusOr<std::optional<DecodePlan>> decode =
      DecodePlanFromFlags(given, options.plan, transport);
  if (!decode.ok()) return decode.status();
  options.decode = *std::move(decode);
  absl::StatusOr<ShapeMix> mix = options.decode.has_value()
                                     ? TapesFromFlags(given, *options.decode)
                                     : MixFromFlags();
  if (!mix.ok()) return mix.status();
  options.mix = *std::move(mix);

  const int64_t input_memory_mib = absl::GetFlag(FLAGS_input_memory_mib);
  options.inputs = {
      .inputs_per_shape = absl::GetFlag(FLAGS_inputs),
      .max_bytes = std::min(input_memory_mib, int64_t{1} << 40) * (1 << 20),
      .verified_rows = options.plan.verified_fraction > 0
                           ? absl::GetFlag(FLAGS_verify_rows)
                           : 0,
      .seed = options.plan.seed};
  options.sender = {.targets = absl::GetFlag(FLAGS_server),
                    .channels_per_target = absl::GetFlag(FLAGS_channels),
                    .timeout = absl::GetFlag(FLAGS_timeout),
                    .max_attempts = absl::GetFlag(FLAGS_max_attempts),
                    .poll_time = absl::GetFlag(FLAGS_poll_time)};
  options.placement = transport == "shm"        ? Placement::kSharedMemory
                      : transport == "cuda_ipc" ? Placement::kCudaIpc
                                                : Placement::kOwnMemory;
  options.sender.transport =
      transport == "stream" ? Transport::kStream : Transport::kMessage;
  const absl::StatusOr<bool> uses_streams = UsesStreams(given, transport);
  if (!uses_streams.ok()) return uses_streams.status();
  options.sender.uses_streams = *uses_streams;
  options.cuda_device = absl::GetFlag(FLAGS_cuda_device);
  options.connect_timeout = absl::GetFlag(FLAGS_connect_timeout);
  options.json_path = absl::GetFlag(FLAGS_json);
  options.csv_path = absl::GetFlag(FLAGS_csv);

  absl::Status status;
  if (options.placement == Placement::kOwnMemory && transport != "inline" &&
      transport != "stream") {
    status.Update(
        Wrong("transport",
              absl::StrCat("must be one of inline, stream, shm, cuda_ipc; got "
                           "\"",
                           transport, "\"")));
  }
  if (transport == "inline" && !options.decode.has_value()) {
    status.Update(CheckMessageSizes(options.mix));
  }
  status.Update(CheckAtLeast("cuda_device", options.cuda_device, 0));
  status.Update(CheckAtLeast("inputs", options.inputs.inputs_per_shape, 1));
  status.Update(CheckAtLeast("input_memory_mib", input_memory_mib, 1));
  status.Update(
      CheckAtLeast("verify_rows", absl::GetFlag(FLAGS_verify_rows), 1));
  status.Update(
      CheckAtLeast("channels", options.sender.channels_per_target, 1));
  status.Update(CheckAtLeast("max_attempts", options.sender.max_attempts, 1));
  status.Update(
      CheckAtLeast("timeout", options.sender.timeout, absl::Milliseconds(1)));
  status.Update(CheckAtLeast("connect_timeout", options.connect_timeout,
                             absl::Milliseconds(1)));
  if (options.sender.targets.empty()) {
    status.Update(Wrong("server", "must name at least one target"));
  }
  status.Update(AllowedErrorsFromFlags(options));
  status.Update(ProgressFromFlags(options));
  if (!status.ok()) return status;
  return options;
}

}  // namespace attention::loadtest
