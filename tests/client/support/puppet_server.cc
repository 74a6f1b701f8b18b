// A server for tests of client programs: attention-puppet-server MODE.
//
// Prints "listening address=HOST:PORT" and serves until its standard input
// ends. MODE says how it answers:
//   exact  with the float64 reference, rounded
//   wrong  as exact, but 0.5 is added to the last element of the output
//   full   with a full queue that asks for no further attempt
//   mute   not at all
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "kernels/attention_params.h"
#include "kernels/float_convert.h"
#include "kernels/reference/reference_attention.h"
#include "tests/client/cpp/fake_server.h"

namespace attention {
namespace {

struct Side {
  int64_t tokens, heads, dims;
  TensorStrides strides;
  int64_t batch_stride;
};

// Of a contiguous tensor of four dimensions.
Side SideOf(const v1::TensorDescriptor& descriptor, v1::Layout layout) {
  const auto& shape = descriptor.shape();
  Side side{shape[1], shape[2], shape[3], {}, shape[1] * shape[2] * shape[3]};
  side.strides = {shape[2] * shape[3], shape[3], 1};
  if (layout == v1::LAYOUT_BHSD) {
    side = {shape[2], shape[1], shape[3], {}, side.batch_stride};
    side.strides = {side.dims, side.tokens * side.dims, 1};
  }
  return side;
}

DataType DataTypeOf(v1::DataType data_type) {
  switch (data_type) {
    case v1::DATA_TYPE_FLOAT16:
      return DataType::kFloat16;
    case v1::DATA_TYPE_BFLOAT16:
      return DataType::kBFloat16;
    case v1::DATA_TYPE_FLOAT8_E4M3:
      return DataType::kFloat8E4M3;
    default:
      return DataType::kFloat32;
  }
}

MaskKind MaskOf(v1::MaskType mask) {
  switch (mask) {
    case v1::MASK_TYPE_CAUSAL_TOP_LEFT:
      return MaskKind::kCausalTopLeft;
    case v1::MASK_TYPE_CAUSAL_BOTTOM_RIGHT:
      return MaskKind::kCausalBottomRight;
    default:
      return MaskKind::kNone;
  }
}

const float* ScalesOf(const google::protobuf::RepeatedField<float>& scales) {
  return scales.empty() ? nullptr : scales.data();
}

grpc::Status Exact(const v1::ComputeAttentionRequest& request,
                   v1::ComputeAttentionResponse* response) {
  const DataType type = DataTypeOf(request.data_type());
  const int64_t element_bytes = ElementBytes(type);
  const DataType output_type = OutputType(type);
  const int64_t output_bytes = ElementBytes(output_type);
  const Side q = SideOf(request.query_descriptor(), request.layout());
  const Side k = SideOf(request.key_descriptor(), request.layout());
  const Side v = SideOf(request.value_descriptor(), request.layout());
  const int64_t batch = request.query_descriptor().shape(0);
  const HeadConfig config = {.data_type = type,
                             .head_dim_qk = static_cast<int32_t>(q.dims),
                             .head_dim_v = static_cast<int32_t>(v.dims),
                             .query_head_count = static_cast<int32_t>(q.heads),
                             .kv_head_count = static_cast<int32_t>(k.heads),
                             .mask = MaskOf(request.mask_type())};
  response->set_data_type(type == output_type ? request.data_type()
                                              : v1::DATA_TYPE_BFLOAT16);
  *response->mutable_output_descriptor() = request.query_descriptor();
  response->mutable_output_descriptor()->set_shape(3, v.dims);
  const Side o = SideOf(response->output_descriptor(), request.layout());
  std::string output(batch * o.batch_stride * output_bytes, '\0');
  std::string log_sum_exp(batch * q.tokens * q.heads * sizeof(float), '\0');
  std::string weights;
  for (int64_t b = 0; b < batch; ++b) {
    Sequence s;
    s.query = request.query().data() + b * q.batch_stride * element_bytes;
    s.key = request.key().data() + b * k.batch_stride * element_bytes;
    s.value = request.value().data() + b * v.batch_stride * element_bytes;
    s.query_strides = q.strides;
    s.key_strides = k.strides;
    s.value_strides = v.strides;
    s.query_scales = ScalesOf(request.query_scales());
    s.key_scales = ScalesOf(request.key_scales());
    s.value_scales = ScalesOf(request.value_scales());
    s.query_length = q.tokens;
    s.key_length = k.tokens;
    s.scale = request.scale();
    if (request.sliding_window().has_left()) {
      s.window_left = request.sliding_window().left();
    }
    if (request.sliding_window().has_right()) {
      s.window_right = request.sliding_window().right();
    }
    const auto result =
        reference::ComputeAttention(config, s, request.return_weights());
    for (int64_t i = 0; i < q.tokens; ++i) {
      for (int64_t h = 0; h < q.heads; ++h) {
        const int64_t row =
            b * o.batch_stride + i * o.strides.token + h * o.strides.head;
        for (int64_t d = 0; d < v.dims; ++d) {
          StoreFromFloat(output_type, output.data(), row + d,
                         static_cast<float>(
                             result.output[(i * q.heads + h) * v.dims + d]));
        }
        StoreFromFloat(DataType::kFloat32, log_sum_exp.data(), row / v.dims,
                       static_cast<float>(result.log_sum_exp[i * q.heads + h]));
      }
    }
    for (const double weight : result.weights) {
      weights.resize(weights.size() + output_bytes);
      StoreFromFloat(output_type, weights.data(),
                     weights.size() / output_bytes - 1,
                     static_cast<float>(weight));
    }
  }
  response->set_output(output);
  if (request.return_log_sum_exp()) {
    *response->mutable_log_sum_exp_descriptor() = response->output_descriptor();
    response->mutable_log_sum_exp_descriptor()->mutable_shape()->RemoveLast();
    response->set_log_sum_exp(log_sum_exp);
  }
  if (request.return_weights()) {
    for (const int64_t extent : {batch, q.heads, q.tokens, k.tokens}) {
      response->mutable_weights_descriptor()->add_shape(extent);
    }
    response->set_weights(weights);
  }
  response->mutable_timings()->mutable_compute_duration()->set_nanos(1500000);
  response->mutable_timings()->set_batch_request_count(1);
  response->mutable_timings()->set_device_name("puppet:0");
  return grpc::Status::OK;
}

int Main(const std::string& mode) {
  absl::Notification finished;
  FakeServer server([&](grpc::ServerContext* context,
                        const v1::ComputeAttentionRequest& request,
                        v1::ComputeAttentionResponse* response) {
    if (mode == "full") {
      context->AddTrailingMetadata("grpc-retry-pushback-ms", "-1");
      return FakeServer::Error(grpc::StatusCode::RESOURCE_EXHAUSTED,
                               "the queue is full", "QUEUE_FULL");
    }
    if (mode == "mute") finished.WaitForNotification();
    grpc::Status status = Exact(request, response);
    if (mode == "wrong") {
      std::string* output = response->mutable_output();
      const DataType type = OutputType(DataTypeOf(request.data_type()));
      const auto last =
          static_cast<int64_t>(output->size()) / ElementBytes(type) - 1;
      StoreFromFloat(type, output->data(), last,
                     LoadAsFloat(type, output->data(), last) + 0.5f);
    }
    return status;
  });
  std::cout << "listening address=" << server.target() << std::endl;
  while (std::cin.get() != EOF) {
  }
  finished.Notify();
  return 0;
}

}  // namespace
}  // namespace attention

int main(int argc, char** argv) {
  return argc == 2 ? attention::Main(argv[1]) : 2;
}
