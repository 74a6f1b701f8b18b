#include "server/sessions/session.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/validation.h"
#include "server/engine/error_reason.h"

namespace attention {
namespace {

absl::Status CheckScales(absl::string_view field,
                         const std::vector<float>& scales,
                         const PagedConfig& config) {
  const size_t count = config.kv_data_type == KvDataType::kFloat8E4M3
                           ? config.heads.kv_head_count
                           : 0;
  if (scales.size() != count) {
    return InvalidRequest(absl::StrCat(field, " must have ", count,
                                       " values; got ", scales.size()));
  }
  for (float scale : scales) {
    if (!std::isfinite(scale) || scale <= 0) {
      return InvalidRequest(
          absl::StrCat(field, " must be finite and more than 0; got ", scale));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckWindow(const SessionConfig& config) {
  if (config.window_left < kUnlimitedWindow) {
    return InvalidRequest(absl::StrCat("window_left must be at least 0; got ",
                                       config.window_left));
  }
  if (config.sink_tokens < 0 || config.sink_tokens > kMaxLayerTokens) {
    return InvalidRequest(absl::StrCat("sink_token_count must be in [0, ",
                                       kMaxLayerTokens, "]; got ",
                                       config.sink_tokens));
  }
  if (config.window_left == kUnlimitedWindow) {
    return config.sink_tokens == 0
               ? absl::OkStatus()
               : InvalidRequest("sink_token_count needs window_left");
  }
  if (config.paged.heads.mask == MaskKind::kCausalTopLeft) {
    return InvalidRequest(
        "window_left needs a mask that is aligned to the last key, which "
        "causal_top_left is not");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateSessionConfig(const SessionConfig& config) {
  if (absl::Status status = ValidatePagedConfig(config.paged); !status.ok()) {
    return InvalidRequest(status.message());
  }
  if (config.paged.heads.kv_head_count < 1) {
    return InvalidRequest(absl::StrCat("kv_head_count must be at least 1; got ",
                                       config.paged.heads.kv_head_count));
  }
  if (config.layer_count < 1 || config.layer_count > kMaxLayerCount) {
    return InvalidRequest(absl::StrCat("layer_count must be in [1, ",
                                       kMaxLayerCount, "]; got ",
                                       config.layer_count));
  }
  for (const absl::Status& status :
       {CheckWindow(config),
        CheckScales("key_scales", config.key_scales, config.paged),
        CheckScales("value_scales", config.value_scales, config.paged)}) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace attention
