// Fields that several requests have, read into what the kernels take.
#ifndef ATTENTION_SERVER_RPC_CONFIG_FIELDS_H_
#define ATTENTION_SERVER_RPC_CONFIG_FIELDS_H_

#include <cstdint>
#include <limits>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "attention/v1/attention.pb.h"
#include "google/protobuf/repeated_field.h"
#include "kernels/attention_params.h"

namespace attention {

// Priorities are in [-kMaxPriority, kMaxPriority].
inline constexpr int32_t kMaxPriority = 100;

// Tokens of one tensor. Keeps products of two lengths within int64.
inline constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();

// INVALID_ARGUMENT (UNSUPPORTED) that reads "<field> must be <bound>; got
// <value>".
absl::Status Unsupported(absl::string_view field, absl::string_view bound,
                         int64_t value);

absl::Status ReadDataType(v1::DataType data_type, HeadConfig& config);
v1::DataType ProtoDataType(DataType data_type);
absl::Status ReadMaskType(v1::MaskType mask_type, HeadConfig& config);
// After the data type.
absl::Status ReadPrecision(v1::Precision precision, HeadConfig& config);
absl::Status CheckPriority(int32_t priority);

// The factor on scores that was asked for, or the usual one.
absl::Status ReadScale(std::optional<double> requested, int64_t head_dim,
                       double& scale);

// Checks the scales of heads whose elements have 8 bits: none, or one for each
// of `head_count` heads, finite and more than 0. `count_name` says in an error
// what that number is.
absl::Status CheckScales(absl::string_view field,
                         const google::protobuf::RepeatedField<float>& scales,
                         absl::string_view count_name, int64_t head_count);
// Refuses scales, which are for elements of `type` only.
absl::Status CheckNoScales(absl::string_view field,
                           const google::protobuf::RepeatedField<float>& scales,
                           absl::string_view type);

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_CONFIG_FIELDS_H_
