// Head configurations on the command line.
#ifndef ATTENTION_SERVER_HEAD_CONFIG_FLAG_H_
#define ATTENTION_SERVER_HEAD_CONFIG_FLAG_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/attention_params.h"

namespace attention {

// "type:heads:dim", and then any of a mask and an algorithm, e.g. "bf16:32:128",
// "bf16:16/8:128:causal" or "fp32:8:192/128:three_step":
//   type   fp32, fp16, bf16 or fp8
//   heads  of queries, or of queries and of keys and values
//   dim    of heads of queries and keys, or of those and of values
//   causal, causal_top_left  as MASK_TYPE_CAUSAL_BOTTOM_RIGHT and _TOP_LEFT
// INVALID_ARGUMENT that quotes the text, also for what kernels do not compute.
absl::StatusOr<HeadConfig> ParseHeadConfig(absl::string_view text);

}  // namespace attention

#endif  // ATTENTION_SERVER_HEAD_CONFIG_FLAG_H_
