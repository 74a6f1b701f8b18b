// Times attention on the current GPU with CUDA events.
//
//   gpu_bench [--json=FILE] [--min_ms=N] [--check] [--calls|--copies] CASE...
//   gpu_bench --interactive [--min_ms=N] [--calls|--copies]
//
// --interactive reads a case from each line of the standard input, and answers
// with a line of JSON.
//
// --calls waits for each launch before the next, as a server with one caller
// does; --copies does so with the inputs copied from pinned host memory before
// it and the output copied back behind it. Both are timed on the host.
//
// --check prints the largest difference of an output from that of the portable
// kernels too, relative to the largest output.
//
// A case is a comma-separated list, e.g. type=bf16,b=4,hq=16,hkv=8,m=4096,
// n=4096,d=128,mask=bottom_right. Keys and defaults: see ParseCase.
//
// The obvious loop over one set of tensors measures the L2 cache: a working set
// of a few megabytes stays there. Inputs therefore rotate through several sets
// that together are far larger than the cache. Inputs are random, since zeros
// let the chip draw less power and clock higher; the time is the median of many
// rounds, each between two events.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "kernels/attention_params.h"
#include "kernels/bench/gpu_case.cuh"
#include "kernels/bench/gpu_support.cuh"
#include "kernels/cost.h"
#include "kernels/cuda/attention_cuda.h"
#include "kernels/cuda/portable/streaming.h"

namespace attention {
namespace {

using bench::Case;
using bench::Check;
using bench::ParseCase;
using bench::Refuse;
using bench::ShapesOf;

// What is timed.
enum class Mode {
  kLaunches,  // one after the other, without a wait
  kCalls,
  kCopies,
};

// One set of tensors, [token, head, dim] with the tokens of all sequences, and
// its scratch memory.
class TensorSet {
 public:
  TensorSet(const Case& c, uint64_t seed, bool with_host_memory)
      : config_(c.config), sequences_(ShapesOf(c)) {
    const auto& h = c.config;
    int64_t query_tokens = 0, key_tokens = 0;
    for (const Sequence& s : sequences_) {
      query_tokens += s.query_length;
      key_tokens += s.key_length;
    }
    const DataType type = h.data_type;
    const int64_t element = ElementBytes(type);
    const int64_t output_element = ElementBytes(OutputType(type));
    if (type == DataType::kFloat8E4M3) {
      scales_.assign(h.query_head_count, bench::kFloat8Scale);
    }
    const auto allocate = [&](DataType of, int64_t tokens, int64_t heads,
                              int64_t dims) {
      void* data = nullptr;
      const int64_t count = tokens * heads * dims;
      const size_t bytes = count * ElementBytes(of);
      Check(cudaMalloc(&data, bytes), "allocate");
      bench::FillRandom(of, data, count, seed += 0x51ed270b);
      Memory memory = {data, nullptr, bytes};
      if (with_host_memory) {
        Check(cudaMallocHost(&memory.host, memory.bytes), "allocate pinned");
        Check(
            cudaMemcpy(memory.host, data, memory.bytes, cudaMemcpyDeviceToHost),
            "copy");
      }
      memory_.push_back(memory);
      return static_cast<char*>(data);
    };
    char* query =
        allocate(type, query_tokens, h.query_head_count, h.head_dim_qk);
    char* key = allocate(type, key_tokens, h.kv_head_count, h.head_dim_qk);
    char* value = allocate(type, key_tokens, h.kv_head_count, h.head_dim_v);
    char* output = allocate(OutputType(type), query_tokens, h.query_head_count,
                            h.head_dim_v);
    const auto strides = [](int64_t heads, int64_t dims) {
      return TensorStrides{.token = heads * dims, .head = dims};
    };
    for (Sequence& s : sequences_) {
      s.query_strides = strides(h.query_head_count, h.head_dim_qk);
      s.key_strides = strides(h.kv_head_count, h.head_dim_qk);
      s.value_strides = strides(h.kv_head_count, h.head_dim_v);
      s.output_strides = strides(h.query_head_count, h.head_dim_v);
      s.query = query;
      s.key = key;
      s.value = value;
      s.output = output;
      if (!scales_.empty()) {
        s.query_scales = s.key_scales = s.value_scales = scales_.data();
      }
      query += s.query_length * s.query_strides.token * element;
      key += s.key_length * s.key_strides.token * element;
      value += s.key_length * s.value_strides.token * element;
      output += s.query_length * s.output_strides.token * output_element;
    }
    const cuda::ScratchBytes size = cuda::ScratchSize(params());
    Check(cudaMallocHost(&scratch_.host, size.host_bytes), "allocate pinned");
    Check(cudaMalloc(&scratch_.device, size.device_bytes), "allocate scratch");
  }
  ~TensorSet() {
    for (const Memory& memory : memory_) {
      cudaFree(memory.device);
      cudaFreeHost(memory.host);
    }
    cudaFree(scratch_.device);
    cudaFreeHost(scratch_.host);
  }
  TensorSet(const TensorSet&) = delete;
  TensorSet& operator=(const TensorSet&) = delete;

  AttentionParams params() const {
    return {config_, sequences_.data(),
            static_cast<int64_t>(sequences_.size())};
  }
  void Launch(cudaStream_t stream) const {
    Check(cuda::Launch(params(), scratch_, stream), "launch");
  }
  // The largest difference from the portable kernels' output, relative to the
  // largest of that.
  double Error() const {
    std::vector<char> got(memory_[3].bytes), expected(memory_[3].bytes);
    const auto fetch = [&](std::vector<char>& to) {
      Check(cudaMemcpy(to.data(), memory_[3].device, to.size(),
                       cudaMemcpyDeviceToHost),
            "copy");
    };
    Launch(nullptr);
    fetch(got);
    const cuda::ScratchBytes size = cuda::portable::ScratchSize(params());
    cuda::Scratch scratch;
    Check(cudaMallocHost(&scratch.host, size.host_bytes), "allocate pinned");
    Check(cudaMalloc(&scratch.device, size.device_bytes), "allocate scratch");
    Check(cuda::portable::Launch(params(), scratch, nullptr), "launch");
    fetch(expected);
    cudaFree(scratch.device);
    cudaFreeHost(scratch.host);
    return bench::RelativeError(OutputType(config_.data_type), got, expected);
  }
  // As a server does for one request whose tensors are in pinned memory.
  void CopyAndLaunch(cudaStream_t stream) const {
    for (int i = 0; i < 3; ++i) {
      const Memory& input = memory_[i];
      Check(cudaMemcpyAsync(input.device, input.host, input.bytes,
                            cudaMemcpyHostToDevice, stream),
            "copy");
    }
    Launch(stream);
    const Memory& output = memory_[3];
    Check(cudaMemcpyAsync(output.host, output.device, output.bytes,
                          cudaMemcpyDeviceToHost, stream),
          "copy");
  }

 private:
  struct Memory {
    void* device;
    void* host;  // null without
    size_t bytes;
  };

  HeadConfig config_;
  std::vector<Memory> memory_;  // query, key, value, output
  std::vector<Sequence> sequences_;
  std::vector<float> scales_;  // of fp8 heads
  cuda::Scratch scratch_;
};

double Total(const Case& c, double (*of)(const HeadConfig&, const Sequence&)) {
  double total = 0;
  for (const Sequence& s : ShapesOf(c)) total += of(c.config, s);
  return total;
}

// Of each call, in milliseconds.
std::vector<double> TimeCalls(const std::vector<TensorSet*>& sets, Mode mode,
                              cudaStream_t stream) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> times;
  for (const TensorSet* set : sets) {
    const Clock::time_point start = Clock::now();
    if (mode == Mode::kCopies) {
      set->CopyAndLaunch(stream);
    } else {
      set->Launch(stream);
    }
    Check(cudaStreamSynchronize(stream), "synchronize");
    times.push_back(
        std::chrono::duration<double, std::milli>(Clock::now() - start)
            .count());
  }
  return times;
}

double MedianCallMilliseconds(const std::vector<TensorSet*>& sets, Mode mode,
                              double min_ms) {
  cudaStream_t stream;
  Check(cudaStreamCreate(&stream), "stream");
  TimeCalls(sets, mode, stream);  // warm-up
  std::vector<double> times;
  double total = 0;
  while (times.size() < bench::kMinRounds || total < min_ms) {
    for (double time : TimeCalls(sets, mode, stream)) {
      total += time;
      times.push_back(time);
    }
  }
  Check(cudaStreamDestroy(stream), "stream");
  return bench::Median(times);
}

double MedianMilliseconds(const Case& c, Mode mode, double min_ms) {
  constexpr double kWorkingSetBytes = 400e6;  // several times any L2 cache
  constexpr int64_t kMaxSets = 64;
  const double bytes = Total(c, AttentionBytes);
  const int64_t set_count = std::clamp<int64_t>(
      static_cast<int64_t>(std::ceil(kWorkingSetBytes / bytes)), 2, kMaxSets);
  std::vector<TensorSet*> sets;
  for (int64_t i = 0; i < set_count; ++i)
    sets.push_back(new TensorSet(c, 977 * i + 1, mode == Mode::kCopies));

  double median = 0;
  if (mode == Mode::kLaunches) {
    const double round =
        bench::MedianRoundMilliseconds(min_ms, [&](cudaStream_t stream) {
          for (const TensorSet* set : sets) set->Launch(stream);
        });
    median = round / static_cast<double>(set_count);
  } else {
    median = MedianCallMilliseconds(sets, mode, min_ms);
  }
  for (TensorSet* set : sets) delete set;
  return median;
}

struct Result {
  double ms;
  double tflops;
  double gbytes_per_second;
};

Result Time(const Case& c, Mode mode, double min_ms) {
  const double ms = MedianMilliseconds(c, mode, min_ms);
  return {ms, Total(c, AttentionFlops) / ms * 1e-9,
          Total(c, AttentionBytes) / ms * 1e-6};
}

void PrintJson(std::FILE* file, const Case& c, const Result& result) {
  std::fprintf(file,
               "{\"case\": \"%s\", \"ms\": %.6f, \"tflops\": %.3f, "
               "\"gbytes_per_second\": %.3f}\n",
               c.text.c_str(), result.ms, result.tflops,
               result.gbytes_per_second);
  std::fflush(file);
}

int Main(int argc, char** argv) {
  std::FILE* json = nullptr;
  double min_ms = 200;
  bool interactive = false;
  bool check = false;
  Mode mode = Mode::kLaunches;
  std::vector<Case> cases;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.starts_with("--json=")) {
      json = std::fopen(argument.c_str() + 7, "w");
      if (json == nullptr) Refuse(argument);
    } else if (argument.starts_with("--min_ms=")) {
      min_ms = std::atof(argument.c_str() + 9);
    } else if (argument == "--interactive") {
      interactive = true;
    } else if (argument == "--check") {
      check = true;
    } else if (argument == "--calls") {
      mode = Mode::kCalls;
    } else if (argument == "--copies") {
      mode = Mode::kCopies;
    } else {
      cases.push_back(ParseCase(argument));
    }
  }
  if (interactive) {
    std::string line;
    while (std::getline(std::cin, line)) {
      const Case c = ParseCase(line);
      PrintJson(stdout, c, Time(c, mode, min_ms));
    }
    return 0;
  }
  if (cases.empty()) Refuse("no cases");

  cudaDeviceProp device;
  Check(cudaGetDeviceProperties(&device, 0), "device");
  std::printf("%s\n%-72s %10s %10s %10s%s\n", device.name, "case", "ms",
              "TFLOP/s", "GB/s", check ? "      error" : "");
  for (const Case& c : cases) {
    const Result result = Time(c, mode, min_ms);
    std::printf("%-72s %10.4f %10.1f %10.1f", c.text.c_str(), result.ms,
                result.tflops, result.gbytes_per_second);
    if (check) std::printf(" %10.2e", TensorSet(c, 1, false).Error());
    std::printf("\n");
    std::fflush(stdout);
    if (json != nullptr) PrintJson(json, c, result);
  }
  if (json != nullptr) std::fclose(json);
  return 0;
}

}  // namespace
}  // namespace attention

int main(int argc, char** argv) { return attention::Main(argc, argv); }
