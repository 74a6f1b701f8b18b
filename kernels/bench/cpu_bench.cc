// Times the CPU kernels, e.g.
//
//   cpu_bench --threads=16 --benchmark_filter=fp32/
//
// A benchmark's name is its shape: type/B<batch>/M<queries>/N<keys>/q<query
// heads>/kv<K/V heads>/d<head dim>/<mask>/<algorithm>. Tensors are token-major,
// [token, head, dim]. cpu_compare_torch.py reads the names and times PyTorch on
// the same shapes. FLOPs count visible pairs only (kernels/cost.h).
//
// With paged<tokens per page> for an algorithm, and _e4m3 if that is their
// type, keys and values are resident: one decoding step, which appends the M
// tokens of the queries. Pages are in random order.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "hwy/aligned_allocator.h"
#include "kernels/attention_params.h"
#include "kernels/cost.h"
#include "kernels/cpu/attention_cpu.h"
#include "kernels/cpu/paged.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/float_convert.h"
#include "kernels/paged_params.h"
#include "kernels/validation.h"

ABSL_FLAG(int, threads, 0, "Threads that compute; 0 = one per processor");

namespace attention {
namespace {

struct Shape {
  int64_t batch;
  int64_t query_length;
  int64_t key_length;
  HeadConfig config;
  int32_t page_tokens = 0;  // 0: not resident
  KvDataType kv_data_type = KvDataType::kSame;
};

std::string AlgorithmName(const Shape& shape) {
  if (shape.page_tokens > 0) {
    return absl::StrCat("paged", shape.page_tokens,
                        shape.kv_data_type == KvDataType::kSame ? "" : "_e4m3");
  }
  return shape.config.algorithm == Algorithm::kStreaming ? "streaming"
                                                         : "three_step";
}

std::string Name(const Shape& shape) {
  const HeadConfig& c = shape.config;
  return absl::StrCat(
      ToString(c.data_type), "/B", shape.batch, "/M", shape.query_length, "/N", shape.key_length,
      "/q", c.query_head_count, "/kv", c.kv_head_count, "/d", c.head_dim_qk,
      c.mask == MaskKind::kNone ? "/full/" : "/causal/", AlgorithmName(shape));
}

// [tokens, heads, dim], standard normal values; of fp8, after scales of 0.01.
std::vector<char> RandomTensor(DataType type, int64_t count) {
  // Drawing is far slower than the kernels: repeat a prime number of values.
  constexpr int64_t kPeriod = 65537;
  std::mt19937_64 random(count);
  std::normal_distribution<float> normal;
  std::vector<float> values(kPeriod);
  for (float& value : values) value = normal(random);
  const float factor = type == DataType::kFloat8E4M3 ? 100 : 1;
  std::vector<char> tensor(count * ElementBytes(type));
  for (int64_t i = 0; i < count; ++i) {
    StoreFromFloat(type, tensor.data(), i, values[i % kPeriod] * factor);
  }
  return tensor;
}

template <typename Compute>
void Measure(benchmark::State& state, double flops, double bytes,
             Compute compute) {
  for (auto _ : state) {
    const absl::Status status = compute();
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

void RunTensors(benchmark::State& state, const Shape& shape,
                cpu::ThreadPool& pool) {
  const HeadConfig& c = shape.config;
  const int64_t query_row = c.query_head_count * c.head_dim_qk;
  const int64_t key_row = c.kv_head_count * c.head_dim_qk;
  const int64_t queries = shape.batch * shape.query_length * query_row;
  const int64_t keys = shape.batch * shape.key_length * key_row;
  const std::vector<char> query = RandomTensor(c.data_type, queries);
  const std::vector<char> key = RandomTensor(c.data_type, keys);
  const std::vector<char> value = RandomTensor(c.data_type, keys);
  const int64_t output_bytes = queries * ElementBytes(OutputType(c.data_type));
  std::vector<char> output(output_bytes);
  const std::vector<float> scales(c.query_head_count, 0.01f);

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
    s.output = output.data() + i * output_bytes / shape.batch;
    if (c.data_type == DataType::kFloat8E4M3) {
      s.query_scales = s.key_scales = s.value_scales = scales.data();
    }
    s.query_strides = s.output_strides = {query_row, c.head_dim_qk, 1};
    s.key_strides = s.value_strides = {key_row, c.head_dim_qk, 1};
    s.query_length = shape.query_length;
    s.key_length = shape.key_length;
    s.scale = 1.0 / std::sqrt(static_cast<double>(c.head_dim_qk));
    flops += AttentionFlops(c, s);
    bytes += AttentionBytes(c, s);
  }
  const AttentionParams params = {c, sequences.data(), shape.batch};
  Measure(state, flops, bytes,
          [&] { return cpu::ComputeAttention(params, pool); });
}

void RunPaged(benchmark::State& state, const Shape& shape,
              cpu::ThreadPool& pool) {
  const HeadConfig& c = shape.config;
  const PagedConfig config = {c, shape.kv_data_type, shape.page_tokens};
  const int64_t query_row = c.query_head_count * c.head_dim_qk;
  const int64_t key_row = c.kv_head_count * c.head_dim_qk;
  const std::vector<char> query =
      RandomTensor(c.data_type, shape.query_length * query_row);
  const std::vector<char> key =
      RandomTensor(c.data_type, shape.key_length * key_row);
  std::vector<char> output(shape.batch * query.size());
  const std::vector<float> scales(c.kv_head_count, 0.01f);

  const int64_t pages = PagesFor(config, shape.key_length);
  const int64_t page_bytes = PageBytes(config);
  const auto memory =
      hwy::AllocateAligned<std::byte>(shape.batch * pages * page_bytes);
  std::vector<void*> table(shape.batch * pages);
  for (size_t i = 0; i < table.size(); ++i) {
    table[i] = memory.get() + i * page_bytes;
  }
  std::shuffle(table.begin(), table.end(), std::mt19937_64(1));

  // First all tokens are appended, then the last ones again and again.
  std::vector<PagedSequence> sequences(shape.batch);
  double flops = 0;
  for (int64_t i = 0; i < shape.batch; ++i) {
    PagedSequence& s = sequences[i];
    s.query = query.data();
    s.output = output.data() + i * query.size();
    s.query_strides = s.output_strides = {query_row, c.head_dim_qk, 1};
    s.new_key = s.new_value = key.data();
    s.new_key_strides = s.new_value_strides = {key_row, c.head_dim_qk, 1};
    s.append_length = s.key_length = s.key_end = shape.key_length;
    s.pages = table.data() + i * pages;
    s.scale = 1.0 / std::sqrt(static_cast<double>(c.head_dim_qk));
    s.key_scales = s.value_scales = scales.data();
    Sequence lengths;
    lengths.query_length = shape.query_length;
    lengths.key_length = shape.key_length;
    flops += AttentionFlops(c, lengths);
  }
  const PagedParams params = {config, sequences.data(), shape.batch};
  if (const absl::Status status = cpu::ComputePaged(params, pool);
      !status.ok()) {
    state.SkipWithError(status.ToString().c_str());
    return;
  }
  for (PagedSequence& s : sequences) {
    s.query_length = s.append_length = shape.query_length;
  }
  const double bytes =
      static_cast<double>(shape.batch) *
      (shape.key_length * page_bytes / shape.page_tokens + 2 * query.size());
  Measure(state, flops, bytes, [&] { return cpu::ComputePaged(params, pool); });
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
  for (DataType type :
       {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat8E4M3}) {
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

  // Decoding, beside the stateless kernel.
  for (DataType type : {DataType::kFloat32, DataType::kBFloat16}) {
    for (int64_t queries : {1, 8}) {
      const Shape stateless = {8, queries, 4096,
                               HeadConfig{.data_type = type,
                                          .head_dim_qk = 128,
                                          .head_dim_v = 128,
                                          .query_head_count = 16,
                                          .kv_head_count = 8,
                                          .mask = kCausal}};
      shapes.push_back(stateless);
      for (int32_t page_tokens : {16, 64}) {
        for (KvDataType kv_type :
             {KvDataType::kSame, KvDataType::kFloat8E4M3}) {
          shapes.push_back(stateless);
          shapes.back().page_tokens = page_tokens;
          shapes.back().kv_data_type = kv_type;
        }
      }
    }
  }
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
                                   if (shape.page_tokens > 0) {
                                     attention::RunPaged(state, shape, pool);
                                   } else {
                                     attention::RunTensors(state, shape, pool);
                                   }
                                 })
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
