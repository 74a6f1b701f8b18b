#include "client/loadtest/decode_options.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"

ABSL_FLAG(std::string, mode, "attention",
          "\"attention\": stateless requests. \"decode\": sessions, whose keys "
          "and values stay on the server; --concurrency clients, each with a "
          "model of its own");
ABSL_FLAG(int32_t, sessions, 1, "Decoding: sessions of each client");
ABSL_FLAG(int32_t, layers, 1,
          "Decoding: layers of the model; a step visits them one call after "
          "the other");
ABSL_FLAG(int32_t, layers_per_call, 1,
          "Decoding: layers in one call, a divisor of --layers");
ABSL_FLAG(int64_t, context, 4096,
          "Decoding: tokens that each layer has at the beginning");
ABSL_FLAG(int64_t, step_tokens, 1,
          "Decoding: tokens that a step appends to each session");
ABSL_FLAG(int64_t, turn_tokens, 256,
          "Decoding: after so many tokens, a multiple of --step_tokens, "
          "sessions are cut back to --context");
ABSL_FLAG(std::string, kv_dtype, "same",
          "Decoding: how keys and values are stored, \"same\" or \"fp8\"");
ABSL_FLAG(std::string, split_policy, "server",
          "Decoding: how keys may be cut, \"fixed\", \"balanced\" or as the "
          "\"server\" does by itself");
ABSL_FLAG(bool, reserve, true,
          "Decoding: reserve memory for all tokens that sessions will have. "
          "Those that do not are spilled by servers with "
          "--session_spill_memory");

namespace attention::loadtest {
namespace {

constexpr int64_t kMaxSessions = 1'000'000;
constexpr int64_t kMaxTokens = int64_t{1} << 31;

absl::Status CheckRange(absl::string_view flag, int64_t value, int64_t low,
                        int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--", flag, " must be in [", low, ", ", high, "]; got ", value));
}

absl::Status Wrong(absl::string_view what) {
  return absl::InvalidArgumentError(what);
}

absl::Status CheckCombination(const LoadPlan& load, const DecodePlan& plan,
                              absl::string_view transport) {
  if (load.rate.has_value()) {
    return Wrong("--mode=decode is a closed loop, without --rate");
  }
  if (transport != "inline" && transport != "stream") {
    return Wrong(
        absl::StrCat("--transport must be inline or stream with "
                     "--mode=decode; got \"",
                     transport, "\""));
  }
  if (plan.layer_count % plan.layers_per_call != 0) {
    return Wrong(absl::StrCat("--layers_per_call must divide --layers; got ",
                              plan.layers_per_call, " and ", plan.layer_count));
  }
  if (plan.turn_tokens % plan.step_tokens != 0) {
    return Wrong(
        absl::StrCat("--turn_tokens must be a multiple of "
                     "--step_tokens; got ",
                     plan.turn_tokens, " and ", plan.step_tokens));
  }
  if (plan.kv_data_type != KvDataType::kSame && load.verified_fraction > 0) {
    return Wrong("--verify does not know what --kv_dtype=fp8 rounds to");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::optional<DecodePlan>> DecodePlanFromFlags(
    const GivenFlags& given, const LoadPlan& load,
    absl::string_view transport) {
  const std::string mode = absl::GetFlag(FLAGS_mode);
  if (mode == "attention") {
    if (auto s =
            given.Refuse({"sessions", "layers", "layers_per_call", "context",
                          "step_tokens", "turn_tokens", "kv_dtype",
                          "split_policy"},
                         "of --mode=decode");
        !s.ok()) {
      return s;
    }
    return std::nullopt;
  }
  if (mode != "decode") {
    return Wrong(absl::StrCat("--mode must be one of attention, decode; got \"",
                              mode, "\""));
  }
  const std::string kv_dtype = absl::GetFlag(FLAGS_kv_dtype);
  if (kv_dtype != "same" && kv_dtype != "fp8") {
    return Wrong(absl::StrCat("--kv_dtype must be one of same, fp8; got \"",
                              kv_dtype, "\""));
  }
  const std::string split_policy = absl::GetFlag(FLAGS_split_policy);
  if (split_policy != "server" && split_policy != "fixed" &&
      split_policy != "balanced") {
    return Wrong(
        absl::StrCat("--split_policy must be one of server, fixed, balanced; "
                     "got \"",
                     split_policy, "\""));
  }
  DecodePlan plan;
  plan.client_count =
      static_cast<int>(std::min(load.max_outstanding, kMaxSessions));
  plan.sessions_per_client = absl::GetFlag(FLAGS_sessions);
  plan.layer_count = absl::GetFlag(FLAGS_layers);
  plan.layers_per_call = absl::GetFlag(FLAGS_layers_per_call);
  plan.context = absl::GetFlag(FLAGS_context);
  plan.step_tokens = absl::GetFlag(FLAGS_step_tokens);
  plan.turn_tokens = absl::GetFlag(FLAGS_turn_tokens);
  plan.kv_data_type =
      kv_dtype == "fp8" ? KvDataType::kFloat8E4M3 : KvDataType::kSame;
  if (split_policy != "server") {
    plan.split_policy = split_policy == "balanced" ? SplitPolicy::kBalanced
                                                   : SplitPolicy::kFixed;
  }
  plan.reserves = absl::GetFlag(FLAGS_reserve);
  plan.streamed = transport == "stream";

  absl::Status status;
  status.Update(
      CheckRange("sessions", plan.sessions_per_client, 1, kMaxSessions));
  status.Update(CheckRange("layers", plan.layer_count, 1, 1024));
  status.Update(CheckRange("layers_per_call", plan.layers_per_call, 1, 1024));
  status.Update(CheckRange("context", plan.context, 0, kMaxTokens));
  status.Update(CheckRange("step_tokens", plan.step_tokens, 1, kMaxTokens));
  status.Update(CheckRange("turn_tokens", plan.turn_tokens, 1, kMaxTokens));
  if (status.ok()) status = CheckCombination(load, plan, transport);
  status.Update(
      given.Refuse({"calls", "threads", "cuda_device"}, "of --mode=attention"));
  if (!status.ok()) return status;
  return plan;
}

}  // namespace attention::loadtest
