#include "tests/client/loadtest/reference_answer.h"

#include "kernels/float_convert.h"
#include "kernels/reference/reference_attention.h"

namespace attention::loadtest {
namespace {

// Strides of [B, S, H, D] or [B, H, S, D]; the third value is the sequence's.
struct Strides {
  TensorStrides row;
  int64_t sequence;
};

Strides StridesOf(Layout layout, int64_t length, int64_t heads,
                  int64_t head_dim) {
  const int64_t sequence = length * heads * head_dim;
  if (layout == Layout::kBhsd) {
    return {{.token = head_dim, .head = length * head_dim}, sequence};
  }
  return {{.token = heads * head_dim, .head = head_dim}, sequence};
}

const void* Advance(const TensorView& view, DataType type, int64_t elements) {
  return static_cast<const char*>(view.data) + elements * ElementBytes(type);
}

const float* ScalesOf(const std::vector<float>& scales) {
  return scales.empty() ? nullptr : scales.data();
}

}  // namespace

AttentionResult ReferenceAnswer(const RequestShape& shape,
                                const AttentionRequest& request) {
  const DataType type = shape.data_type;
  const DataType output_type = OutputType(type);
  const Strides query =
      StridesOf(shape.layout, shape.query_length, shape.heads, shape.head_dim);
  const Strides key =
      StridesOf(shape.layout, shape.key_length, shape.kv_heads, shape.head_dim);
  const Strides value = StridesOf(shape.layout, shape.key_length,
                                  shape.kv_heads, shape.head_dim_v);
  const Strides output = StridesOf(shape.layout, shape.query_length,
                                   shape.heads, shape.head_dim_v);
  const Strides lse =
      StridesOf(shape.layout, shape.query_length, shape.heads, 1);

  AttentionResult result;
  result.data_type = output_type;
  result.output_shape = shape.OutputDims();
  result.output.resize(shape.OutputBytes());
  if (shape.log_sum_exp) {
    result.log_sum_exp_shape = result.output_shape;
    result.log_sum_exp_shape.pop_back();
    result.log_sum_exp.resize(ElementCount(result.log_sum_exp_shape) * 4);
  }
  for (int64_t b = 0; b < shape.batch; ++b) {
    Sequence sequence = shape.sequence();
    sequence.query = Advance(request.query, type, b * query.sequence);
    sequence.key = Advance(request.key, type, b * key.sequence);
    sequence.value = Advance(request.value, type, b * value.sequence);
    sequence.query_strides = query.row;
    sequence.key_strides = key.row;
    sequence.value_strides = value.row;
    sequence.query_scales = ScalesOf(request.query_scales);
    sequence.key_scales = ScalesOf(request.key_scales);
    sequence.value_scales = ScalesOf(request.value_scales);
    const reference::SequenceResult expected =
        reference::ComputeAttention(shape.config(), sequence);
    for (int64_t i = 0; i < shape.query_length; ++i) {
      for (int64_t h = 0; h < shape.heads; ++h) {
        const int64_t row = i * shape.heads + h;
        for (int64_t d = 0; d < shape.head_dim_v; ++d) {
          StoreFromFloat(
              output_type, result.output.data(),
              b * output.sequence + i * output.row.token + h * output.row.head +
                  d,
              static_cast<float>(expected.output[row * shape.head_dim_v + d]));
        }
        if (!shape.log_sum_exp) continue;
        StoreFromFloat(DataType::kFloat32, result.log_sum_exp.data(),
                       b * lse.sequence + i * lse.row.token + h * lse.row.head,
                       static_cast<float>(expected.log_sum_exp[row]));
      }
    }
  }
  for (auto* duration : {result.timings.mutable_queue_duration(),
                         result.timings.mutable_copy_in_duration(),
                         result.timings.mutable_compute_duration(),
                         result.timings.mutable_copy_out_duration()}) {
    duration->set_nanos(1'000'000);
  }
  result.timings.set_batch_request_count(2);
  result.timings.set_batch_sequence_count(2 * shape.batch);
  return result;
}

}  // namespace attention::loadtest
