#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <map>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/answer_check.h"
#include "client/cli/attend_input.h"
#include "client/cli/byte_format.h"
#include "client/cli/commands.h"
#include "client/cli/exit_codes.h"
#include "client/cli/progress_line.h"
#include "client/output_file/output_file.h"
#include "kernels/validation.h"

namespace attention::cli {
namespace {

std::string FormatShape(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

double Milliseconds(const google::protobuf::Duration& duration) {
  return 1e3 * static_cast<double>(duration.seconds()) +
         1e-6 * static_cast<double>(duration.nanos());
}

void PrintSummary(const AttentionRequest& request,
                  const AttentionResult& result, absl::Duration elapsed) {
  absl::PrintF("query    %s %s, key %s, value %s, layout %s\n",
               ToString(request.data_type), FormatShape(request.query.shape),
               FormatShape(request.key.shape), FormatShape(request.value.shape),
               LayoutName(request.layout));
  absl::PrintF("output   %s", FormatShape(result.output_shape));
  if (request.return_log_sum_exp) {
    absl::PrintF(", log-sum-exp %s", FormatShape(result.log_sum_exp_shape));
  }
  if (request.return_weights) {
    absl::PrintF(", weights %s", FormatShape(result.weights_shape));
  }
  absl::PrintF("\nmask     %s", ToString(request.mask));
  if (request.window_left.has_value()) {
    absl::PrintF(", window left %d", *request.window_left);
  }
  if (request.window_right.has_value()) {
    absl::PrintF(", window right %d", *request.window_right);
  }
  const v1::ComputeAttentionTimings& timings = result.timings;
  const double total = absl::ToDoubleMilliseconds(elapsed);
  const double queue = Milliseconds(timings.queue_duration());
  const double copy_in = Milliseconds(timings.copy_in_duration());
  const double compute = Milliseconds(timings.compute_duration());
  const double copy_out = Milliseconds(timings.copy_out_duration());
  absl::PrintF(
      "\ntime     %.2f ms: queue %.2f, copy in %.2f, compute %.2f, copy out "
      "%.2f, connection, wire and client %.2f\n",
      total, queue, copy_in, compute, copy_out,
      total - queue - copy_in - compute - copy_out);
  absl::PrintF("batch    %d request(s), %d sequence(s), on %s\n",
               timings.batch_request_count(), timings.batch_sequence_count(),
               timings.device_name());
  const size_t sent = request.query.size_bytes + request.key.size_bytes +
                      request.value.size_bytes;
  const size_t received =
      result.output.size() + result.log_sum_exp.size() + result.weights.size();
  absl::PrintF("bytes    %s sent, %s received, %.3g GB/s in all\n",
               FormatBytes(static_cast<int64_t>(sent)),
               FormatBytes(static_cast<int64_t>(received)),
               static_cast<double>(sent + received) / (total * 1e6));
}

absl::Status WriteOutput(const std::string& path, const AttendInput& input,
                         const AttentionResult& result) {
  const SafetensorsType type = ToSafetensorsType(result.data_type);
  std::map<std::string, SafetensorsTensor> tensors;
  tensors["o"] = {type, result.output_shape, result.output};
  if (input.request.return_log_sum_exp) {
    tensors["lse"] = {SafetensorsType::kF32, result.log_sum_exp_shape,
                      result.log_sum_exp};
  }
  if (input.request.return_weights) {
    tensors["weights"] = {type, result.weights_shape, result.weights};
  }
  return WriteSafetensors(path, tensors,
                          {{"layout", LayoutName(input.request.layout)}});
}

// Finds out what would make the answer impossible to keep before it is
// computed.
absl::Status CheckOutput(const Arguments& arguments) {
  const std::string input = arguments.GetString("input", "");
  const std::string output = arguments.GetString("output", "");
  std::error_code error;  // nothing at one of the paths: not the same file
  if (std::filesystem::equivalent(input, output, error)) {
    return InvalidUsage(absl::InvalidArgumentError(
        absl::StrCat("--output=", output, " is the file of --input=", input,
                     "; it would be overwritten")));
  }
  return CheckOutputFile(output);
}

absl::StatusOr<int> Check(const AttendInput& input,
                          const AttentionResult& result, bool progress) {
  absl::StatusOr<CheckReport> report;
  {
    ProgressLine line("computing the float64 reference", progress);
    report = CheckAnswer(input.request, result);
  }
  if (!report.ok()) return report.status();
  absl::PrintF("check    max error: output %.3g", report->output_error);
  if (input.request.return_log_sum_exp) {
    absl::PrintF(", log-sum-exp %.3g", report->log_sum_exp_error);
  }
  if (input.request.return_weights) {
    absl::PrintF(", weights %.3g", report->weights_error);
  }
  const bool good = report->worst <= 1;
  absl::PrintF("; %s (%.3g of the tolerance)\n", good ? "passed" : "FAILED",
               report->worst);
  return good ? kExitOk : kExitCheckFailed;
}

absl::StatusOr<int> Run(const Arguments& arguments) {
  auto client = Connect(arguments);
  if (!client.ok()) return client.status();
  const auto input = ReadAttendInput(arguments);
  if (!input.ok()) return input.status();
  if (!input->from_metadata.empty()) {
    absl::FPrintF(stderr, "From the file's metadata: %s\n",
                  absl::StrJoin(input->from_metadata, ", "));
  }

  if (arguments.Has("output")) {
    if (absl::Status s = CheckOutput(arguments); !s.ok()) return s;
  }

  const AttentionRequest& request = input->request;
  const bool progress = arguments.Has("progress") || isatty(STDERR_FILENO) == 1;
  const size_t sent = request.query.size_bytes + request.key.size_bytes +
                      request.value.size_bytes;
  const absl::Time start = absl::Now();
  absl::StatusOr<AttentionResult> result;
  {
    ProgressLine line(absl::StrCat("sending ", FormatBytes(sent),
                                   " and waiting for the answer"),
                      progress);
    result = (*client)->Compute(request);
  }
  const absl::Duration elapsed = absl::Now() - start;
  if (!result.ok()) return result.status();

  PrintSummary(request, *result, elapsed);
  if (arguments.Has("output")) {
    const std::string path = arguments.GetString("output", "");
    absl::Status status = WriteOutput(path, *input, *result);
    if (!status.ok()) return status;
    absl::PrintF("written  %s\n", path);
  }
  if (!arguments.Has("check")) return kExitOk;
  return Check(*input, *result, progress);
}

}  // namespace

Command AttendCommand() {
  Command command;
  command.name = "attend";
  command.summary = "compute attention over the tensors of a file";
  command.help =
      "Sends query, key and value of a safetensors file and writes the output "
      "to\nanother one (tensors o, lse and weights).\n\n"
      "  attention-cli attend --input=qkv.safetensors --output=o.safetensors "
      "--causal\n";
  command.flags = AttendInputFlags();
  command.flags.push_back(
      {"output", "FILE",
       "safetensors file to write, another than the input\n(default: none)"});
  command.flags.push_back(
      {"check", "",
       "compare with a float64 computation here (slow for\nlarge inputs); "
       "exit with 3 if the error is too large"});
  command.flags.push_back(
      {"progress", "", "show progress even when stderr is not a terminal"});
  for (FlagSpec& flag : ConnectionFlags()) {
    command.flags.push_back(std::move(flag));
  }
  command.run = Run;
  return command;
}

}  // namespace attention::cli
