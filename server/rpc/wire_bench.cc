// What the server does to the bytes of a request and of an answer, beside copying
// and computing: both do not touch the tensors.
#include <benchmark/benchmark.h>

#include <string>
#include <utility>
#include <vector>

#include "server/rpc/request_decoder.h"
#include "server/rpc/request_scanner.h"
#include "server/rpc/response_encoder.h"

namespace attention {
namespace {

constexpr size_t kSliceBytes = size_t{64} << 10;  // as gRPC delivers them

// [1, tokens, 16, 128] bf16 query, key and value.
std::string Request(int64_t tokens) {
  v1::ComputeAttentionRequest request;
  request.set_data_type(v1::DATA_TYPE_BFLOAT16);
  for (auto* tensor :
       {request.mutable_query_descriptor(), request.mutable_key_descriptor(),
        request.mutable_value_descriptor()}) {
    for (int64_t size : {int64_t{1}, tokens, int64_t{16}, int64_t{128}}) {
      tensor->add_shape(size);
    }
  }
  const std::string tensor(tokens * 16 * 128 * 2, '\0');
  request.set_query(tensor);
  request.set_key(tensor);
  request.set_value(tensor);
  return request.SerializeAsString();
}

void BM_ScanAndDecode(benchmark::State& state) {
  const std::string message = Request(state.range(0));
  std::vector<absl::string_view> fragments;
  for (size_t at = 0; at < message.size(); at += kSliceBytes) {
    fragments.push_back(absl::string_view(message).substr(at, kSliceBytes));
  }
  for (auto _ : state) {
    MessageArena arena;
    auto decoded = DecodeRequest(*ScanRequest(fragments, arena), {});
    benchmark::DoNotOptimize(decoded->work.get());
  }
  state.SetLabel(std::to_string(message.size() >> 10) + " KiB");
}
BENCHMARK(BM_ScanAndDecode)->Arg(1)->Arg(128)->Arg(8192);

void BM_Encode(benchmark::State& state) {
  MemoryPool pool({.name = "host", .budget_bytes = size_t{1} << 20},
                  MakeHostAllocator());
  ResponsePlan plan;
  plan.data_type = v1::DATA_TYPE_BFLOAT16;
  for (int64_t size : {1, 1, 16, 128}) plan.output_shape.push_back(size);
  for (auto _ : state) {
    WorkResult result;
    result.output = *pool.Allocate(16 * 128 * 2);
    result.device_name = "cuda:0";
    benchmark::DoNotOptimize(
        EncodeResponse(plan, std::move(result), nullptr).Length());
  }
}
BENCHMARK(BM_Encode);

}  // namespace
}  // namespace attention

BENCHMARK_MAIN();
