#include <cstdio>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "client/cli/byte_format.h"
#include "client/cli/commands.h"
#include "client/cli/exit_codes.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/repeated_field.h"
#include "google/protobuf/util/json_util.h"

namespace attention::cli {
namespace {

std::string LimitOrNone(int64_t limit) {
  return limit == 0 ? "unlimited" : absl::StrCat(limit);
}

std::string BytesOrNone(int64_t limit) {
  return limit == 0 ? "unlimited" : FormatBytes(limit);
}

std::string TimeOrNone(const google::protobuf::Duration& limit) {
  const absl::Duration time =
      absl::Seconds(limit.seconds()) + absl::Nanoseconds(limit.nanos());
  return time == absl::ZeroDuration() ? "unlimited" : absl::FormatDuration(time);
}

// " float32 bfloat16" of DATA_TYPE_FLOAT32 and DATA_TYPE_BFLOAT16.
std::string Names(const google::protobuf::RepeatedField<int>& values,
                  const google::protobuf::EnumDescriptor* descriptor,
                  absl::string_view prefix) {
  std::string text;
  for (const int value : values) {
    const auto* name = descriptor->FindValueByNumber(value);
    // A newer server may name values that this program does not know.
    absl::StrAppend(&text, " ",
                    name == nullptr ? absl::StrCat(value)
                                    : absl::AsciiStrToLower(absl::StripPrefix(
                                          name->name(), prefix)));
  }
  return text;
}

void Print(const v1::GetServerInfoResponse& info) {
  absl::PrintF("server      %s, %s backend\n", info.version(), info.backend());
  for (const v1::DeviceInfo& device : info.devices()) {
    absl::PrintF("device      %s: %s, %d %s, memory %s (budget %s)\n",
                 device.name(), device.model(), device.processor_count(),
                 device.compute_capability().empty()
                     ? "threads"
                     : absl::StrCat("SMs, compute capability ",
                                    device.compute_capability()),
                 FormatBytes(device.memory_bytes()),
                 FormatBytes(device.memory_budget_bytes()));
  }
  const v1::ServerLimits& limits = info.limits();
  absl::PrintF("message     at most %s\n",
               BytesOrNone(limits.max_message_bytes()));
  absl::PrintF("tensors     at most %s in one request, in and out\n",
               BytesOrNone(limits.max_request_bytes()));
  absl::PrintF("request     at most %s, %s sequences\n",
               limits.max_request_flops() == 0
                   ? "unlimited FLOP"
                   : absl::StrFormat("%.3g FLOP", limits.max_request_flops()),
               LimitOrNone(limits.max_request_sequences()));
  absl::PrintF("batch       at most %s requests, %s, %s query tokens\n",
               LimitOrNone(limits.max_batch_requests()),
               BytesOrNone(limits.max_batch_bytes()),
               LimitOrNone(limits.max_batch_tokens()));
  absl::PrintF("queue       at most %s requests, %s, %s of predicted time\n",
               LimitOrNone(limits.max_queued_requests()),
               BytesOrNone(limits.max_queued_bytes()),
               TimeOrNone(limits.max_queued_time()));
  const v1::SupportedConfigurations& can = info.supported_configurations();
  absl::PrintF(
      "types      %s\n",
      Names(can.data_types(), v1::DataType_descriptor(), "DATA_TYPE_"));
  absl::PrintF("layouts    %s\n",
               Names(can.layouts(), v1::Layout_descriptor(), "LAYOUT_"));
  absl::PrintF(
      "masks      %s\n",
      Names(can.mask_types(), v1::MaskType_descriptor(), "MASK_TYPE_"));
  absl::PrintF(
      "precisions %s\n",
      Names(can.precisions(), v1::Precision_descriptor(), "PRECISION_"));
  absl::PrintF(
      "algorithms %s\n",
      Names(can.algorithms(), v1::Algorithm_descriptor(), "ALGORITHM_"));
  absl::PrintF("head dim    %d to %d\n", can.min_head_dim(),
               can.max_head_dim());
  absl::PrintF("LSE         %s\n", info.log_sum_exp_convention());
}

absl::StatusOr<int> Run(const Arguments& arguments) {
  auto client = Connect(arguments);
  if (!client.ok()) return client.status();
  const auto info = (*client)->GetServerInfo();
  if (!info.ok()) return info.status();
  if (!arguments.Has("json")) {
    Print(*info);
    return kExitOk;
  }
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string json;
  if (!google::protobuf::util::MessageToJsonString(*info, &json, options)
           .ok()) {
    return absl::InternalError("the server's answer has no JSON form");
  }
  absl::PrintF("%s", json);
  return kExitOk;
}

}  // namespace

Command InfoCommand() {
  Command command;
  command.name = "info";
  command.summary = "show the server's version, devices and limits";
  command.help =
      "Shows what the server is, what it runs on and what it accepts.\n";
  command.flags = ConnectionFlags();
  command.flags.push_back(
      {"json", "", "print the GetServerInfoResponse as JSON"});
  command.run = Run;
  return command;
}

}  // namespace attention::cli
