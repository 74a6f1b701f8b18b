#include "client/safetensors/types.h"

#include <iterator>

namespace attention {
namespace {

struct TypeInfo {
  absl::string_view name;
  int64_t element_bytes;
};

// In the order of the enumeration.
constexpr TypeInfo kTypes[] = {
    {"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"F8_E4M3", 1},
    {"I64", 8}, {"I32", 4}, {"I16", 2}, {"I8", 1},   {"U64", 8},
    {"U32", 4}, {"U16", 2}, {"U8", 1},  {"BOOL", 1},
};
static_assert(std::size(kTypes) ==
              static_cast<size_t>(SafetensorsType::kBool) + 1);

}  // namespace

absl::string_view ToString(SafetensorsType type) {
  return kTypes[static_cast<size_t>(type)].name;
}

int64_t ElementBytes(SafetensorsType type) {
  return kTypes[static_cast<size_t>(type)].element_bytes;
}

std::optional<SafetensorsType> SafetensorsTypeFromName(absl::string_view name) {
  for (size_t i = 0; i < std::size(kTypes); ++i) {
    if (kTypes[i].name == name) return static_cast<SafetensorsType>(i);
  }
  return std::nullopt;
}

std::optional<int64_t> TensorBytes(SafetensorsType type,
                                   const std::vector<int64_t>& shape) {
  int64_t bytes = ElementBytes(type);
  bool empty = false;
  for (const int64_t extent : shape) {
    if (extent < 0) return std::nullopt;
    if (extent == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(bytes, extent, &bytes)) {
      return std::nullopt;
    }
  }
  return empty ? 0 : bytes;
}

}  // namespace attention
