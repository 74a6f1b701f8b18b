#include "tests/server/rpc/memory_bounds.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace attention::test {
namespace {

// Wider than any product of what it holds: it must not overflow where the
// decoder might have.
using Wide = __int128;

struct Extent {
  const char* tensor;
  int64_t offset;
  int64_t tokens;
  int64_t heads;
  int64_t dim;
  TensorStrides strides;
  int64_t element_bytes;
  size_t size_bytes;  // of the memory
};

absl::Status CheckExtent(const Extent& e) {
  if (e.tokens == 0 || e.heads == 0) return absl::OkStatus();
  const TensorStrides& s = e.strides;
  const Wide last = static_cast<Wide>(e.offset) +
                    static_cast<Wide>(e.tokens - 1) * s.token +
                    static_cast<Wide>(e.heads - 1) * s.head +
                    static_cast<Wide>(e.dim - 1) * s.dim;
  if (std::min({s.token, s.head, s.dim, e.offset}) >= 0 &&
      (last + 1) * e.element_bytes <= static_cast<Wide>(e.size_bytes)) {
    return absl::OkStatus();
  }
  return absl::InternalError(
      absl::StrCat("the ", e.tensor, " reaches outside of its ", e.size_bytes,
                   " bytes: from element ", e.offset, ", ", e.tokens, " x ",
                   e.heads, " x ", e.dim, " with strides ", s.token, ", ",
                   s.head, ", ", s.dim));
}

// A good scale for each head, or none.
absl::Status CheckScales(const AttentionWork& work) {
  const HeadConfig& c = work.config;
  const std::pair<const std::vector<float>&, int32_t> tensors[] = {
      {work.scales.query, c.query_head_count},
      {work.scales.key, c.kv_head_count},
      {work.scales.value, c.kv_head_count}};
  for (const auto& [scales, heads] : tensors) {
    if (!scales.empty() && (scales.size() != static_cast<size_t>(heads) ||
                            c.data_type != DataType::kFloat8E4M3)) {
      return absl::InternalError(
          absl::StrCat(scales.size(), " scales for ", heads, " heads"));
    }
    for (const float scale : scales) {
      if (!(scale > 0) || !std::isfinite(scale)) {
        return absl::InternalError(absl::StrCat("a scale is ", scale));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckMemoryBounds(const AttentionWork& work) {
  const HeadConfig& c = work.config;
  const int64_t bytes = ElementBytes(c.data_type);
  const int64_t output_bytes = ElementBytes(OutputType(c.data_type));
  if (work.is_resident() && work.kv_steps.size() != work.sequences.size()) {
    return absl::InternalError("not every sequence is a step");
  }
  if (absl::Status status = CheckScales(work); !status.ok()) return status;
  for (size_t i = 0; i < work.sequences.size(); ++i) {
    const WorkSequence& s = work.sequences[i];
    const Sequence& q = s.shape;
    // Of a resident work only new tokens are in the payload.
    const int64_t keys = work.is_resident() ? work.kv_steps[i].append_length
                                            : q.key_length;
    if (std::min(q.query_length, q.key_length) < 0) {
      return absl::InternalError("a sequence has a negative length");
    }
    // Weights are dense: [heads, query_length, key_length].
    const TensorStrides weights = {q.key_length, q.query_length * q.key_length,
                                   1};
    const TensorStrides log_sum_exp = {q.log_sum_exp_token_stride,
                                       q.log_sum_exp_head_stride, 0};
    const Extent extents[] = {
        {"query", s.query_offset, q.query_length, c.query_head_count,
         c.head_dim_qk, q.query_strides, bytes, work.query.size_bytes()},
        {"key", s.key_offset, keys, c.kv_head_count, c.head_dim_qk,
         q.key_strides, bytes, work.key.size_bytes()},
        {"value", s.value_offset, keys, c.kv_head_count, c.head_dim_v,
         q.value_strides, bytes, work.value.size_bytes()},
        {"output", s.output_offset, q.query_length, c.query_head_count,
         c.head_dim_v, q.output_strides, output_bytes, work.output_bytes},
        {"log-sum-exp", s.log_sum_exp_offset,
         work.log_sum_exp_bytes > 0 ? q.query_length : 0, c.query_head_count, 1,
         log_sum_exp, sizeof(float), work.log_sum_exp_bytes},
        {"weights", s.weights_offset,
         work.weights_bytes > 0 && q.key_length > 0 ? q.query_length : 0,
         c.query_head_count, q.key_length, weights, output_bytes,
         work.weights_bytes}};
    for (const Extent& extent : extents) {
      if (absl::Status status = CheckExtent(extent); !status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace attention::test
