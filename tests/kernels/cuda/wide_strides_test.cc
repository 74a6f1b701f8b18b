// Tokens that lie so far apart that offsets need more than 32 bits give the bits
// of tokens that do not.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "kernels/cuda/attention_cuda.h"
#include "kernels/float_convert.h"

namespace attention {
namespace {

constexpr int64_t kTokens = 300;
constexpr int32_t kDim = 128;
constexpr int64_t kElementBytes = 2;
constexpr int64_t kTensors = 4;  // query, key, value, output: side by side

struct DeviceFree {
  void operator()(void* p) const { cudaFree(p); }
};
using DevicePointer = std::unique_ptr<char, DeviceFree>;

DevicePointer Allocate(int64_t bytes) {
  void* data = nullptr;
  if (cudaMalloc(&data, bytes) != cudaSuccess) {
    cudaGetLastError();
    data = nullptr;
  }
  return DevicePointer(static_cast<char*>(data));
}

// Computes with tokens `stride` elements apart; empty if memory is short.
std::vector<uint16_t> Compute(const std::vector<uint16_t>& inputs,
                              int64_t stride, Algorithm algorithm) {
  const int64_t pitch = stride * kElementBytes;
  const int64_t row_bytes = kTensors * kDim * kElementBytes;
  const DevicePointer data = Allocate(kTokens * pitch);
  if (data == nullptr) return {};
  EXPECT_EQ(cudaMemcpy2D(data.get(), pitch, inputs.data(), row_bytes, row_bytes,
                         kTokens, cudaMemcpyHostToDevice),
            cudaSuccess);

  Sequence s;
  s.query = data.get();
  s.key = data.get() + kDim * kElementBytes;
  s.value = data.get() + 2 * kDim * kElementBytes;
  s.output = data.get() + 3 * kDim * kElementBytes;
  s.query_strides = s.key_strides = s.value_strides =
      s.output_strides = {.token = stride};
  s.query_length = s.key_length = kTokens;
  s.scale = 0.1;
  const AttentionParams params{.config = {.data_type = DataType::kBFloat16,
                                          .head_dim_qk = kDim,
                                          .head_dim_v = kDim,
                                          .query_head_count = 1,
                                          .kv_head_count = 1,
                                          .algorithm = algorithm},
                               .sequences = &s,
                               .sequence_count = 1};
  const cuda::ScratchBytes size = cuda::ScratchSize(params);
  cuda::Scratch scratch;
  EXPECT_EQ(cudaMallocHost(&scratch.host, size.host_bytes), cudaSuccess);
  const DevicePointer device_scratch = Allocate(size.device_bytes);
  scratch.device = device_scratch.get();
  EXPECT_EQ(cuda::Launch(params, scratch, nullptr), cudaSuccess);
  std::vector<uint16_t> output(kTokens * kDim);
  EXPECT_EQ(cudaMemcpy2D(output.data(), kDim * kElementBytes, s.output, pitch,
                         kDim * kElementBytes, kTokens, cudaMemcpyDeviceToHost),
            cudaSuccess);
  cudaFreeHost(scratch.host);
  return output;
}

TEST(WideStridesTest, OffsetsBeyond32Bits) {
  int device_count = 0;
  if (cudaGetDeviceCount(&device_count) != cudaSuccess || device_count == 0) {
    GTEST_SKIP() << "no CUDA device";
  }
  std::vector<uint16_t> inputs(kTokens * kTensors * kDim);
  std::mt19937 random(std::random_device{}());
  std::normal_distribution<float> normal;
  for (uint16_t& bits : inputs) bits = FloatToBFloat16(normal(random));

  constexpr int64_t kWide = int64_t{1} << 24;  // 5 * 10^9 elements in all
  for (Algorithm algorithm : {Algorithm::kStreaming, Algorithm::kThreeStep}) {
    const auto got = Compute(inputs, kWide, algorithm);
    if (got.empty()) GTEST_SKIP() << "needs 10 GB of device memory";
    EXPECT_EQ(got, Compute(inputs, kTensors * kDim, algorithm));
  }
}

}  // namespace
}  // namespace attention
