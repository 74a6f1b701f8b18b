// Offsets beyond 2^31 elements, in tensors that live on the device only, and
// scores that need several turns. Skipped where a GPU or its memory is missing.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "kernels/cuda/attention_cuda.h"
#include "kernels/cuda/three_step/three_step.h"
#include "kernels/float_convert.h"
#include "tests/support/comparison.h"
#include "tests/support/kernel_backend.h"

namespace attention::test {
namespace {

constexpr int64_t kElementBytes = 2;  // bf16

struct DeviceFree {
  void operator()(void* pointer) const { cudaFree(pointer); }
};
using DevicePointer = std::unique_ptr<void, DeviceFree>;
struct HostFree {
  void operator()(void* pointer) const { cudaFreeHost(pointer); }
};
using HostPointer = std::unique_ptr<void, HostFree>;

#define ASSERT_CUDA(call) ASSERT_EQ(cudaSuccess, (call)) << #call

// A [tokens, heads * dim] bf16 tensor whose rows lie `stride` elements apart.
// All is NaN but the rows, which are zero until written.
class DeviceTensor {
 public:
  void Allocate(int64_t tokens, int64_t width, int64_t stride) {
    stride_ = stride;
    width_ = width;
    void* memory = nullptr;
    const size_t bytes = tokens * stride * kElementBytes;
    ASSERT_CUDA(cudaMalloc(&memory, bytes));
    memory_.reset(memory);
    ASSERT_CUDA(cudaMemset(memory, 0xff, bytes));
    ASSERT_CUDA(cudaMemset2D(memory, stride * kElementBytes, 0,
                             width * kElementBytes, tokens));
  }

  void WriteRow(int64_t token, const std::vector<uint16_t>& row) {
    ASSERT_CUDA(cudaMemcpy(Row(token), row.data(), width_ * kElementBytes,
                           cudaMemcpyHostToDevice));
  }

  std::vector<uint16_t> ReadRow(int64_t token) const {
    std::vector<uint16_t> row(width_);
    EXPECT_EQ(cudaSuccess,
              cudaMemcpy(row.data(), Row(token), width_ * kElementBytes,
                         cudaMemcpyDeviceToHost));
    return row;
  }

  void* data() const { return memory_.get(); }

 private:
  char* Row(int64_t token) const {
    return static_cast<char*>(memory_.get()) + token * stride_ * kElementBytes;
  }

  DevicePointer memory_;
  int64_t stride_ = 0;
  int64_t width_ = 0;
};

struct LargeCase {
  const char* name;
  int64_t query_length, key_length;
  int32_t query_heads, kv_heads, dim;
  int64_t query_stride, key_stride;  // elements between tokens
};

constexpr LargeCase kCases[] = {
    // More than 2^31 elements of query and output, head dimension 72.
    {"ManyQueries", 1'880'000, 40, 16, 4, 72, 16 * 72, 4 * 72},
    // The same of key and value.
    {"ManyKeys", 3, 2'110'000, 8, 8, 128, 8 * 128, 8 * 128},
    // A narrow view into a wide buffer: row 225304 * 9728 > 2^31.
    {"WideRows", 225'305, 40, 1, 1, 64, 9728, 9728},
};

class LargeTensorsTest
    : public testing::TestWithParam<std::tuple<LargeCase, Algorithm>> {
 protected:
  void SetUp() override {
    if (auto backend = MakeCudaBackend(); !backend.ok()) {
      GTEST_SKIP() << backend.status().message();
    }
    constexpr size_t kNeeded = size_t{14} << 30;
    size_t free = 0;
    size_t total = 0;
    ASSERT_CUDA(cudaMemGetInfo(&free, &total));
    if (free < kNeeded) {
      GTEST_SKIP() << "needs " << kNeeded << " bytes of device memory; " << free
                   << " are free";
    }
  }

  std::vector<uint16_t> RandomRow(int64_t width) {
    std::normal_distribution<float> normal;
    std::vector<uint16_t> row(width);
    for (uint16_t& element : row) element = FloatToBFloat16(normal(random_));
    return row;
  }

  std::mt19937_64 random_{RunSeed()};
};

// All keys and values are zero but the last few, so that the answer of a row
// follows from those: the others have score 0 and add to the denominator only.
TEST_P(LargeTensorsTest, LastAndFirstRowsAreRight) {
  SCOPED_TRACE(testing::Message()
               << "repeat with --gtest_random_seed=" << RunSeed());
  const auto& [c, algorithm] = GetParam();
  constexpr int64_t kRows = 3;
  const double scale = 15 / std::sqrt(c.dim);  // some scores are large
  const int64_t query_width = int64_t{c.query_heads} * c.dim;
  const int64_t key_width = int64_t{c.kv_heads} * c.dim;

  DeviceTensor query, key, value, output;
  ASSERT_NO_FATAL_FAILURE(
      query.Allocate(c.query_length, query_width, c.query_stride));
  ASSERT_NO_FATAL_FAILURE(key.Allocate(c.key_length, key_width, c.key_stride));
  ASSERT_NO_FATAL_FAILURE(
      value.Allocate(c.key_length, key_width, c.key_stride));
  ASSERT_NO_FATAL_FAILURE(
      output.Allocate(c.query_length, query_width, c.query_stride));
  std::vector<std::vector<uint16_t>> queries, keys, values;
  for (int64_t i = 0; i < kRows; ++i) {
    queries.push_back(RandomRow(query_width));
    keys.push_back(RandomRow(key_width));
    values.push_back(RandomRow(key_width));
    ASSERT_NO_FATAL_FAILURE(
        query.WriteRow(c.query_length - kRows + i, queries.back()));
    ASSERT_NO_FATAL_FAILURE(
        key.WriteRow(c.key_length - kRows + i, keys.back()));
    ASSERT_NO_FATAL_FAILURE(
        value.WriteRow(c.key_length - kRows + i, values.back()));
  }

  Sequence s;
  s.query = query.data();
  s.key = key.data();
  s.value = value.data();
  s.output = output.data();
  s.query_strides = s.output_strides = {c.query_stride, c.dim, 1};
  s.key_strides = s.value_strides = {c.key_stride, c.dim, 1};
  s.query_length = c.query_length;
  s.key_length = c.key_length;
  s.scale = scale;
  const AttentionParams params{{.data_type = DataType::kBFloat16,
                                .head_dim_qk = c.dim,
                                .head_dim_v = c.dim,
                                .query_head_count = c.query_heads,
                                .kv_head_count = c.kv_heads,
                                .algorithm = algorithm},
                               &s,
                               1};
  const cuda::ScratchBytes size = cuda::ScratchSize(params);
  void* host = nullptr;
  ASSERT_CUDA(cudaMallocHost(&host, size.host_bytes));
  const HostPointer host_owner(host);
  void* device = nullptr;
  ASSERT_CUDA(cudaMalloc(&device, size.device_bytes));
  const DevicePointer device_owner(device);
  ASSERT_CUDA(cuda::Launch(params, {host, device}, nullptr));
  ASSERT_CUDA(cudaDeviceSynchronize());

  const auto product = [&](const uint16_t* a, const uint16_t* b) {
    double sum = 0;
    for (int32_t d = 0; d < c.dim; ++d) {
      sum += double{BFloat16ToFloat(a[d])} * BFloat16ToFloat(b[d]);
    }
    return sum;
  };
  const auto zeros = static_cast<double>(c.key_length - kRows);
  const int32_t group = c.query_heads / c.kv_heads;
  // Rows before the last kRows have a query of zero: every score is 0.
  for (int64_t token : {int64_t{0}, c.query_length - kRows, c.query_length - 2,
                        c.query_length - 1}) {
    const int64_t i = token - (c.query_length - kRows);
    const std::vector<uint16_t> got = output.ReadRow(token);
    for (int32_t head = 0; head < c.query_heads; ++head) {
      const int32_t kv = head / group * c.dim;
      double weights[kRows];
      double sum = zeros;
      for (int64_t j = 0; j < kRows; ++j) {
        weights[j] = i < 0 ? 1
                           : std::exp(scale * product(&queries[i][head * c.dim],
                                                      &keys[j][kv]));
        sum += weights[j];
      }
      for (int32_t d = 0; d < c.dim; ++d) {
        double want = 0;
        for (int64_t j = 0; j < kRows; ++j) {
          want += weights[j] / sum * BFloat16ToFloat(values[j][kv + d]);
        }
        ASSERT_NEAR(BFloat16ToFloat(got[head * c.dim + d]), want,
                    1e-2 + 1.6e-2 * std::abs(want))
            << "token " << token << " head " << head << " dim " << d;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, LargeTensorsTest,
    testing::Combine(testing::ValuesIn(kCases),
                     testing::Values(Algorithm::kStreaming,
                                     Algorithm::kThreeStep)),
    [](const auto& info) {
      return std::string(std::get<0>(info.param).name) +
             (std::get<1>(info.param) == Algorithm::kStreaming ? "Streaming"
                                                               : "ThreeStep");
    });

// 4 heads of 256 MiB of scores, and one whose rows alone exceed the budget.
TEST(ThreeStepTurnsTest, ScoresBeyondTheBudgetAreComputedInTurns) {
  auto backend = MakeCudaBackend();
  if (!backend.ok()) GTEST_SKIP() << backend.status().message();
  constexpr int64_t kRows = 20;
  AttentionProblem problem(
      {.config = {.data_type = DataType::kBFloat16,
                  .head_dim_qk = 16,
                  .head_dim_v = 8,
                  .query_head_count = 4,
                  .kv_head_count = 2,
                  .algorithm = Algorithm::kThreeStep},
       .sequences = {{100, 50}, {8192, 8192}, {12000, 12000}},
       .seed = RunSeed()});
  const HeadConfig& config = problem.spec().config;
  ASSERT_LE(cuda::ScratchSize(problem.params()).device_bytes,
            cuda::three_step::kScoresBudgetBytes + (1 << 20));
  ASSERT_TRUE((*backend)->Compute(problem.params(), problem.buffers()).ok());
  EXPECT_TRUE(problem.OnlyOutputsWritten());
  // Without a mask, some rows are a problem of their own.
  for (int64_t i = 0; i < 3; ++i) {
    const Sequence& s = problem.sequence(i);
    for (int64_t first : {int64_t{0}, s.query_length - kRows}) {
      Sequence rows = s;
      rows.query_length = kRows;
      rows.query =
          static_cast<const uint16_t*>(s.query) + first * s.query_strides.token;
      rows.output =
          static_cast<uint16_t*>(s.output) + first * s.output_strides.token;
      rows.log_sum_exp += first * s.log_sum_exp_token_stride;
      EXPECT_TRUE(MatchesReference(config, rows))
          << "sequence " << i << " from row " << first
          << "; repeat with --gtest_random_seed=" << RunSeed();
    }
  }
}

}  // namespace
}  // namespace attention::test
