// Fields that several requests have, read into what the kernels take.
#ifndef ATTENTION_SERVER_RPC_CONFIG_FIELDS_H_
#define ATTENTION_SERVER_RPC_CONFIG_FIELDS_H_

#include <cstdint>
#include <limits>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "attention/v1/attention.pb.h"
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
absl::Status ReadMaskType(v1::MaskType mask_type, HeadConfig& config);
// After the data type.
absl::Status ReadPrecision(v1::Precision precision, HeadConfig& config);
absl::Status CheckPriority(int32_t priority);

// The factor on scores that was asked for, or the usual one.
absl::Status ReadScale(std::optional<double> requested, int64_t head_dim,
                       double& scale);

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_CONFIG_FIELDS_H_
