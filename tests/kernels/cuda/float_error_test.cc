// How wrong fp32 results are, beside those of plain multiply-adds: the contract
// lets PRECISION_IEEE run on tensor cores where errors stay within twice
// theirs.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

#include "kernels/reference/reference_attention.h"
#include "tests/kernels/cuda/prefill_fixture.h"

namespace attention::test {
namespace {

class FloatErrorTest : public PrefillTest {
 protected:
  ProblemSpec Spec(int32_t dim, int64_t queries, int64_t keys,
                   MaskKind mask = MaskKind::kNone) {
    return {.config = Heads(DataType::kFloat32, {dim, dim}, 1, 1, mask),
            .sequences = {{queries, keys}},
            .seed = random()()};
  }

  // The root mean square of the errors of the output.
  static double Error(AttentionProblem& problem,
                      const reference::SequenceResult& want,
                      const Implementation& implementation) {
    problem.ResetOutputs();
    DeviceProblem device(problem);
    device.Launch(implementation);
    device.CopyOut();
    const int32_t dims = problem.spec().config.head_dim_v;
    double sum = 0;
    for (int64_t i = 0; i < problem.sequence(0).query_length; ++i) {
      for (int32_t d = 0; d < dims; ++d) {
        const double error = problem.Get(TensorRole::kOutput, 0, i, 0, d) -
                             want.output[i * dims + d];
        sum += error * error;
      }
    }
    return std::sqrt(sum / static_cast<double>(want.output.size()));
  }

  static void CheckError(AttentionProblem& problem) {
    const auto want =
        reference::ComputeAttention(problem.spec().config, problem.sequence(0));
    const double plain = Error(problem, want, kPortable);
    EXPECT_GT(plain, 0);
    EXPECT_LE(Error(problem, want, kPrefill), 2 * plain)
        << ToString(problem.spec());
  }
};

TEST_P(FloatErrorTest, NormalTensors) {
  for (int32_t dim : {64, 100, 128}) {
    for (MaskKind mask : {MaskKind::kNone, MaskKind::kCausalBottomRight}) {
      AttentionProblem problem(Spec(dim, 70, 4096, mask));
      CheckError(problem);
    }
  }
}

TEST_P(FloatErrorTest, ManyKeys) {
  AttentionProblem problem(Spec(128, 20, 65536));
  CheckError(problem);
}

// Sums that only grow show whether they are truncated.
TEST_P(FloatErrorTest, ValuesOfOneSign) {
  AttentionProblem problem(Spec(128, 70, 4096));
  for (int64_t j = 0; j < 4096; ++j) {
    for (int32_t d = 0; d < 128; ++d) {
      const float value = problem.Get(TensorRole::kValue, 0, j, 0, d);
      problem.Set(TensorRole::kValue, 0, j, 0, d, 1 + std::abs(value));
    }
  }
  CheckError(problem);
}

// A few keys have most of the weight.
TEST_P(FloatErrorTest, LargeScores) {
  ProblemSpec spec = Spec(128, 70, 4096);
  spec.sequences[0].scale = 1;
  AttentionProblem problem(spec);
  CheckError(problem);
}

INSTANTIATE_FOR_CUDA(FloatErrorTest);

}  // namespace
}  // namespace attention::test
