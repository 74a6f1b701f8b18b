// What reader and writer of safetensors files share.
#ifndef ATTENTION_CLIENT_SAFETENSORS_TYPES_H_
#define ATTENTION_CLIENT_SAFETENSORS_TYPES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/safetensors/safetensors.h"

namespace attention {

// The key of the header that holds the metadata instead of a tensor.
inline constexpr char kMetadataKey[] = "__metadata__";

// Nullopt for a name that is not a type.
std::optional<SafetensorsType> SafetensorsTypeFromName(absl::string_view name);

// Size of a contiguous tensor; nullopt when it is negative in a dimension or
// the product of the nonzero dimensions overflows.
std::optional<int64_t> TensorBytes(SafetensorsType type,
                                   const std::vector<int64_t>& shape);

}  // namespace attention

#endif  // ATTENTION_CLIENT_SAFETENSORS_TYPES_H_
