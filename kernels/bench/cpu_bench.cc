// Times the CPU kernels, e.g.
//
//   cpu_bench --threads=16 --benchmark_filter=fp32/
//
// A benchmark's name is its shape: type/B<batch>/M<queries>/N<keys>/q<query
// heads>/kv<K/V heads>/d<head dim>/<mask>/<algorithm>. Tensors are token-major,
// [token, head, dim]. cpu_compare_torch.py reads the names and times PyTorch on
// the same shapes. FLOPs count visible pairs only (kernels/cost.h).
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "kernels/attention_params.h"
#include "kernels/cost.h"
#include "kernels/cpu/attention_cpu.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/float_convert.h"

ABSL_FLAG(int, threads, 0, "Threads that compute; 0 = one per processor");

namespace attention {
namespace {

struct Shape {
  int64_t batch;
  int64_t query_length;
  int64_t key_length;
  HeadConfig config;
};

std::string Name(const Shape& shape) {
  const HeadConfig& c = shape.config;
  const char* type = c.data_type == DataType::kFloat32   ? "fp32"
                     : c.data_type == DataType::kFloat16 ? "fp16"
                                                         : "bf16";
  return absl::StrCat(
      type, "/B", shape.batch, "/M", shape.query_length, "/N", shape.key_length,
      "/q", c.query_head_count, "/kv", c.kv_head_count, "/d", c.head_dim_qk,
      c.mask == MaskKind::kNone ? "/full" : "/causal",
      c.algorithm == Algorithm::kStreaming ? "/streaming" : "/three_step");
}

// [tokens, heads, dim], standard normal values.
std::vector<char> RandomTensor(DataType type, int64_t count) {
  // Drawing is far slower than the kernels: repeat a prime number of values.
  constexpr int64_t kPeriod = 65537;
  std::mt19937_64 random(count);
  std::normal_distribution<float> normal;
  std::vector<float> values(kPeriod);
  for (float& value : values) value = normal(random);
  std::vector<char> tensor(count * ElementBytes(type));
  for (int64_t i = 0; i < count; ++i) {
    StoreFromFloat(type, tensor.data(), i, values[i % kPeriod]);
  }
  return tensor;
}

void Run(benchmark::State& state, const Shape& shape, cpu::ThreadPool& pool) {
  const HeadConfig& c = shape.config;
  const int64_t query_row = c.query_head_count * c.head_dim_qk;
  const int64_t key_row = c.kv_head_count * c.head_dim_qk;
  const int64_t queries = shape.batch * shape.query_length * query_row;
  const int64_t keys = shape.batch * shape.key_length * key_row;
  const std::vector<char> query = RandomTensor(c.data_type, queries);
  const std::vector<char> key = RandomTensor(c.data_type, keys);
  const std::vector<char> value = RandomTensor(c.data_type, keys);
  std::vector<char> output(query.size());

  std::vector<Sequence> sequences(shape.batch);
  double flops = 0;
  double bytes = 0;
  for (int64_t i = 0; i < shape.batch; ++i) {
    Sequence& s = sequences[i];
    const int64_t query_offset = i * query.size() / shape.batch;
    const int64_t key_offset = i * key.size() / shape.batch;
    s.query = query.data() + query_offset;
    s.key = key.data() + key_offset;
    s.value = value.data() + key_offset;
    s.output = output.data() + query_offset;
    s.query_strides = s.output_strides = {query_row, c.head_dim_qk, 1};
    s.key_strides = s.value_strides = {key_row, c.head_dim_qk, 1};
    s.query_length = shape.query_length;
    s.key_length = shape.key_length;
    s.scale = 1.0 / std::sqrt(static_cast<double>(c.head_dim_qk));
    flops += AttentionFlops(c, s);
    bytes += AttentionBytes(c, s);
  }
  const AttentionParams params = {c, sequences.data(), shape.batch};
  for (auto _ : state) {
    const absl::Status status = cpu::ComputeAttention(params, pool);
    if (!status.ok()) {
      state.SkipWithError(status.ToString().c_str());
      break;
    }
    benchmark::ClobberMemory();
  }
  state.counters["FLOP/s"] =
      benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["B/s"] =
      benchmark::Counter(bytes, benchmark::Counter::kIsIterationInvariantRate);
}

std::vector<Shape> Shapes() {
  std::vector<Shape> shapes;
  const auto add = [&](int64_t batch, int64_t m, int64_t n, int32_t query_heads,
                       int32_t kv_heads, int32_t dim, MaskKind mask,
                       DataType type, Algorithm algorithm) {
    shapes.push_back({batch, m, n,
                      HeadConfig{.data_type = type,
                                 .head_dim_qk = dim,
                                 .head_dim_v = dim,
                                 .query_head_count = query_heads,
                                 .kv_head_count = kv_heads,
                                 .mask = mask,
                                 .algorithm = algorithm}});
  };
  const MaskKind kFull = MaskKind::kNone;
  const MaskKind kCausal = MaskKind::kCausalBottomRight;
  for (DataType type : {DataType::kFloat32, DataType::kBFloat16}) {
    for (MaskKind mask : {kFull, kCausal}) {
      add(1, 1024, 1024, 16, 8, 128, mask, type, Algorithm::kStreaming);
    }
    add(8, 1, 4096, 16, 8, 128, kFull, type, Algorithm::kStreaming);
  }
  add(1, 1024, 1024, 16, 16, 64, kFull, DataType::kFloat32,
      Algorithm::kStreaming);
  add(1, 1, 4096, 16, 8, 128, kFull, DataType::kFloat32, Algorithm::kStreaming);
  add(8, 4, 4096, 16, 8, 128, kFull, DataType::kFloat32, Algorithm::kStreaming);
  add(1, 1024, 1024, 16, 8, 128, kFull, DataType::kFloat32,
      Algorithm::kThreeStep);
  return shapes;
}

}  // namespace
}  // namespace attention

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  absl::ParseCommandLine(argc, argv);
  int threads = absl::GetFlag(FLAGS_threads);
  if (threads == 0) threads = std::thread::hardware_concurrency();
  attention::cpu::ThreadPool pool(threads);
  benchmark::AddCustomContext("instruction_set",
                              attention::cpu::InstructionSet());
  benchmark::AddCustomContext("threads", absl::StrCat(threads));
  for (const attention::Shape& shape : attention::Shapes()) {
    benchmark::RegisterBenchmark(attention::Name(shape).c_str(),
                                 [shape, &pool](benchmark::State& state) {
                                   attention::Run(state, shape, pool);
                                 })
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
