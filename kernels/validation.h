// Checks that parameters describe a computation that every implementation does.
#ifndef ATTENTION_KERNELS_VALIDATION_H_
#define ATTENTION_KERNELS_VALIDATION_H_

#include <string>

#include "absl/status/status.h"
#include "kernels/attention_params.h"
#include "kernels/paged_params.h"

namespace attention {

// InvalidArgument naming the field, its value and the bound.
absl::Status ValidateHeadConfig(const HeadConfig& config);

// ValidateHeadConfig plus lengths, scale, windows, and pointers that may not be
// null. It cannot know allocation sizes: those are the caller's to check.
absl::Status ValidateParams(const AttentionParams& params);

// The same for resident keys and values. ValidatePagedParams also finds page
// table entries that are null where they may not be; whether pages are as large
// as they should be, and who shares them, is the caller's to know.
absl::Status ValidatePagedConfig(const PagedConfig& config);
absl::Status ValidatePagedParams(const PagedParams& params);

// For logs and labels, e.g. "bf16 q16 kv8 d128 causal".
std::string ToString(const HeadConfig& config);
// The same and, e.g., " e4m3 page64 balanced".
std::string ToString(const PagedConfig& config);
const char* ToString(DataType data_type);
const char* ToString(MaskKind mask);
const char* ToString(Precision precision);
const char* ToString(Algorithm algorithm);
const char* ToString(KvDataType kv_data_type);
const char* ToString(SplitPolicy split_policy);

}  // namespace attention

#endif  // ATTENTION_KERNELS_VALIDATION_H_
