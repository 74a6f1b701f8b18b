#include "server/rpc/tensor_dims.h"

#include <algorithm>
#include <array>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "server/engine/error_reason.h"
#include "server/rpc/checked_math.h"

namespace attention {
namespace {

// Positions of batch, tokens, heads and head dimension in a shape; -1: none.
using Order = std::array<int, 4>;

Order OrderOf(v1::Layout layout) {
  switch (layout) {
    case v1::LAYOUT_BHSD: return {0, 2, 1, 3};
    case v1::LAYOUT_THD: return {-1, 0, 1, 2};
    default: return {0, 1, 2, 3};
  }
}

absl::Status CheckDescriptor(absl::string_view name,
                             const v1::TensorDescriptor& descriptor,
                             int dimension_count) {
  if (descriptor.shape_size() != dimension_count) {
    return InvalidField(absl::StrCat(name, "_descriptor.shape"),
                        absl::StrCat("of ", dimension_count,
                                     " dimensions in this layout"),
                        descriptor.shape_size());
  }
  if (descriptor.strides_size() != 0 &&
      descriptor.strides_size() != dimension_count) {
    return InvalidField(absl::StrCat(name, "_descriptor.strides"),
                        absl::StrCat("empty or of ", dimension_count,
                                     " dimensions in this layout"),
                        descriptor.strides_size());
  }
  for (int i = 0; i < dimension_count; ++i) {
    if (descriptor.shape(i) < 0) {
      return InvalidField(absl::StrCat(name, "_descriptor.shape[", i, "]"),
                          "at least 0", descriptor.shape(i));
    }
    if (descriptor.strides_size() != 0 && descriptor.strides(i) < 0) {
      return InvalidField(absl::StrCat(name, "_descriptor.strides[", i, "]"),
                          "at least 0", descriptor.strides(i));
    }
  }
  return absl::OkStatus();
}

// A strided tensor may have a longer payload than needed; of a size that does
// not fit an integer only the least is known.
std::string SizeBound(CheckedSize needed, bool strided) {
  if (!needed.valid()) return "at least 2^63";
  return absl::StrCat(strided ? "at least " : "", needed.value());
}

// Bytes from the start of the payload to the end of the last element addressed.
CheckedSize AddressedBytes(const v1::TensorDescriptor& descriptor,
                           int64_t element_bytes) {
  CheckedSize last = 0;
  for (int i = 0; i < descriptor.shape_size(); ++i) {
    if (descriptor.shape(i) == 0) return 0;
    last = last + CheckedSize(descriptor.shape(i) - 1) * descriptor.strides(i);
  }
  return (last + 1) * element_bytes;
}

CheckedSize ShapeBytes(const v1::TensorDescriptor& descriptor,
                       int64_t element_bytes) {
  CheckedSize elements = 1;
  for (int64_t size : descriptor.shape()) {
    if (size == 0) return 0;
    elements = elements * size;
  }
  return elements * element_bytes;
}

// As given, or row-major. Only for a tensor whose elements were all found to lie
// inside the payload, which keeps every stride that is used small. Without
// elements no stride is used, and those given may be absurd: all become 0.
absl::InlinedVector<int64_t, 4> ResolvedStrides(
    const v1::TensorDescriptor& descriptor, bool has_elements) {
  absl::InlinedVector<int64_t, 4> strides(descriptor.shape_size(), 0);
  if (!has_elements) return strides;
  if (descriptor.strides_size() != 0) {
    std::copy(descriptor.strides().begin(), descriptor.strides().end(),
              strides.begin());
    return strides;
  }
  int64_t stride = 1;
  for (int i = descriptor.shape_size() - 1; i >= 0; --i) {
    strides[i] = stride;
    stride *= descriptor.shape(i);
  }
  return strides;
}

}  // namespace

absl::Status InvalidField(absl::string_view field, absl::string_view bound,
                          absl::string_view value) {
  return InvalidRequest(
      absl::StrCat(field, " must be ", bound, "; got ", value));
}

absl::Status InvalidField(absl::string_view field, absl::string_view bound,
                          int64_t value) {
  return InvalidField(field, bound, absl::StrCat(value));
}

absl::StatusOr<TensorDims> ReadTensor(absl::string_view name,
                                      const v1::TensorDescriptor& descriptor,
                                      v1::Layout layout, int64_t element_bytes,
                                      size_t payload_bytes, bool is_in_region) {
  const Order order = OrderOf(layout);
  const int dimension_count = layout == v1::LAYOUT_THD ? 3 : 4;
  if (auto s = CheckDescriptor(name, descriptor, dimension_count); !s.ok()) {
    return s;
  }
  const int64_t head_dim = descriptor.shape(dimension_count - 1);
  if (head_dim < 1 || head_dim > kMaxHeadDim) {
    const std::string field = absl::StrCat(name, "_descriptor.shape[",
                                           dimension_count - 1, "]");
    const std::string bound =
        absl::StrCat("in [1, ", kMaxHeadDim, "], it is the head dimension");
    absl::Status status = InvalidField(field, bound, head_dim);
    return head_dim < 1
               ? status
               : WithReason(std::move(status), error_reason::kUnsupported);
  }

  const bool strided = descriptor.strides_size() != 0;
  const CheckedSize needed = strided
                                 ? AddressedBytes(descriptor, element_bytes)
                                 : ShapeBytes(descriptor, element_bytes);
  const int64_t payload = static_cast<int64_t>(payload_bytes);
  if (needed.Exceeds(payload) || (!strided && needed.value() != payload)) {
    return InvalidField(absl::StrCat(name, is_in_region
                                               ? "_reference.byte_size"
                                               : " (its size in bytes)"),
                        absl::StrCat(SizeBound(needed, strided), ", as ", name,
                                     "_descriptor says"),
                        payload);
  }

  const absl::InlinedVector<int64_t, 4> strides =
      ResolvedStrides(descriptor, needed.value() > 0);
  TensorDims dims;
  dims.batch = order[0] < 0 ? 1 : descriptor.shape(order[0]);
  dims.tokens = descriptor.shape(order[1]);
  dims.heads = descriptor.shape(order[2]);
  dims.dim = descriptor.shape(order[3]);
  dims.batch_stride = order[0] < 0 ? 0 : strides[order[0]];
  dims.strides = {strides[order[1]], strides[order[2]], strides[order[3]]};
  return dims;
}

}  // namespace attention
