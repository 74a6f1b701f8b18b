#include "server/rpc/config_fields.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "server/engine/error_reason.h"
#include "server/rpc/tensor_dims.h"

namespace attention {

absl::Status Unsupported(absl::string_view field, absl::string_view bound,
                         int64_t value) {
  return WithReason(InvalidField(field, bound, value),
                    error_reason::kUnsupported);
}

absl::Status ReadDataType(v1::DataType data_type, HeadConfig& config) {
  switch (data_type) {
    case v1::DATA_TYPE_FLOAT32: config.data_type = DataType::kFloat32; break;
    case v1::DATA_TYPE_FLOAT16: config.data_type = DataType::kFloat16; break;
    case v1::DATA_TYPE_BFLOAT16: config.data_type = DataType::kBFloat16; break;
    case v1::DATA_TYPE_FLOAT8_E4M3:
      config.data_type = DataType::kFloat8E4M3;
      break;
    case v1::DATA_TYPE_UNSPECIFIED:
      return InvalidField("data_type", "set", "DATA_TYPE_UNSPECIFIED");
    default: return Unsupported("data_type", "in [1, 4]", data_type);
  }
  return absl::OkStatus();
}

v1::DataType ProtoDataType(DataType data_type) {
  switch (data_type) {
    case DataType::kFloat32: return v1::DATA_TYPE_FLOAT32;
    case DataType::kFloat16: return v1::DATA_TYPE_FLOAT16;
    case DataType::kBFloat16: return v1::DATA_TYPE_BFLOAT16;
    case DataType::kFloat8E4M3: return v1::DATA_TYPE_FLOAT8_E4M3;
  }
  return v1::DATA_TYPE_UNSPECIFIED;
}

absl::Status ReadMaskType(v1::MaskType mask_type, HeadConfig& config) {
  switch (mask_type) {
    case v1::MASK_TYPE_UNSPECIFIED:
    case v1::MASK_TYPE_NONE: config.mask = MaskKind::kNone; break;
    case v1::MASK_TYPE_CAUSAL_TOP_LEFT:
      config.mask = MaskKind::kCausalTopLeft;
      break;
    case v1::MASK_TYPE_CAUSAL_BOTTOM_RIGHT:
      config.mask = MaskKind::kCausalBottomRight;
      break;
    default: return Unsupported("mask_type", "in [0, 3]", mask_type);
  }
  return absl::OkStatus();
}

absl::Status ReadPrecision(v1::Precision precision, HeadConfig& config) {
  switch (precision) {
    case v1::PRECISION_UNSPECIFIED:
    case v1::PRECISION_IEEE: config.precision = Precision::kIeee; break;
    case v1::PRECISION_TF32: config.precision = Precision::kTf32; break;
    default: return Unsupported("precision", "in [0, 2]", precision);
  }
  // Means nothing to smaller types: requests that differ only here may share a
  // batch.
  if (config.data_type != DataType::kFloat32) {
    config.precision = Precision::kIeee;
  }
  return absl::OkStatus();
}

absl::Status CheckPriority(int32_t priority) {
  if (priority >= -kMaxPriority && priority <= kMaxPriority) {
    return absl::OkStatus();
  }
  return InvalidField(
      "priority", absl::StrCat("in [", -kMaxPriority, ", ", kMaxPriority, "]"),
      priority);
}

absl::Status ReadScale(std::optional<double> requested, int64_t head_dim,
                       double& scale) {
  scale = requested.value_or(1.0 / std::sqrt(static_cast<double>(head_dim)));
  if (std::isfinite(scale)) return absl::OkStatus();
  return InvalidField("scale", "finite", absl::StrCat(scale));
}

absl::Status CheckScales(absl::string_view field,
                         const google::protobuf::RepeatedField<float>& scales,
                         absl::string_view count_name, int64_t head_count) {
  if (!scales.empty() && scales.size() != head_count) {
    return InvalidField(
        absl::StrCat("the size of ", field),
        absl::StrCat("0 or ", count_name, ", which is ", head_count),
        scales.size());
  }
  for (int i = 0; i < scales.size(); ++i) {
    if (!(scales[i] > 0) || !std::isfinite(scales[i])) {
      return InvalidField(absl::StrCat(field, "[", i, "]"),
                          "finite and more than 0", absl::StrCat(scales[i]));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckNoScales(absl::string_view field,
                           const google::protobuf::RepeatedField<float>& scales,
                           absl::string_view type) {
  if (scales.empty()) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("empty without ", type),
                      absl::StrCat(scales.size(), " numbers"));
}

}  // namespace attention
