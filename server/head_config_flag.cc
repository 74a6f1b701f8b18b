#include "server/head_config_flag.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/validation.h"

namespace attention {
namespace {

bool ParseDataType(absl::string_view text, DataType& type) {
  for (DataType known : {DataType::kFloat32, DataType::kFloat16,
                         DataType::kBFloat16, DataType::kFloat8E4M3}) {
    if (text == ToString(known)) {
      type = known;
      return true;
    }
  }
  return false;
}

// "a" or "a/b"; "a" stands for both.
bool ParsePair(absl::string_view text, int32_t& first, int32_t& second) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, '/');
  return parts.size() <= 2 && absl::SimpleAtoi(parts.front(), &first) &&
         absl::SimpleAtoi(parts.back(), &second);
}

bool ParseOption(absl::string_view text, HeadConfig& config) {
  if (text == "causal") {
    config.mask = MaskKind::kCausalBottomRight;
  } else if (text == "causal_top_left") {
    config.mask = MaskKind::kCausalTopLeft;
  } else if (text == "three_step") {
    config.algorithm = Algorithm::kThreeStep;
  } else {
    return false;
  }
  return true;
}

bool Parse(absl::string_view text, HeadConfig& config) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
  if (parts.size() < 3 || !ParseDataType(parts[0], config.data_type) ||
      !ParsePair(parts[1], config.query_head_count, config.kv_head_count) ||
      !ParsePair(parts[2], config.head_dim_qk, config.head_dim_v)) {
    return false;
  }
  for (size_t i = 3; i < parts.size(); ++i) {
    if (!ParseOption(parts[i], config)) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<HeadConfig> ParseHeadConfig(absl::string_view text) {
  HeadConfig config;
  if (!Parse(text, config)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a head configuration must be like bf16:16/8:128:causal; "
                     "got \"", text, "\""));
  }
  absl::Status status = ValidateHeadConfig(config);
  if (status.ok() && config.query_head_count == 0) {
    status = absl::InvalidArgumentError("query_head_count must be at least 1");
  }
  if (status.ok()) return config;
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\": ", status.message()));
}

}  // namespace attention
