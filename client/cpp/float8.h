// Tensors in 8 bits, for requests of kFloat8E4M3.
//
//   const Float8Tensor query = QuantizeFloat8(q, {1, 512, 16, 128},
//                                             Layout::kBshd);
//   request.data_type = DataType::kFloat8E4M3;
//   request.query = TensorView::Contiguous(query.elements.data(),
//                                          {1, 512, 16, 128}, 1);
//   request.query_scales = query.scales;
//
// The answer is bf16. An element has 4 significant bits, and fewer where it is
// less than 1/28672 of the largest of its head.
#ifndef ATTENTION_CLIENT_CPP_FLOAT8_H_
#define ATTENTION_CLIENT_CPP_FLOAT8_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "client/cpp/attention_client.h"

namespace attention {

// Values are elements times the scale of their head.
struct Float8Tensor {
  std::vector<uint8_t> elements;  // e4m3, in the order of the tensor
  std::vector<float> scales;      // [heads]
};

// Rounds a contiguous tensor of this shape and layout, to nearest even, with the
// scale of each head such that its largest finite value becomes the largest of
// e4m3, 448; a head of zeros has scale 1. Infinities become 448 times the scale,
// NaN stays NaN. `values` has as many elements as the shape says.
Float8Tensor QuantizeFloat8(absl::Span<const float> values,
                            const std::vector<int64_t>& shape, Layout layout);

}  // namespace attention

#endif  // ATTENTION_CLIENT_CPP_FLOAT8_H_
