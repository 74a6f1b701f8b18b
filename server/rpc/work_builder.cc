#include "server/rpc/work_builder.h"

#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cost.h"
#include "server/engine/error_reason.h"
#include "server/rpc/checked_math.h"
#include "server/rpc/config_fields.h"

namespace attention {
namespace {

// The query's dimensions without the last, in the request's layout.
Shape RowShape(const Problem& p) {
  const TensorDims& q = p.query;
  switch (p.layout) {
    case v1::LAYOUT_BHSD: return {q.batch, q.heads, q.tokens};
    case v1::LAYOUT_THD: return {q.tokens, q.heads};
    default: return {q.batch, q.tokens, q.heads};
  }
}

CheckedSize Product(const Shape& sizes) {
  CheckedSize product = 1;
  for (int64_t size : sizes) {
    if (size == 0) return 0;  // also when the other sizes overflow
  }
  for (int64_t size : sizes) product = product * size;
  return product;
}

// Elements that the weights of sequence `b` take in the answer: room for the
// longest sequence, except in a ragged batch.
CheckedSize WeightCount(const Problem& p, size_t b) {
  return p.ragged() ? Product({p.query.heads, p.query_lengths[b],
                               p.key_lengths[b]})
                    : Product({p.query.heads, p.query.tokens, p.key.tokens});
}

// Sizes of the answer, checked against the limit.
absl::Status PlanResponse(const Problem& p, const RequestLimits& limits,
                          DecodedRequest& decoded) {
  ResponsePlan& plan = decoded.plan;
  const DataType output_type = OutputType(p.config.data_type);
  plan.data_type = ProtoDataType(output_type);
  plan.log_sum_exp_shape = RowShape(p);
  plan.output_shape = plan.log_sum_exp_shape;
  plan.output_shape.push_back(p.value.dim);
  plan.has_log_sum_exp = p.return_log_sum_exp;
  plan.has_weights = p.return_weights;

  const int64_t element_bytes = ElementBytes(output_type);
  const CheckedSize rows = Product(plan.log_sum_exp_shape);
  const CheckedSize output = rows * p.value.dim * element_bytes;
  const CheckedSize log_sum_exp =
      p.return_log_sum_exp ? rows * int64_t{sizeof(float)} : CheckedSize(0);
  CheckedSize weights = 0;
  if (p.return_weights) {
    for (size_t b = 0; b < p.query_lengths.size(); ++b) {
      weights = weights + WeightCount(p, b);
    }
    plan.weights_shape =
        p.ragged() ? Shape{weights.value()}
                   : Shape{p.query.batch, p.query.heads, p.query.tokens,
                           p.key.tokens};
    weights = weights * element_bytes;
  }
  // What goes to a region has its size, and so cannot be too large.
  const std::tuple<const char*, const RegionRange*, CheckedSize> tensors[] = {
      {"output_reference", p.targets.output.get(), output},
      {"log_sum_exp_reference", p.targets.log_sum_exp.get(), log_sum_exp},
      {"weights_reference", p.targets.weights.get(), weights}};
  CheckedSize message = kResponseMetadataBytes;
  for (const auto& [field, target, size] : tensors) {
    if (target == nullptr) {
      message = message + size;
    } else if (!size.valid() ||
               static_cast<size_t>(size.value()) != target->size_bytes()) {
      return InvalidField(
          absl::StrCat(field, ".byte_size"),
          absl::StrCat("the size of the tensor, which is ",
                       size.valid() ? absl::StrCat(size.value()) : "over 2^63"),
          static_cast<int64_t>(target->size_bytes()));
    }
  }
  if (message.Exceeds(limits.max_message_bytes)) {
    return TooLarge(
        "the response in bytes", absl::StrCat(limits.max_message_bytes),
        message.valid() ? absl::StrCat(message.value()) : "over 2^63");
  }
  plan.targets = p.targets;
  decoded.work->output_bytes = output.value();
  decoded.work->log_sum_exp_bytes = log_sum_exp.value();
  decoded.work->weights_bytes = weights.value();
  return absl::OkStatus();
}

// Where in the tensors a sequence begins.
struct Cursor {
  int64_t batch = 0;
  int64_t query_token = 0;
  int64_t key_token = 0;
  int64_t weights = 0;
};

// No offset overflows: all lie inside a payload or an answer of bounded size.
WorkSequence MakeSequence(const Problem& p, const Cursor& at) {
  WorkSequence s;
  s.query_offset = at.batch * p.query.batch_stride +
                   at.query_token * p.query.strides.token;
  s.key_offset =
      at.batch * p.key.batch_stride + at.key_token * p.key.strides.token;
  s.value_offset =
      at.batch * p.value.batch_stride + at.key_token * p.value.strides.token;
  s.shape.query_strides = p.query.strides;
  s.shape.key_strides = p.key.strides;
  s.shape.value_strides = p.value.strides;

  const bool heads_first = p.layout == v1::LAYOUT_BHSD;
  const int64_t token_rows = heads_first ? 1 : p.query.heads;
  const int64_t head_rows = heads_first ? p.query.tokens : 1;
  const int64_t first_row =
      at.batch * p.query.tokens * p.query.heads + at.query_token * token_rows;
  s.output_offset = first_row * p.value.dim;
  s.log_sum_exp_offset = first_row;
  s.weights_offset = at.weights;
  s.shape.output_strides = {token_rows * p.value.dim, head_rows * p.value.dim, 1};
  s.shape.log_sum_exp_token_stride = token_rows;
  s.shape.log_sum_exp_head_stride = head_rows;

  s.shape.scale = p.scale;
  s.shape.window_left = p.window_left;
  s.shape.window_right = p.window_right;
  return s;
}

absl::Status AddSequences(const Problem& p, const RequestLimits& limits,
                          DecodedRequest& decoded) {
  AttentionWork& work = *decoded.work;
  work.sequences.reserve(p.query_lengths.size());
  Cursor at;
  double flops = 0;
  bool short_weights = false;  // with a gap, where either length is short
  for (size_t b = 0; b < p.query_lengths.size(); ++b) {
    WorkSequence s = MakeSequence(p, at);
    s.shape.query_length = p.query_lengths[b];
    s.shape.key_length = p.key_lengths[b];
    flops += EffectiveFlops(p.config, s.shape);
    work.sequences.push_back(s);
    if (p.return_weights) at.weights += WeightCount(p, b).value();
    if (p.ragged()) {
      at.query_token += p.query_lengths[b];
      at.key_token += p.key_lengths[b];
    } else {
      ++at.batch;
      work.has_padding |= p.query_lengths[b] < p.query.tokens;
      short_weights |= p.return_weights && (p.query_lengths[b] < p.query.tokens ||
                                            p.key_lengths[b] < p.key.tokens);
    }
  }
  if (flops > limits.max_request_flops) {
    return TooLarge("the floating point operations of the request",
                    absl::StrCat(limits.max_request_flops), absl::StrCat(flops));
  }
  if (short_weights) {
    work.has_padding = true;
    for (size_t b = 0; b < p.query_lengths.size(); ++b) {
      decoded.plan.padded_lengths.emplace_back(p.query_lengths[b],
                                               p.key_lengths[b]);
    }
  }
  return absl::OkStatus();
}

// Lets the device write to the targets. Not weights whose rows the encoder has
// yet to move.
void SetTargets(const Problem& p, DecodedRequest& decoded) {
  AttentionWork& work = *decoded.work;
  const std::pair<const RegionRange*, DirectMemory*> targets[] = {
      {p.targets.output.get(), &work.output_target},
      {p.targets.log_sum_exp.get(), &work.log_sum_exp_target},
      {decoded.plan.padded_lengths.empty() ? p.targets.weights.get() : nullptr,
       &work.weights_target}};
  for (auto [target, direct] : targets) {
    if (target != nullptr) *direct = target->direct_memory();
  }
}

}  // namespace

absl::Status TooLarge(absl::string_view what, absl::string_view bound,
                      absl::string_view value) {
  return WithReason(absl::ResourceExhaustedError(absl::StrCat(
                        what, " must be at most ", bound, "; got ", value)),
                    error_reason::kRequestTooLarge);
}

absl::StatusOr<DecodedRequest> BuildWork(Problem problem,
                                         const RequestLimits& limits) {
  DecodedRequest decoded{std::make_unique<AttentionWork>(), {}};
  decoded.work->config = problem.config;
  decoded.work->scales = std::move(problem.scales);
  if (auto s = PlanResponse(problem, limits, decoded); !s.ok()) return s;
  // An answer without elements needs no computation.
  if (decoded.work->result_bytes() > 0) {
    if (auto s = AddSequences(problem, limits, decoded); !s.ok()) return s;
  }
  SetTargets(problem, decoded);
  return decoded;
}

}  // namespace attention
