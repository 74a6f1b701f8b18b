#include "client/loadtest/decode_plan.h"

#include "absl/strings/str_cat.h"

namespace attention::loadtest {
namespace {

std::string Counted(int64_t count, absl::string_view noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

}  // namespace

absl::StatusOr<RequestShape> TapeShape(const RequestShape& shape,
                                       const DecodePlan& plan) {
  RequestShape tape = shape;
  tape.batch = 1;
  tape.query_length = plan.turn_tokens;
  tape.key_length = plan.context + plan.turn_tokens;
  tape.mask = MaskKind::kCausalBottomRight;
  tape.layout = Layout::kBshd;
  return tape.Resolve();
}

AnswerSize SizeOfCall(const RequestShape& tape_shape, const DecodePlan& plan) {
  RequestShape step = tape_shape;
  step.query_length = plan.step_tokens;
  step.key_length = plan.step_tokens;
  const int64_t items =
      int64_t{plan.sessions_per_client} * plan.layers_per_call;
  AnswerSize size;
  size.query_tokens = items * plan.step_tokens;
  size.bytes_out = static_cast<double>(items * step.RequestBytes());
  size.bytes_in =
      static_cast<double>(items * (step.OutputBytes() + step.LogSumExpBytes()));
  // Keys grow during a turn: of its middle.
  step.key_length = plan.context + (plan.turn_tokens + plan.step_tokens) / 2;
  size.flops = static_cast<double>(items) * step.Flops();
  return size;
}

std::string Describe(const DecodePlan& plan) {
  return absl::StrCat(Counted(plan.client_count, "client"), ", ",
                      Counted(plan.sessions_per_client, "session"), " each, ",
                      Counted(plan.context, "token"), " in ",
                      Counted(plan.layer_count, "layer"), ", ",
                      plan.layers_per_call, " a call, steps of ",
                      Counted(plan.step_tokens, "token"), ", ",
                      plan.streamed ? "StreamDecode" : "Decode");
}

}  // namespace attention::loadtest
