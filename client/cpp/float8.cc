#include "client/cpp/float8.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "kernels/float_convert.h"

namespace attention {

Float8Tensor QuantizeFloat8(absl::Span<const float> values,
                            const std::vector<int64_t>& shape, Layout layout) {
  // [..., tokens, heads, dims], or heads before tokens.
  const size_t from_the_end = layout == Layout::kBhsd ? 3 : 2;
  if (values.empty() || shape.size() < from_the_end) return {};
  const int64_t heads = shape[shape.size() - from_the_end];
  int64_t head_stride = 1;
  for (size_t i = shape.size() - from_the_end + 1; i < shape.size(); ++i) {
    head_stride *= shape[i];
  }
  const auto head_of = [&](size_t index) {
    return static_cast<int64_t>(index) / head_stride % heads;
  };

  Float8Tensor tensor;
  std::vector<float> largest(heads);
  for (size_t i = 0; i < values.size(); ++i) {
    const float magnitude = std::abs(values[i]);
    float& max = largest[head_of(i)];
    if (std::isfinite(magnitude)) max = std::max(max, magnitude);
  }
  for (const float max : largest) {
    // Not a subnormal, which would not have a finite inverse.
    tensor.scales.push_back(
        max == 0 ? 1
                 : std::max(max / kMaxFloat8E4M3,
                            std::numeric_limits<float>::min()));
  }
  tensor.elements.resize(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    tensor.elements[i] =
        FloatToFloat8E4M3(values[i] / tensor.scales[head_of(i)]);
  }
  return tensor;
}

}  // namespace attention
