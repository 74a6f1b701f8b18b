#include "kernels/validation.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/mask.h"

namespace attention {
namespace {

absl::Status OutOfRange(absl::string_view field, int64_t value, int64_t low,
                        int64_t high) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, " must be in [", low, ", ", high, "]; got ", value));
}

template <typename Enum>
absl::Status CheckEnum(absl::string_view field, Enum value, Enum last) {
  const auto number = static_cast<int64_t>(value);
  if (number < 0 || number > static_cast<int64_t>(last)) {
    return OutOfRange(field, number, 0, static_cast<int64_t>(last));
  }
  return absl::OkStatus();
}

constexpr int64_t kMaxLength = int64_t{1} << 40;

// What a Sequence and a PagedSequence have in common.
template <typename AnySequence>
absl::Status ValidateNumbers(const AnySequence& s) {
  if (s.query_length < 0 || s.query_length > kMaxLength) {
    return OutOfRange("query_length", s.query_length, 0, kMaxLength);
  }
  if (s.key_length < 0 || s.key_length > kMaxLength) {
    return OutOfRange("key_length", s.key_length, 0, kMaxLength);
  }
  if (!std::isfinite(s.scale)) {
    return absl::InvalidArgumentError(
        absl::StrCat("scale must be finite; got ", s.scale));
  }
  if (s.window_left < kUnlimitedWindow || s.window_right < kUnlimitedWindow) {
    return absl::InvalidArgumentError(
        absl::StrCat("window_left and window_right must be at least -1; got ",
                     s.window_left, " and ", s.window_right));
  }
  return absl::OkStatus();
}

// Of `count` heads.
absl::Status CheckScales(absl::string_view field, const float* scales,
                         int32_t count) {
  for (int32_t head = 0; head < count; ++head) {
    if (!std::isfinite(scales[head]) || scales[head] <= 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, "[", head,
                       "] must be finite and more than 0; got ", scales[head]));
    }
  }
  return absl::OkStatus();
}

// Of a tensor.
absl::Status CheckTensorScales(absl::string_view field, const float* scales,
                               DataType data_type, int32_t count) {
  if (scales == nullptr) return absl::OkStatus();
  if (data_type != DataType::kFloat8E4M3) {
    return absl::InvalidArgumentError(absl::StrCat(
        field, " are for data_type fp8 only, not ", ToString(data_type)));
  }
  return CheckScales(field, scales, count);
}

// Of pages.
absl::Status CheckPageScales(absl::string_view field, const float* scales,
                             int32_t count) {
  if (scales == nullptr && count > 0) {
    return absl::InvalidArgumentError(absl::StrCat(field, " must not be null"));
  }
  return CheckScales(field, scales, count);
}

absl::Status ValidateSequence(const HeadConfig& config, const Sequence& s) {
  if (auto status = ValidateNumbers(s); !status.ok()) return status;
  if (s.query_length == 0) return absl::OkStatus();
  if (s.query == nullptr || s.output == nullptr) {
    return absl::InvalidArgumentError("query and output must not be null");
  }
  if (s.key_length > 0 && (s.key == nullptr || s.value == nullptr)) {
    return absl::InvalidArgumentError("key and value must not be null");
  }
  if (s.weights != nullptr && config.algorithm != Algorithm::kThreeStep) {
    return absl::InvalidArgumentError(
        "weights are returned by the three-step algorithm only");
  }
  const DataType type = config.data_type;
  absl::Status status = CheckTensorScales("query_scales", s.query_scales, type,
                                          config.query_head_count);
  status.Update(CheckTensorScales("key_scales", s.key_scales, type,
                                  config.kv_head_count));
  status.Update(CheckTensorScales("value_scales", s.value_scales, type,
                                  config.kv_head_count));
  return status;
}

// Pages that hold a token of `tokens` are there.
absl::Status CheckPages(const PagedConfig& config, const PagedSequence& s,
                        KeyRange tokens) {
  if (tokens.begin >= tokens.end) return absl::OkStatus();
  const int64_t end = PagesFor(config, tokens.end);
  for (int64_t page = tokens.begin / config.page_tokens; page < end; ++page) {
    if (s.pages == nullptr || s.pages[page] == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          "pages[", page, "] is null, but is written or seen by a query"));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidatePagedSequence(const PagedConfig& config,
                                   const PagedSequence& s) {
  if (auto status = ValidateNumbers(s); !status.ok()) return status;
  if (s.append_length < 0 || s.append_length > s.key_length) {
    return OutOfRange("append_length", s.append_length, 0, s.key_length);
  }
  if (s.key_end < 0 || s.key_end > s.key_length) {
    return OutOfRange("key_end", s.key_end, 0, s.key_length);
  }
  if (s.key_begin < 0 || s.key_begin > s.key_end) {
    return OutOfRange("key_begin", s.key_begin, 0, s.key_end);
  }
  if (s.sink_tokens < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("sink_tokens must not be negative; got ", s.sink_tokens));
  }
  if (s.query_length > 0 && (s.query == nullptr || s.output == nullptr)) {
    return absl::InvalidArgumentError("query and output must not be null");
  }
  if (s.append_length > 0 && (s.new_key == nullptr || s.new_value == nullptr)) {
    return absl::InvalidArgumentError("new_key and new_value must not be null");
  }
  if (config.kv_data_type == KvDataType::kFloat8E4M3) {
    const int32_t heads = config.heads.kv_head_count;
    if (auto status = CheckPageScales("key_scales", s.key_scales, heads);
        !status.ok()) {
      return status;
    }
    if (auto status = CheckPageScales("value_scales", s.value_scales, heads);
        !status.ok()) {
      return status;
    }
  }
  if (auto status =
          CheckPages(config, s, {s.key_length - s.append_length, s.key_length});
      !status.ok() || s.query_length == 0) {
    return status;
  }
  const SinkMask mask = MakeSinkMask(config.heads.mask, s);
  for (const MaskBand& band : {mask.sinks, mask.window}) {
    if (auto status =
            CheckPages(config, s, band.VisibleKeys(0, s.query_length - 1));
        !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateHeadConfig(const HeadConfig& c) {
  if (auto s = CheckEnum("data_type", c.data_type, DataType::kFloat8E4M3);
      !s.ok()) {
    return s;
  }
  if (auto s = CheckEnum("mask", c.mask, MaskKind::kCausalBottomRight);
      !s.ok()) {
    return s;
  }
  if (auto s = CheckEnum("precision", c.precision, Precision::kTf32); !s.ok()) {
    return s;
  }
  if (auto s = CheckEnum("algorithm", c.algorithm, Algorithm::kThreeStep);
      !s.ok()) {
    return s;
  }
  if (c.data_type == DataType::kFloat8E4M3 &&
      c.algorithm != Algorithm::kStreaming) {
    return absl::InvalidArgumentError(
        "data_type fp8 is for the streaming algorithm only");
  }
  if (c.head_dim_qk < 1 || c.head_dim_qk > kMaxHeadDim) {
    return OutOfRange("head_dim_qk", c.head_dim_qk, 1, kMaxHeadDim);
  }
  if (c.head_dim_v < 1 || c.head_dim_v > kMaxHeadDim) {
    return OutOfRange("head_dim_v", c.head_dim_v, 1, kMaxHeadDim);
  }
  if (c.kv_head_count < 0 || c.query_head_count < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "head counts must not be negative; got query_head_count ",
        c.query_head_count, " and kv_head_count ", c.kv_head_count));
  }
  const bool divides = c.kv_head_count == 0
                           ? c.query_head_count == 0
                           : c.query_head_count % c.kv_head_count == 0;
  if (!divides) {
    return absl::InvalidArgumentError(absl::StrCat(
        "query_head_count must be a multiple of kv_head_count; got ",
        c.query_head_count, " and ", c.kv_head_count));
  }
  return absl::OkStatus();
}

absl::Status ValidateParams(const AttentionParams& params) {
  if (auto s = ValidateHeadConfig(params.config); !s.ok()) return s;
  if (params.sequence_count < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sequence_count must not be negative; got ", params.sequence_count));
  }
  if (params.config.query_head_count == 0) return absl::OkStatus();
  for (int64_t i = 0; i < params.sequence_count; ++i) {
    if (auto s = ValidateSequence(params.config, params.sequences[i]);
        !s.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("sequence ", i, ": ", s.message()));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidatePagedConfig(const PagedConfig& c) {
  if (auto s = ValidateHeadConfig(c.heads); !s.ok()) return s;
  if (c.heads.algorithm != Algorithm::kStreaming) {
    return absl::InvalidArgumentError(
        "resident keys and values are read by the streaming algorithm only");
  }
  if (c.heads.data_type == DataType::kFloat8E4M3) {
    return absl::InvalidArgumentError(
        "data_type fp8 is for stateless attention only; resident keys and "
        "values of 8 bits are a matter of kv_data_type");
  }
  if (auto s =
          CheckEnum("kv_data_type", c.kv_data_type, KvDataType::kFloat8E4M3);
      !s.ok()) {
    return s;
  }
  if (auto s =
          CheckEnum("split_policy", c.split_policy, SplitPolicy::kBalanced);
      !s.ok()) {
    return s;
  }
  if (c.page_tokens < 1 || c.page_tokens > kMaxPageTokens) {
    return OutOfRange("page_tokens", c.page_tokens, 1, kMaxPageTokens);
  }
  return absl::OkStatus();
}

absl::Status ValidatePagedParams(const PagedParams& params) {
  if (auto s = ValidatePagedConfig(params.config); !s.ok()) return s;
  if (params.sequence_count < 0 || params.copy_count < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("sequence_count and copy_count must not be negative; got ",
                     params.sequence_count, " and ", params.copy_count));
  }
  if (params.config.heads.query_head_count == 0) return absl::OkStatus();
  for (int64_t i = 0; i < params.copy_count; ++i) {
    if (params.copies[i].from == nullptr || params.copies[i].to == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("copy ", i, ": from and to must not be null"));
    }
  }
  for (int64_t i = 0; i < params.sequence_count; ++i) {
    if (auto s = ValidatePagedSequence(params.config, params.sequences[i]);
        !s.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("sequence ", i, ": ", s.message()));
    }
  }
  return absl::OkStatus();
}

const char* ToString(DataType data_type) {
  switch (data_type) {
    case DataType::kFloat32:
      return "fp32";
    case DataType::kFloat16:
      return "fp16";
    case DataType::kBFloat16:
      return "bf16";
    case DataType::kFloat8E4M3:
      return "fp8";
  }
  return "unknown";
}

const char* ToString(MaskKind mask) {
  switch (mask) {
    case MaskKind::kNone:
      return "none";
    case MaskKind::kCausalTopLeft:
      return "causal_top_left";
    case MaskKind::kCausalBottomRight:
      return "causal_bottom_right";
  }
  return "unknown";
}

const char* ToString(Precision precision) {
  return precision == Precision::kTf32 ? "tf32" : "ieee";
}

const char* ToString(Algorithm algorithm) {
  return algorithm == Algorithm::kThreeStep ? "three_step" : "streaming";
}

const char* ToString(KvDataType kv_data_type) {
  return kv_data_type == KvDataType::kFloat8E4M3 ? "e4m3" : "same";
}

const char* ToString(SplitPolicy split_policy) {
  return split_policy == SplitPolicy::kBalanced ? "balanced" : "fixed";
}

std::string ToString(const HeadConfig& c) {
  std::string text =
      absl::StrCat(ToString(c.data_type), " q", c.query_head_count, " kv",
                   c.kv_head_count, " d", c.head_dim_qk);
  if (c.head_dim_v != c.head_dim_qk) absl::StrAppend(&text, "/", c.head_dim_v);
  if (c.mask != MaskKind::kNone) absl::StrAppend(&text, " ", ToString(c.mask));
  if (c.precision == Precision::kTf32) absl::StrAppend(&text, " tf32");
  if (c.algorithm == Algorithm::kThreeStep)
    absl::StrAppend(&text, " three_step");
  return text;
}

std::string ToString(const PagedConfig& c) {
  std::string text = ToString(c.heads);
  if (c.kv_data_type != KvDataType::kSame) {
    absl::StrAppend(&text, " ", ToString(c.kv_data_type));
  }
  absl::StrAppend(&text, " page", c.page_tokens);
  if (c.split_policy != SplitPolicy::kFixed) {
    absl::StrAppend(&text, " ", ToString(c.split_policy));
  }
  return text;
}

}  // namespace attention
