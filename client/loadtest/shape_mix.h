// Which shapes a load consists of, and in which proportion.
//
// A mix file is JSON:
//
//   {"shapes": [
//     {"name": "prefill", "weight": 1, "query_length": 2048, "kv_heads": 8},
//     {"name": "decode", "weight": 9, "query_length": 1, "key_length": 4096}
//   ]}
//
// Fields are called and spelled as the flags (dtype, batch, query_length,
// key_length, heads, kv_heads, head_dim, head_dim_v, mask, window_left,
// window_right, layout, precision, algorithm, lse); one that is left out has
// the flag's value. `weight` is above 0 and 1 if left out; `name` is
// "shape<index>" if left out, and unique.
#ifndef ATTENTION_CLIENT_LOADTEST_SHAPE_MIX_H_
#define ATTENTION_CLIENT_LOADTEST_SHAPE_MIX_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/loadtest/request_shape.h"

namespace attention::loadtest {

struct WeightedShape {
  RequestShape shape;  // resolved
  double weight = 1;
};

using ShapeMix = std::vector<WeightedShape>;  // not empty

// InvalidArgument when the text is not such a mix, naming the place, the value
// and what was expected, e.g. "shapes[1].heads must be ...".
absl::StatusOr<ShapeMix> ParseShapeMix(absl::string_view json,
                                       const RequestShape& defaults);

// As ParseShapeMix; errors name the file. NotFound when it cannot be read.
absl::StatusOr<ShapeMix> ReadShapeMix(const std::string& path,
                                      const RequestShape& defaults);

// Draws indices into a mix in proportion to the weights. The same seed gives
// the same sequence. Thread-compatible.
class ShapePicker {
 public:
  ShapePicker(const ShapeMix& mix, uint64_t seed);
  size_t Next() { return distribution_(random_); }

 private:
  std::mt19937_64 random_;
  std::discrete_distribution<size_t> distribution_;
};

}  // namespace attention::loadtest

#endif  // ATTENTION_CLIENT_LOADTEST_SHAPE_MIX_H_
