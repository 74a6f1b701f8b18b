// Compares what a kernel wrote with the float64 reference.
#ifndef ATTENTION_TESTS_SUPPORT_COMPARISON_H_
#define ATTENTION_TESTS_SUPPORT_COMPARISON_H_

#include <gtest/gtest.h>

#include <vector>

#include "kernels/attention_params.h"
#include "kernels/reference/reference_attention.h"
#include "tests/support/attention_problem.h"

namespace attention::test {

// What the weights of fp8 attention are rounded to, at worst.
enum class Float8Weights { kFloat8, kBFloat16 };

// Largest permitted |got - want| of each result.
struct Tolerance {
  double output;
  double log_sum_exp_relative;  // of max(1, |want|)
  double weights_relative;      // of |want|
  double weights_absolute;
  // Of each score, fp32 and fp8 only: [query_head_count, M, N], as the weights.
  std::vector<double> scores = {};
  // What each output may be off by beyond `output`, fp8 only: [M,
  // query_head_count, head_dim_v].
  std::vector<double> outputs = {};
};

// The numerical contract, for one sequence:
//
//   fp32 IEEE   1e-5 of the output's magnitude
//   fp32 TF32   2e-3 of it
//   fp16, bf16  2 * (error of a plain 16-bit computation)
//               + 2 * max|(want + 0.3 - 0.3) - want| in the 16-bit type
//               (FlashAttention-3's test), but at most 1e-3 absolute plus
//               2e-3 (fp16) or 1.6e-2 (bf16) of the magnitude; and always
//               two roundings of the magnitude, without which the luck of the
//               16-bit computation would decide on tensors of a few elements
//   fp8         what the rounding of weights does to each output, and one
//               rounding of it to bf16
//   LSE         1e-5 fp32, 2e-4 16-bit and fp8, 2e-3 TF32, of max(1, |LSE|)
//
// Inputs of fp8 are exact, but a tensor core multiplies values by weights of
// the same type: 2^7 times a weight relative to the largest, rounded to e4m3,
// is off by 2^-4 of itself, or by half a step between subnormals, 2^-17 of the
// largest, but not by more than itself. Of an output sum w v, which is not
// normalised anew, that makes at most the sum of the errors |e v|, and beyond
// what is likely (six times the standard deviation) 2.5 sqrt(sum (e v)^2).
// Where a backend promises more, weights are rounded to bf16: e is 2^-8 w.
//
// In fp32 and fp8 results may also be off by what the errors of scores do to
// them, by the derivatives of the softmax: the log-sum-exp by their mean under
// the row's weights; a weight, relatively, by that and the error of its own
// score; an output by the standard deviation of sum w (v - o) of independent
// errors. The error of a score, a sum of d products q_i k_i times the scale, is
// at most
//
//   u (sqrt(d) + 4) sum|q_i k_i|    of fp32, u being its unit roundoff: of the
//       sum, beyond what is likely (Higham and Mary 2019), and of the scale,
//       its product, the difference from the maximum and the exponential
//   2^-10 min(sum|q_i k_i|, 3 sqrt(sum (q_i k_i)^2))    of TF32: of two
//   operands
//       rounded to 11 bits, always, and beyond what is likely (seven times the
//       standard deviation)
//   2^-13 sqrt(d) max(|q_i k_i|, |q_0 k_0 + ... + q_i k_i|)    of fp8 on a
//       tensor core, which drops of each addend what lies 13 bits or more below
//       the largest: three times the standard deviation of d such errors
//
// times the scale, of which the terms above know nothing.
//
// "Magnitude" is max|want|, or the standard deviation of a sum of independent
// values of the largest |value| under the same weights if that is more: where
// terms cancel, errors do not.
Tolerance ContractTolerance(const HeadConfig& config, const Sequence& sequence,
                            const reference::SequenceResult& want,
                            Float8Weights weights = Float8Weights::kFloat8);
Tolerance ContractTolerance(const HeadConfig& config,
                            const reference::DenseSequence& sequence,
                            const reference::SequenceResult& want,
                            Float8Weights weights = Float8Weights::kFloat8);

// NaN must stand where `want` has NaN, infinities likewise, and all else be
// within the tolerance. Tensor pointers are host pointers; log_sum_exp and
// weights are compared where they are not null (`want` must have weights).
testing::AssertionResult Matches(const HeadConfig& config,
                                 const Sequence& sequence,
                                 const reference::SequenceResult& want,
                                 const Tolerance& tolerance);

// Matches() the reference under ContractTolerance().
testing::AssertionResult MatchesReference(
    const HeadConfig& config, const Sequence& sequence,
    Float8Weights weights = Float8Weights::kFloat8);

// The same for every sequence of a problem.
testing::AssertionResult MatchesReference(
    const AttentionProblem& problem,
    Float8Weights weights = Float8Weights::kFloat8);

}  // namespace attention::test

#endif  // ATTENTION_TESTS_SUPPORT_COMPARISON_H_
