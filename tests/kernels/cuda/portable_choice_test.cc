// Every portable kernel against the reference, also those that the device at
// hand would not choose: plain multiply-adds, and the tiles of devices with
// little shared memory.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/kernel_choice.h"
#include "kernels/cuda/portable/streaming.h"
#include "tests/support/attention_problem.h"
#include "tests/support/comparison.h"
#include "tests/support/kernel_backend.h"

namespace attention::test {
namespace {

using cuda::DeviceLimits;

constexpr int kTuring = 75;
constexpr int kTuringShared = 64 << 10;
constexpr int kAdaShared = 99 << 10;

// Lets the device read and write host memory in place, so that a problem needs
// no copies.
class MappedBuffers {
 public:
  explicit MappedBuffers(std::span<Buffer> buffers) : buffers_(buffers) {
    for (Buffer& b : buffers_) {
      if (b.bytes.empty()) continue;
      EXPECT_EQ(cudaHostRegister(b.bytes.data(), b.bytes.size(),
                                 cudaHostRegisterDefault),
                cudaSuccess);
    }
  }
  ~MappedBuffers() {
    for (Buffer& b : buffers_) {
      if (!b.bytes.empty()) cudaHostUnregister(b.bytes.data());
    }
  }

 private:
  std::span<Buffer> buffers_;
};

class PortableChoiceTest : public testing::TestWithParam<DeviceLimits> {
 protected:
  void SetUp() override {
    int device_count = 0;
    if (cudaGetDeviceCount(&device_count) != cudaSuccess || device_count == 0) {
      GTEST_SKIP() << "no CUDA device";
    }
  }

  void Compute(AttentionProblem& problem) {
    const MappedBuffers mapped(problem.buffers());
    const AttentionParams params = problem.params();
    const auto size = cuda::portable::ScratchSize(params);
    cuda::Scratch scratch;
    ASSERT_EQ(cudaMallocHost(&scratch.host, size.host_bytes), cudaSuccess);
    ASSERT_EQ(cudaMalloc(&scratch.device, size.device_bytes), cudaSuccess);
    EXPECT_EQ(cuda::portable::Launch(params, scratch, nullptr, GetParam()),
              cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    cudaFree(scratch.device);
    cudaFreeHost(scratch.host);
  }
};

TEST_P(PortableChoiceTest, MatchesTheReference) {
  constexpr DataType kTypes[] = {DataType::kFloat32, DataType::kFloat16,
                                 DataType::kBFloat16, DataType::kFloat8E4M3};
  constexpr MaskKind kMasks[] = {MaskKind::kNone, MaskKind::kCausalTopLeft,
                                 MaskKind::kCausalBottomRight};
  uint64_t seed = RunSeed();
  for (DataType type : kTypes) {
    for (int32_t dim : {9, 64, 96, 100, 128, 160, 256}) {
      for (MaskKind mask : kMasks) {
        for (Layout layout : {Layout::kTokenMajor, Layout::kStridedDim}) {
          AttentionProblem problem(
              {.config = {.data_type = type,
                          .head_dim_qk = dim,
                          .head_dim_v = dim,
                          .query_head_count = 4,
                          .kv_head_count = 2,
                          .mask = mask,
                          .precision = static_cast<Precision>(seed % 2)},
               .sequences =
                   {{70, 150}, {130, 65}, {3, 0}, {1, 90, -0.3, 40, 2}},
               .layout = layout,
               .seed = ++seed});
          ASSERT_NO_FATAL_FAILURE(Compute(problem));
          EXPECT_TRUE(problem.OnlyOutputsWritten()) << ToString(problem.spec());
          EXPECT_TRUE(MatchesReference(problem, Float8Weights::kBFloat16))
              << ToString(problem.spec());
        }
      }
    }
  }
}

TEST_P(PortableChoiceTest, NonFiniteValuesStayInTheRowsThatSeeThem) {
  for (DataType type : {DataType::kFloat32, DataType::kFloat16,
                        DataType::kBFloat16, DataType::kFloat8E4M3}) {
    for (int32_t dim : {40, 128, 200}) {
      AttentionProblem problem({.config = {.data_type = type,
                                           .head_dim_qk = dim,
                                           .head_dim_v = dim,
                                           .query_head_count = 1,
                                           .kv_head_count = 1,
                                           .mask = MaskKind::kCausalTopLeft},
                                .sequences = {{150, 150}},
                                .seed = RunSeed()});
      problem.Set(TensorRole::kValue, 0, 37, 0, 5, NAN);
      problem.Set(TensorRole::kValue, 0, 90, 0, 7, INFINITY);
      problem.Set(TensorRole::kKey, 0, 120, 0, 3, NAN);
      ASSERT_NO_FATAL_FAILURE(Compute(problem));
      EXPECT_TRUE(MatchesReference(problem, Float8Weights::kBFloat16))
          << ToString(problem.spec());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, PortableChoiceTest,
    testing::Values(DeviceLimits{}, DeviceLimits{.shared_bytes = kAdaShared},
                    DeviceLimits{.shared_bytes = kTuringShared},
                    DeviceLimits{.architecture = kTuring},
                    DeviceLimits{kTuring, kTuringShared}));

}  // namespace
}  // namespace attention::test
