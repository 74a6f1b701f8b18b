// Times attention on the current GPU with CUDA events.
//
//   gpu_bench [--json=FILE] [--min_ms=N] [--calls|--copies] CASE...
//
// --calls waits for each launch before the next, as a server with one caller
// does; --copies does so with the inputs copied from pinned host memory before
// it and the output copied back behind it. Both are timed on the host.
//
// A case is a comma-separated list, e.g. type=bf16,b=4,hq=16,hkv=8,m=4096,
// n=4096,d=128,mask=bottom_right. Keys and defaults: see ParseCase.
//
// The obvious loop over one set of tensors measures the L2 cache: a working set
// of a few megabytes stays there. Inputs therefore rotate through several sets
// that together are far larger than the cache. Inputs are random, since zeros
// let the chip draw less power and clock higher; the time is the median of many
// rounds, each between two events.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/attention_params.h"
#include "kernels/cost.h"
#include "kernels/cuda/attention_cuda.h"

namespace attention {
namespace {

void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

// What is timed.
enum class Mode {
  kLaunches,  // one after the other, without a wait
  kCalls,
  kCopies,
};

struct Case {
  std::string text;
  HeadConfig config;
  int64_t batch = 1;
  int64_t query_length = 1024;
  int64_t key_length = 0;  // 0: as query_length
};

[[noreturn]] void Refuse(const std::string& item) {
  std::fprintf(stderr, "cannot understand '%s'\n", item.c_str());
  std::exit(2);
}

Case ParseCase(const std::string& text) {
  Case c;
  c.text = text;
  c.config = {.data_type = DataType::kBFloat16,
              .head_dim_qk = 128,
              .query_head_count = 16};
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, end - begin);
    begin = end + 1;
    const size_t equals = item.find('=');
    if (equals == std::string::npos) Refuse(item);
    const std::string key = item.substr(0, equals);
    const std::string value = item.substr(equals + 1);
    const int32_t number = std::atoi(value.c_str());
    if (key == "b")
      c.batch = number;
    else if (key == "m")
      c.query_length = number;
    else if (key == "n")
      c.key_length = number;
    else if (key == "hq")
      c.config.query_head_count = number;
    else if (key == "hkv")
      c.config.kv_head_count = number;
    else if (key == "d")
      c.config.head_dim_qk = number;
    else if (key == "dv")
      c.config.head_dim_v = number;
    else if (item == "type=fp32")
      c.config.data_type = DataType::kFloat32;
    else if (item == "type=fp16")
      c.config.data_type = DataType::kFloat16;
    else if (item == "type=bf16")
      c.config.data_type = DataType::kBFloat16;
    else if (item == "precision=ieee")
      c.config.precision = Precision::kIeee;
    else if (item == "precision=tf32")
      c.config.precision = Precision::kTf32;
    else if (item == "mask=none")
      c.config.mask = MaskKind::kNone;
    else if (item == "mask=top_left")
      c.config.mask = MaskKind::kCausalTopLeft;
    else if (item == "mask=bottom_right")
      c.config.mask = MaskKind::kCausalBottomRight;
    else if (item == "algorithm=streaming")
      c.config.algorithm = Algorithm::kStreaming;
    else if (item == "algorithm=three_step")
      c.config.algorithm = Algorithm::kThreeStep;
    else
      Refuse(item);
  }
  if (c.key_length == 0) c.key_length = c.query_length;
  if (c.config.kv_head_count == 0)
    c.config.kv_head_count = c.config.query_head_count;
  if (c.config.head_dim_v == 0) c.config.head_dim_v = c.config.head_dim_qk;
  return c;
}

__device__ void Store(float* to, float value) { *to = value; }
__device__ void Store(__half* to, float value) { *to = __float2half(value); }
__device__ void Store(__nv_bfloat16* to, float value) {
  *to = __float2bfloat16(value);
}

// Sums of four uniform numbers, with the variance of a standard normal one.
template <typename T>
__global__ void FillRandom(T* data, int64_t count, uint64_t seed) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    uint64_t x =
        (static_cast<uint64_t>(i) + seed) * 0x9e3779b97f4a7c15u;  // splitmix64
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    float sum = 0;
    for (int k = 0; k < 4; ++k)
      sum += static_cast<float>(x >> (16 * k) & 0xffff);
    Store(data + i, (sum / 65536.0f - 2.0f) * 1.7320508f);
  }
}

void Fill(DataType type, void* data, int64_t count, uint64_t seed) {
  constexpr int kBlocks = 1024;
  constexpr int kThreads = 256;
  switch (type) {
    case DataType::kFloat32:
      FillRandom<<<kBlocks, kThreads>>>(static_cast<float*>(data), count, seed);
      break;
    case DataType::kFloat16:
      FillRandom<<<kBlocks, kThreads>>>(static_cast<__half*>(data), count,
                                        seed);
      break;
    case DataType::kBFloat16:
      FillRandom<<<kBlocks, kThreads>>>(static_cast<__nv_bfloat16*>(data),
                                        count, seed);
      break;
  }
  Check(cudaGetLastError(), "fill");
}

// One set of tensors, [batch, token, head, dim], with its scratch memory.
class TensorSet {
 public:
  TensorSet(const Case& c, uint64_t seed, bool with_host_memory)
      : config_(c.config) {
    const auto& h = c.config;
    const int64_t element = ElementBytes(h.data_type);
    const auto allocate = [&](int64_t tokens, int64_t heads, int64_t dims) {
      void* data = nullptr;
      const int64_t count = c.batch * tokens * heads * dims;
      Check(cudaMalloc(&data, count * element), "allocate");
      Fill(h.data_type, data, count, seed += 0x51ed270b);
      Memory memory = {data, nullptr, static_cast<size_t>(count * element)};
      if (with_host_memory) {
        Check(cudaMallocHost(&memory.host, memory.bytes), "allocate pinned");
        Check(
            cudaMemcpy(memory.host, data, memory.bytes, cudaMemcpyDeviceToHost),
            "copy");
      }
      memory_.push_back(memory);
      return static_cast<char*>(data);
    };
    char* query = allocate(c.query_length, h.query_head_count, h.head_dim_qk);
    char* key = allocate(c.key_length, h.kv_head_count, h.head_dim_qk);
    char* value = allocate(c.key_length, h.kv_head_count, h.head_dim_v);
    char* output = allocate(c.query_length, h.query_head_count, h.head_dim_v);
    const auto strides = [](int64_t heads, int64_t dims) {
      return TensorStrides{.token = heads * dims, .head = dims};
    };
    for (int64_t i = 0; i < c.batch; ++i) {
      Sequence s;
      s.query_strides = strides(h.query_head_count, h.head_dim_qk);
      s.key_strides = strides(h.kv_head_count, h.head_dim_qk);
      s.value_strides = strides(h.kv_head_count, h.head_dim_v);
      s.output_strides = strides(h.query_head_count, h.head_dim_v);
      s.query = query + i * c.query_length * s.query_strides.token * element;
      s.key = key + i * c.key_length * s.key_strides.token * element;
      s.value = value + i * c.key_length * s.value_strides.token * element;
      s.output = output + i * c.query_length * s.output_strides.token * element;
      s.query_length = c.query_length;
      s.key_length = c.key_length;
      s.scale = 1.0 / std::sqrt(h.head_dim_qk);
      sequences_.push_back(s);
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
  cuda::Scratch scratch_;
};

double Total(const Case& c, double (*of)(const HeadConfig&, const Sequence&)) {
  Sequence s;
  s.query_length = c.query_length;
  s.key_length = c.key_length;
  return static_cast<double>(c.batch) * of(c.config, s);
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

double MedianMilliseconds(const Case& c, Mode mode, double min_ms) {
  constexpr double kWorkingSetBytes = 400e6;  // several times any L2 cache
  constexpr int64_t kMaxSets = 64;
  constexpr size_t kMinRounds = 11;
  const double bytes = Total(c, AttentionBytes);
  const int64_t set_count = std::clamp<int64_t>(
      static_cast<int64_t>(std::ceil(kWorkingSetBytes / bytes)), 2, kMaxSets);
  std::vector<TensorSet*> sets;
  for (int64_t i = 0; i < set_count; ++i)
    sets.push_back(new TensorSet(c, 977 * i + 1, mode == Mode::kCopies));

  cudaStream_t stream;
  cudaEvent_t start, stop;
  Check(cudaStreamCreate(&stream), "stream");
  Check(cudaEventCreate(&start), "event");
  Check(cudaEventCreate(&stop), "event");
  std::vector<double> rounds;  // milliseconds per launch
  double total = 0;
  for (int64_t round = -1; rounds.size() < kMinRounds || total < min_ms;
       ++round) {
    if (mode != Mode::kLaunches) {
      for (double time : TimeCalls(sets, mode, stream)) {
        if (round < 0) continue;  // warm-up
        total += time;
        rounds.push_back(time);
      }
      continue;
    }
    Check(cudaEventRecord(start, stream), "record");
    for (const TensorSet* set : sets) set->Launch(stream);
    Check(cudaEventRecord(stop, stream), "record");
    Check(cudaEventSynchronize(stop), "synchronize");
    float elapsed = 0;
    Check(cudaEventElapsedTime(&elapsed, start, stop), "elapsed");
    if (round < 0) continue;  // warm-up
    total += elapsed;
    rounds.push_back(elapsed / static_cast<double>(set_count));
  }
  Check(cudaEventDestroy(start), "event");
  Check(cudaEventDestroy(stop), "event");
  Check(cudaStreamDestroy(stream), "stream");
  for (TensorSet* set : sets) delete set;
  std::nth_element(rounds.begin(), rounds.begin() + rounds.size() / 2,
                   rounds.end());
  return rounds[rounds.size() / 2];
}

int Main(int argc, char** argv) {
  std::FILE* json = nullptr;
  double min_ms = 200;
  Mode mode = Mode::kLaunches;
  std::vector<Case> cases;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.starts_with("--json=")) {
      json = std::fopen(argument.c_str() + 7, "w");
      if (json == nullptr) Refuse(argument);
    } else if (argument.starts_with("--min_ms=")) {
      min_ms = std::atof(argument.c_str() + 9);
    } else if (argument == "--calls") {
      mode = Mode::kCalls;
    } else if (argument == "--copies") {
      mode = Mode::kCopies;
    } else {
      cases.push_back(ParseCase(argument));
    }
  }
  if (cases.empty()) Refuse("no cases");

  cudaDeviceProp device;
  Check(cudaGetDeviceProperties(&device, 0), "device");
  std::printf("%s\n%-72s %10s %10s %10s\n", device.name, "case", "ms",
              "TFLOP/s", "GB/s");
  for (const Case& c : cases) {
    const double ms = MedianMilliseconds(c, mode, min_ms);
    const double tflops = Total(c, AttentionFlops) / ms * 1e-9;
    const double gbytes = Total(c, AttentionBytes) / ms * 1e-6;
    std::printf("%-72s %10.4f %10.1f %10.1f\n", c.text.c_str(), ms, tflops,
                gbytes);
    std::fflush(stdout);
    if (json != nullptr) {
      std::fprintf(json,
                   "{\"case\": \"%s\", \"ms\": %.6f, \"tflops\": %.3f, "
                   "\"gbytes_per_second\": %.3f}\n",
                   c.text.c_str(), ms, tflops, gbytes);
    }
  }
  if (json != nullptr) std::fclose(json);
  return 0;
}

}  // namespace
}  // namespace attention

int main(int argc, char** argv) { return attention::Main(argc, argv); }
