// What the GPU benchmarks share: random data, timing, cases.
#ifndef ATTENTION_KERNELS_BENCH_GPU_SUPPORT_CUH_
#define ATTENTION_KERNELS_BENCH_GPU_SUPPORT_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/attention_params.h"
#include "kernels/float_convert.h"

namespace attention::bench {

inline void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

[[noreturn]] inline void Refuse(const std::string& item) {
  std::fprintf(stderr, "cannot understand '%s'\n", item.c_str());
  std::exit(2);
}

// A part of a case, "key=value".
struct Item {
  std::string key;
  std::string value;
};

inline std::vector<Item> ParseItems(const std::string& text) {
  std::vector<Item> items;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, end - begin);
    begin = end + 1;
    const size_t equals = item.find('=');
    if (equals == std::string::npos) Refuse(item);
    items.push_back({item.substr(0, equals), item.substr(equals + 1)});
  }
  return items;
}

inline DataType ParseType(const std::string& text) {
  if (text == "fp32") return DataType::kFloat32;
  if (text == "fp16") return DataType::kFloat16;
  if (text == "bf16") return DataType::kBFloat16;
  if (text == "fp8") return DataType::kFloat8E4M3;
  Refuse(text);
}

// Takes an item that is about heads: hq, hkv, d, dv, type. Whether it is one.
inline bool ParseHeads(const Item& item, HeadConfig& heads) {
  const int32_t number = std::atoi(item.value.c_str());
  if (item.key == "hq")
    heads.query_head_count = number;
  else if (item.key == "hkv")
    heads.kv_head_count = number;
  else if (item.key == "d")
    heads.head_dim_qk = number;
  else if (item.key == "dv")
    heads.head_dim_v = number;
  else if (item.key == "type")
    heads.data_type = ParseType(item.value);
  else
    return false;
  return true;
}

// What a case left open is as it is for the query.
inline void CompleteHeads(HeadConfig& heads) {
  if (heads.kv_head_count == 0) heads.kv_head_count = heads.query_head_count;
  if (heads.head_dim_v == 0) heads.head_dim_v = heads.head_dim_qk;
}

// Of fp8 elements: the largest number drawn makes use of their range.
inline constexpr float kFloat8Scale = 0x1p-7f;

inline __device__ void Store(float* to, float value) { *to = value; }
inline __device__ void Store(__half* to, float value) {
  *to = __float2half(value);
}
inline __device__ void Store(__nv_bfloat16* to, float value) {
  *to = __float2bfloat16(value);
}
inline __device__ void Store(__nv_fp8_e4m3* to, float value) {
  *to = __nv_fp8_e4m3(value / kFloat8Scale);
}

// Sums of four uniform numbers, with the variance of a standard normal one.
template <typename T>
__global__ void FillKernel(T* data, int64_t count, uint64_t seed) {
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

inline void FillRandom(DataType type, void* data, int64_t count,
                       uint64_t seed) {
  constexpr int kBlocks = 1024;
  constexpr int kThreads = 256;
  switch (type) {
    case DataType::kFloat32:
      FillKernel<<<kBlocks, kThreads>>>(static_cast<float*>(data), count, seed);
      break;
    case DataType::kFloat16:
      FillKernel<<<kBlocks, kThreads>>>(static_cast<__half*>(data), count,
                                        seed);
      break;
    case DataType::kBFloat16:
      FillKernel<<<kBlocks, kThreads>>>(static_cast<__nv_bfloat16*>(data),
                                        count, seed);
      break;
    case DataType::kFloat8E4M3:
      FillKernel<<<kBlocks, kThreads>>>(static_cast<__nv_fp8_e4m3*>(data),
                                        count, seed);
      break;
  }
  Check(cudaGetLastError(), "fill");
}

inline constexpr size_t kMinRounds = 11;

inline double Median(std::vector<double> values) {
  const auto middle = values.begin() + values.size() / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The median time of `round`, which enqueues on the stream it is given, over at
// least kMinRounds rounds and `min_ms`, after one that warms up.
template <typename Round>
double MedianRoundMilliseconds(double min_ms, Round round) {
  cudaStream_t stream;
  cudaEvent_t start, stop;
  Check(cudaStreamCreate(&stream), "stream");
  Check(cudaEventCreate(&start), "event");
  Check(cudaEventCreate(&stop), "event");
  std::vector<double> times;
  double total = 0;
  for (bool warm = false; times.size() < kMinRounds || total < min_ms;
       warm = true) {
    Check(cudaEventRecord(start, stream), "record");
    round(stream);
    Check(cudaEventRecord(stop, stream), "record");
    Check(cudaEventSynchronize(stop), "synchronize");
    float elapsed = 0;
    Check(cudaEventElapsedTime(&elapsed, start, stop), "elapsed");
    if (!warm) continue;
    total += elapsed;
    times.push_back(elapsed);
  }
  Check(cudaEventDestroy(start), "event");
  Check(cudaEventDestroy(stop), "event");
  Check(cudaStreamDestroy(stream), "stream");
  return Median(times);
}

inline double ElementAt(DataType type, const std::vector<char>& bytes,
                        size_t index) {
  uint16_t bits = 0;
  float value = 0;
  switch (type) {
    case DataType::kFloat32:
      std::memcpy(&value, &bytes[index * 4], 4);
      return value;
    case DataType::kFloat16:
      std::memcpy(&bits, &bytes[index * 2], 2);
      return __half2float(__ushort_as_half(bits));
    case DataType::kBFloat16:
      std::memcpy(&bits, &bytes[index * 2], 2);
      return __bfloat162float(__ushort_as_bfloat16(bits));
    case DataType::kFloat8E4M3:
      return Float8E4M3ToFloat(static_cast<uint8_t>(bytes[index]));
  }
  return value;
}

// The largest difference, relative to the largest magnitude expected.
inline double RelativeError(DataType type, const std::vector<char>& got,
                            const std::vector<char>& expected) {
  double difference = 0;
  double largest = 0;
  for (size_t i = 0; i < got.size() / ElementBytes(type); ++i) {
    const double e = ElementAt(type, expected, i);
    const double d = std::fabs(ElementAt(type, got, i) - e);
    if (!(d <= difference)) difference = d;  // NaN too
    largest = std::max(largest, std::fabs(e));
  }
  return difference / largest;
}

}  // namespace attention::bench

#endif  // ATTENTION_KERNELS_BENCH_GPU_SUPPORT_CUH_
