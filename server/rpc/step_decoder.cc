#include "server/rpc/step_decoder.h"

#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cost.h"
#include "server/rpc/checked_math.h"
#include "server/rpc/config_fields.h"
#include "server/rpc/tensor_dims.h"

namespace attention {
namespace {

// The name of a step's field in messages to the caller.
std::string FieldOf(const StepsRequest& request, size_t step,
                    absl::string_view field) {
  return request.has_items ? absl::StrCat("items[", step, "].", field)
                           : std::string(field);
}

absl::Status CheckStep(const StepsRequest& request, size_t i) {
  const RequestedStep& step = request.steps[i];
  if (step.token_count < 1 || step.token_count > kMaxTokens) {
    return InvalidField(FieldOf(request, i, "token_count"),
                        absl::StrCat("in [1, ", kMaxTokens, "]"),
                        step.token_count);
  }
  if (step.expected_position.has_value() &&
      (*step.expected_position < 0 ||
       *step.expected_position > kMaxLayerTokens)) {
    return InvalidField(FieldOf(request, i, "expected_position"),
                        absl::StrCat("in [0, ", kMaxLayerTokens, "]"),
                        *step.expected_position);
  }
  if (!step.key_range.has_value()) return absl::OkStatus();
  const auto [begin, end] = *step.key_range;
  if (begin < 0 || begin > kMaxLayerTokens) {
    return InvalidField(FieldOf(request, i, "key_range.begin"),
                        absl::StrCat("in [0, ", kMaxLayerTokens, "]"), begin);
  }
  if (end < begin || end > kMaxLayerTokens) {
    return InvalidField(FieldOf(request, i, "key_range.end"),
                        absl::StrCat("in [", begin, ", ", kMaxLayerTokens, "]"),
                        end);
  }
  return absl::OkStatus();
}

// Everything that does not depend on the sessions. Returns the token count.
absl::StatusOr<int64_t> CheckRequest(const StepsRequest& request) {
  if (request.steps.empty() || request.steps.size() > kMaxDecodeItems) {
    return InvalidField("the number of items",
                        absl::StrCat("in [1, ", kMaxDecodeItems, "]"),
                        static_cast<int64_t>(request.steps.size()));
  }
  if (auto s = CheckPriority(request.priority); !s.ok()) return s;
  int64_t tokens = 0;  // at most kMaxDecodeItems * kMaxTokens
  for (size_t i = 0; i < request.steps.size(); ++i) {
    if (auto s = CheckStep(request, i); !s.ok()) return s;
    tokens += request.steps[i].token_count;
  }
  if (tokens > kMaxTokens) {
    return InvalidField("the sum of token_count",
                        absl::StrCat("at most ", kMaxTokens), tokens);
  }
  return tokens;
}

// The same error, saying which item it is about.
absl::Status OfItem(const StepsRequest& request, size_t i,
                    const absl::Status& status) {
  if (!request.has_items) return status;
  absl::Status result(status.code(),
                      absl::StrCat("items[", i, "]: ", status.message()));
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    result.SetPayload(url, payload);
  });
  return result;
}

struct FoundStep {
  size_t index = 0;  // in the request
  SessionUse use;
};
using FoundSteps = absl::InlinedVector<FoundStep, 1>;

// Steps without a session fail alone, if they can.
absl::StatusOr<FoundSteps> FindSteps(const StepsRequest& request,
                                     FindLayer find, StepsPlan& plan) {
  FoundSteps found;
  found.reserve(request.steps.size());
  for (size_t i = 0; i < request.steps.size(); ++i) {
    const RequestedStep& step = request.steps[i];
    plan.items.push_back({.token_count = step.token_count});
    absl::StatusOr<SessionUse> use = find(step.session, step.layer);
    if (!use.ok()) {
      if (!request.has_items || absl::IsInvalidArgument(use.status())) {
        return OfItem(request, i, use.status());
      }
      plan.items.back().status = use.status();
      continue;
    }
    found.push_back({i, *std::move(use)});
    const FoundStep& first = found.front();
    if (!(found.back().use.config->paged == first.use.config->paged)) {
      return InvalidField(
          FieldOf(request, i, "session"),
          absl::StrCat("one with the head configuration of items[", first.index,
                       "].session"),
          step.session);
    }
  }
  return found;
}

// Bytes of one token of each tensor; 0 for those that the request has not.
struct TokenBytes {
  int64_t query = 0;
  int64_t key = 0;
  int64_t value = 0;
};

TokenBytes TokenBytesOf(const StepsRequest& request, const HeadConfig& heads) {
  const int64_t element_bytes = ElementBytes(heads.data_type);
  const int64_t key_row = heads.head_dim_qk * element_bytes;
  const int64_t value_row = heads.head_dim_v * element_bytes;
  return {.query = request.attends ? heads.query_head_count * key_row : 0,
          .key = request.appends ? heads.kv_head_count * key_row : 0,
          .value = request.appends ? heads.kv_head_count * value_row : 0};
}

absl::Status CheckSizes(const StepsRequest& request, const TokenBytes& bytes,
                        int64_t tokens) {
  const std::tuple<const char*, const Payload&, int64_t> tensors[] = {
      {"query", request.query, bytes.query},
      {"key", request.key, bytes.key},
      {"value", request.value, bytes.value}};
  for (const auto& [name, payload, token_bytes] : tensors) {
    const CheckedSize needed = CheckedSize(tokens) * token_bytes;
    const auto size = static_cast<int64_t>(payload.size_bytes());
    if (needed.valid() && needed.value() == size) continue;
    return InvalidField(
        absl::StrCat(name, " (its size in bytes)"),
        absl::StrCat(
            needed.valid() ? absl::StrCat(needed.value()) : "over 2^63", ", ",
            token_bytes, " for each of ", tokens, " tokens"),
        size);
  }
  return absl::OkStatus();
}

absl::Status PlanAnswer(const StepsRequest& request, const HeadConfig& heads,
                        int64_t tokens, const RequestLimits& limits,
                        StepsPlan& plan) {
  if (!request.attends) return absl::OkStatus();
  plan.output_token_bytes = int64_t{heads.query_head_count} * heads.head_dim_v *
                            ElementBytes(heads.data_type);
  if (request.return_log_sum_exp) {
    plan.log_sum_exp_token_bytes =
        heads.query_head_count * int64_t{sizeof(float)};
  }
  const CheckedSize message =
      CheckedSize(tokens) *
          (plan.output_token_bytes + plan.log_sum_exp_token_bytes) +
      kResponseMetadataBytes;
  if (!message.Exceeds(limits.max_message_bytes)) return absl::OkStatus();
  return TooLarge(
      "the response in bytes", absl::StrCat(limits.max_message_bytes),
      message.valid() ? absl::StrCat(message.value()) : "over 2^63");
}

// Hands out a payload piece by piece.
class PayloadCursor {
 public:
  explicit PayloadCursor(const Payload& payload) : payload_(payload) {}

  void Take(int64_t size, Payload& to) {
    while (size > 0) {
      const absl::string_view part =
          payload_.fragments[fragment_].substr(offset_, size);
      if (!part.empty()) to.fragments.push_back(part);
      size -= static_cast<int64_t>(part.size());
      offset_ += part.size();
      if (offset_ == payload_.fragments[fragment_].size()) {
        ++fragment_;
        offset_ = 0;
      }
    }
  }
  void Skip(int64_t size) {
    Payload skipped;
    Take(size, skipped);
  }

 private:
  const Payload& payload_;
  size_t fragment_ = 0;
  size_t offset_ = 0;
};

// Puts steps into the work of their device.
class StepsBuilder {
 public:
  StepsBuilder(const StepsRequest& request, const PagedConfig& config,
               double scale, DecodedSteps& decoded)
      : request_(request), config_(config), scale_(scale), decoded_(decoded) {}

  // Returns the floating point operations.
  double Add(FoundStep step) {
    const HeadConfig& heads = config_.heads;
    StepsPlan::Item& item = decoded_.plan.items[step.index];
    item.work = WorkOf(step.use.device);
    AttentionWork& work = *decoded_.works[item.work];
    int64_t& token = tokens_[item.work];
    item.sequence = static_cast<int>(work.sequences.size());

    const int64_t query_row =
        int64_t{heads.query_head_count} * heads.head_dim_qk;
    const int64_t output_row =
        int64_t{heads.query_head_count} * heads.head_dim_v;
    const int64_t key_row = int64_t{heads.kv_head_count} * heads.head_dim_qk;
    const int64_t value_row = int64_t{heads.kv_head_count} * heads.head_dim_v;
    const RequestedStep& requested = request_.steps[step.index];
    const int64_t append_length = request_.appends ? requested.token_count : 0;
    WorkSequence s;
    s.query_offset = token * query_row;
    s.key_offset = token * key_row;
    s.value_offset = token * value_row;
    s.output_offset = token * output_row;
    s.log_sum_exp_offset = token * heads.query_head_count;
    s.shape.query_strides = {query_row, heads.head_dim_qk, 1};
    s.shape.key_strides = {key_row, heads.head_dim_qk, 1};
    s.shape.value_strides = {value_row, heads.head_dim_v, 1};
    s.shape.output_strides = {output_row, heads.head_dim_v, 1};
    s.shape.log_sum_exp_token_stride = heads.query_head_count;
    s.shape.log_sum_exp_head_stride = 1;
    s.shape.query_length = request_.attends ? requested.token_count : 0;
    s.shape.key_length = step.use.layer_length + append_length;
    s.shape.scale = scale_;
    s.shape.window_left = step.use.config->window_left;
    work.sequences.push_back(s);
    work.kv_steps.push_back({.layer = std::move(step.use.layer),
                             .append_length = append_length,
                             .query_length = s.shape.query_length,
                             .expected_position = requested.expected_position,
                             .key_range = requested.key_range});
    work.output_bytes +=
        requested.token_count * decoded_.plan.output_token_bytes;
    work.log_sum_exp_bytes +=
        requested.token_count * decoded_.plan.log_sum_exp_token_bytes;
    token += requested.token_count;
    return EffectiveFlops(heads, s.shape);
  }

 private:
  int WorkOf(int device) {
    Works& works = decoded_.works;
    for (size_t i = 0; i < works.size(); ++i) {
      if (works[i]->required_device == device) return static_cast<int>(i);
    }
    auto work = std::make_unique<AttentionWork>();
    work->config = config_.heads;
    work->kv_data_type = config_.kv_data_type;
    work->page_tokens = config_.page_tokens;
    work->split_policy = config_.split_policy;
    work->required_device = device;
    work->priority = request_.priority;
    works.push_back(std::move(work));
    tokens_.push_back(0);
    return static_cast<int>(works.size()) - 1;
  }

  const StepsRequest& request_;
  const PagedConfig& config_;
  const double scale_;
  DecodedSteps& decoded_;
  absl::InlinedVector<int64_t, 1> tokens_;  // of each work
};

// Gives each work the tokens of its steps, in order.
void SetPayloads(StepsRequest request, const TokenBytes& bytes,
                 DecodedSteps& decoded) {
  Works& works = decoded.works;
  if (works.size() == 1 &&
      works.front()->sequences.size() == request.steps.size()) {
    works.front()->query = std::move(request.query);
    works.front()->key = std::move(request.key);
    works.front()->value = std::move(request.value);
    return;
  }
  const std::tuple<const Payload&, int64_t, Payload AttentionWork::*>
      tensors[] = {{request.query, bytes.query, &AttentionWork::query},
                   {request.key, bytes.key, &AttentionWork::key},
                   {request.value, bytes.value, &AttentionWork::value}};
  for (const auto& [payload, token_bytes, member] : tensors) {
    PayloadCursor cursor(payload);
    for (const StepsPlan::Item& item : decoded.plan.items) {
      const int64_t size = item.token_count * token_bytes;
      if (item.status.ok()) {
        cursor.Take(size, *works[item.work].*member);
      } else {
        cursor.Skip(size);
      }
    }
  }
}

}  // namespace

absl::StatusOr<DecodedSteps> DecodeSteps(StepsRequest request, FindLayer find,
                                         const RequestLimits& limits) {
  const absl::StatusOr<int64_t> tokens = CheckRequest(request);
  if (!tokens.ok()) return tokens.status();
  DecodedSteps decoded;
  absl::StatusOr<FoundSteps> found = FindSteps(request, find, decoded.plan);
  if (!found.ok()) return found.status();
  // Nothing tells how large the tensors should be.
  if (found->empty()) return decoded;

  const std::shared_ptr<const SessionConfig> config = found->front().use.config;
  const HeadConfig& heads = config->paged.heads;
  double scale;
  if (auto s = ReadScale(request.scale, heads.head_dim_qk, scale); !s.ok()) {
    return s;
  }
  const TokenBytes bytes = TokenBytesOf(request, heads);
  if (auto s = CheckSizes(request, bytes, *tokens); !s.ok()) return s;
  if (auto s = PlanAnswer(request, heads, *tokens, limits, decoded.plan);
      !s.ok()) {
    return s;
  }
  StepsBuilder builder(request, config->paged, scale, decoded);
  double flops = 0;
  for (FoundStep& step : *found) flops += builder.Add(std::move(step));
  if (flops > limits.max_request_flops) {
    return TooLarge("the floating point operations of the request",
                    absl::StrCat(limits.max_request_flops),
                    absl::StrCat(flops));
  }
  SetPayloads(std::move(request), bytes, decoded);
  return decoded;
}

}  // namespace attention
