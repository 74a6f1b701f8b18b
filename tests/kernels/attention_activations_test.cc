// Queries, keys and values of a real language model, with outputs that NumPy
// computed in float64. A sample is part of the repository (tests/data); whole
// layers are used where they lie beside the checkout, in ../shared/activations.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/support/activations.h"
#include "tests/support/comparison.h"
#include "tests/support/kernel_backend.h"

namespace attention::test {
namespace {

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
};

TEST_P(AttentionActivationsTest, Sample) { CheckFile(kActivationsSample); }

TEST_P(AttentionActivationsTest, WholeLayers) {
  const std::filesystem::path folder = "../shared/activations";
  if (!std::filesystem::exists(folder)) {
    GTEST_SKIP() << "no whole layers: " << folder << " does not exist";
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") CheckFile(entry.path());
  }
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
