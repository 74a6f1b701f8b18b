// Compares what a kernel wrote with the float64 reference.
#ifndef ATTENTION_TESTS_SUPPORT_COMPARISON_H_
#define ATTENTION_TESTS_SUPPORT_COMPARISON_H_

#include <gtest/gtest.h>

#include <vector>

#include "kernels/attention_params.h"
#include "kernels/reference/reference_attention.h"
#include "tests/support/attention_problem.h"

namespace attention::test {

// Largest permitted |got - want| of each result.
struct Tolerance {
  double output;
  double log_sum_exp_relative;  // of max(1, |want|)
  double weights_relative;      // of |want|
  double weights_absolute;
  // Of each score, fp32 only: [query_head_count, M, N], as the weights.
  std::vector<double> scores = {};
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
//   LSE         1e-5 fp32, 2e-4 16-bit, 2e-3 TF32, of max(1, |LSE|)
//
// In fp32 results may also be off by what the errors of scores do to them, by the
// derivatives of the softmax: the log-sum-exp by their mean under the row's
// weights; a weight, relatively, by that and the error of its own score; an
// output by the standard deviation of sum w (v - o) of independent errors. The
// error of a score, a sum of d products q_i k_i times the scale, is at most
//
//   u (sqrt(d) + 4) sum|q_i k_i|    of fp32, u being its unit roundoff: of the
//       sum, beyond what is likely (Higham and Mary 2019), and of the scale, its
//       product, the difference from the maximum and the exponential
//   2^-10 min(sum|q_i k_i|, 3 sqrt(sum (q_i k_i)^2))    of TF32: of two operands
//       rounded to 11 bits, always, and beyond what is likely (seven times the
//       standard deviation)
//
// times the scale, of which the terms above know nothing.
//
// "Magnitude" is max|want|, or the standard deviation of a sum of independent
// values of the largest |value| under the same weights if that is more: where
// terms cancel, errors do not.
Tolerance ContractTolerance(const HeadConfig& config, const Sequence& sequence,
                            const reference::SequenceResult& want);
Tolerance ContractTolerance(const HeadConfig& config,
                            const reference::DenseSequence& sequence,
                            const reference::SequenceResult& want);

// NaN must stand where `want` has NaN, infinities likewise, and all else be
// within the tolerance. Tensor pointers are host pointers; log_sum_exp and
// weights are compared where they are not null (`want` must have weights).
testing::AssertionResult Matches(const HeadConfig& config,
                                 const Sequence& sequence,
                                 const reference::SequenceResult& want,
                                 const Tolerance& tolerance);

// Matches() the reference under ContractTolerance().
testing::AssertionResult MatchesReference(const HeadConfig& config,
                                          const Sequence& sequence);

// The same for every sequence of a problem.
testing::AssertionResult MatchesReference(const AttentionProblem& problem);

}  // namespace attention::test

#endif  // ATTENTION_TESTS_SUPPORT_COMPARISON_H_
