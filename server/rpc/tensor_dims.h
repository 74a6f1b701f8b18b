// One tensor of a request: its descriptor read in the request's layout, and
// checked against its payload.
#ifndef ATTENTION_SERVER_RPC_TENSOR_DIMS_H_
#define ATTENTION_SERVER_RPC_TENSOR_DIMS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "attention/v1/attention.pb.h"
#include "kernels/attention_params.h"

namespace attention {

// INVALID_ARGUMENT (INVALID_REQUEST) that reads "<field> must be <bound>; got
// <value>".
absl::Status InvalidField(absl::string_view field, absl::string_view bound,
                          absl::string_view value);
absl::Status InvalidField(absl::string_view field, absl::string_view bound,
                          int64_t value);

// Sizes and strides (in elements) by meaning instead of position. LAYOUT_THD is
// a batch of 1 whose tokens are those of all sequences.
struct TensorDims {
  int64_t batch = 1;
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t dim = 0;
  int64_t batch_stride = 0;
  TensorStrides strides;
};

// `name` is "query", "key" or "value". Checks the count of dimensions and
// strides, their signs, the range of the head dimension and that every element
// addressed lies inside `payload_bytes`; without strides, that the payload has
// exactly the elements of the shape. The payload may lie in a region, of which
// the request then names the size.
absl::StatusOr<TensorDims> ReadTensor(absl::string_view name,
                                      const v1::TensorDescriptor& descriptor,
                                      v1::Layout layout, int64_t element_bytes,
                                      size_t payload_bytes,
                                      bool is_in_region = false);

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_TENSOR_DIMS_H_
