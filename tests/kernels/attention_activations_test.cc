// Queries, keys and values of a real language model, with outputs that NumPy
// computed in float64. A sample is part of the repository (tests/data); whole
// layers are used where they lie beside the checkout, in ../shared/activations.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "kernels/float_convert.h"
#include "tests/support/activations.h"
#include "tests/support/comparison.h"
#include "tests/support/kernel_backend.h"

namespace attention::test {
namespace {

// The root of the mean square of the output's error, relative to that of the
// output as it should be.
double OutputError(const Activations& a, const std::vector<double>& want) {
  const HeadConfig& c = a.config;
  const TensorStrides& strides = a.sequence.output_strides;
  double errors = 0;
  double squares = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(want.size()); ++i) {
    const int64_t row = i / c.head_dim_v;
    const double got = LoadAsFloat(
        OutputType(c.data_type), a.sequence.output,
        row / c.query_head_count * strides.token +
            row % c.query_head_count * strides.head + i % c.head_dim_v);
    errors += (got - want[i]) * (got - want[i]);
    squares += want[i] * want[i];
  }
  return std::sqrt(errors / squares);
}

class AttentionActivationsTest : public KernelTest {
 protected:
  void CheckFile(const std::string& path) {
    auto activations = LoadActivations(path);
    ASSERT_TRUE(activations.ok()) << activations.status();
    Activations& a = **activations;
    const Tolerance tolerance = ContractTolerance(a.config, a.sequence, a.want);
    for (Algorithm algorithm : {Algorithm::kStreaming, Algorithm::kThreeStep}) {
      a.config.algorithm = algorithm;
      const absl::Status status =
          backend().Compute({a.config, &a.sequence, 1}, a.buffers);
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_TRUE(Matches(a.config, a.sequence, a.want, tolerance)) << path;
    }
  }

  // Also tells how far fp8 is from what the original elements give, most of
  // which is the rounding of the inputs.
  void CheckAsFloat8(const std::string& path) {
    auto activations = LoadActivations(path);
    ASSERT_TRUE(activations.ok()) << activations.status();
    const auto a = ToFloat8(**activations);
    const absl::Status status =
        backend().Compute({a->config, &a->sequence, 1}, a->buffers);
    ASSERT_TRUE(status.ok()) << status;
    const auto dense = reference::MakeDense(a->config, a->sequence);
    const auto want = reference::ComputeAttention(a->config, dense, true);
    EXPECT_TRUE(
        Matches(a->config, a->sequence, want,
                ContractTolerance(a->config, dense, want, float8_weights())))
        << path;
    std::cout << std::filesystem::path(path).filename()
              << ": relative error (RMS) of fp8 "
              << OutputError(*a, want.output) << ", against the original "
              << OutputError(*a, a->want.output) << "\n";
  }

  template <typename Check>
  void ForEachLayer(Check check) {
    const std::filesystem::path folder = "../shared/activations";
    if (!std::filesystem::exists(folder)) {
      GTEST_SKIP() << "no whole layers: " << folder << " does not exist";
    }
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() == ".safetensors") check(entry.path());
    }
  }
};

TEST_P(AttentionActivationsTest, Sample) { CheckFile(kActivationsSample); }

TEST_P(AttentionActivationsTest, SampleAsFloat8) {
  CheckAsFloat8(kActivationsSample);
}

TEST_P(AttentionActivationsTest, WholeLayers) {
  ForEachLayer([this](const std::string& path) { CheckFile(path); });
}

TEST_P(AttentionActivationsTest, WholeLayersAsFloat8) {
  ForEachLayer([this](const std::string& path) { CheckAsFloat8(path); });
}

INSTANTIATE_FOR_BACKENDS(AttentionActivationsTest);

// Two independent float64 computations, of which one was rounded to fp32.
TEST(ReferenceActivationsTest, AgreesWithNumPy) {
  auto activations = LoadActivations(kActivationsSample);
  ASSERT_TRUE(activations.ok()) << activations.status();
  const Activations& a = **activations;
  const auto got = reference::ComputeAttention(a.config, a.sequence);
  EXPECT_THAT(got.output,
              testing::Pointwise(testing::DoubleNear(1e-6), a.want.output));
  EXPECT_THAT(got.log_sum_exp, testing::Pointwise(testing::DoubleNear(1e-6),
                                                  a.want.log_sum_exp));
}

}  // namespace
}  // namespace attention::test
