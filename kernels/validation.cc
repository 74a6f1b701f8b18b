#include "kernels/validation.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace attention {
namespace {

absl::Status OutOfRange(absl::string_view field, int64_t value, int64_t low,
                        int64_t high) {
  return absl::InvalidArgumentError(absl::StrCat(
      field, " must be in [", low, ", ", high, "]; got ", value));
}

template <typename Enum>
absl::Status CheckEnum(absl::string_view field, Enum value, Enum last) {
  const auto number = static_cast<int64_t>(value);
  if (number < 0 || number > static_cast<int64_t>(last)) {
    return OutOfRange(field, number, 0, static_cast<int64_t>(last));
  }
  return absl::OkStatus();
}

absl::Status ValidateSequence(const HeadConfig& config, const Sequence& s) {
  constexpr int64_t kMaxLength = int64_t{1} << 40;
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
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateHeadConfig(const HeadConfig& c) {
  if (auto s = CheckEnum("data_type", c.data_type, DataType::kBFloat16);
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
    return absl::InvalidArgumentError(
        absl::StrCat("query_head_count must be a multiple of kv_head_count; got ",
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
    if (auto s = ValidateSequence(params.config, params.sequences[i]); !s.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("sequence ", i, ": ", s.message()));
    }
  }
  return absl::OkStatus();
}

const char* ToString(DataType data_type) {
  switch (data_type) {
    case DataType::kFloat32: return "fp32";
    case DataType::kFloat16: return "fp16";
    case DataType::kBFloat16: return "bf16";
  }
  return "unknown";
}

const char* ToString(MaskKind mask) {
  switch (mask) {
    case MaskKind::kNone: return "none";
    case MaskKind::kCausalTopLeft: return "causal_top_left";
    case MaskKind::kCausalBottomRight: return "causal_bottom_right";
  }
  return "unknown";
}

const char* ToString(Precision precision) {
  return precision == Precision::kTf32 ? "tf32" : "ieee";
}

const char* ToString(Algorithm algorithm) {
  return algorithm == Algorithm::kThreeStep ? "three_step" : "streaming";
}

std::string ToString(const HeadConfig& c) {
  std::string text =
      absl::StrCat(ToString(c.data_type), " q", c.query_head_count, " kv",
                   c.kv_head_count, " d", c.head_dim_qk);
  if (c.head_dim_v != c.head_dim_qk) absl::StrAppend(&text, "/", c.head_dim_v);
  if (c.mask != MaskKind::kNone) absl::StrAppend(&text, " ", ToString(c.mask));
  if (c.precision == Precision::kTf32) absl::StrAppend(&text, " tf32");
  if (c.algorithm == Algorithm::kThreeStep) absl::StrAppend(&text, " three_step");
  return text;
}

}  // namespace attention
