// Compares a whole answer with the float64 reference.
#ifndef ATTENTION_CLIENT_CLI_ANSWER_CHECK_H_
#define ATTENTION_CLIENT_CLI_ANSWER_CHECK_H_

#include "absl/status/statusor.h"
#include "client/cpp/attention_client.h"

namespace attention::cli {

// The largest absolute differences. NaN and infinities must be met exactly: a
// difference there is infinite.
struct CheckReport {
  double output_error = 0;
  double log_sum_exp_error = 0;
  double weights_error = 0;
  // The largest error in units of its tolerance, over output, log-sum-exp and
  // weights; the answer is good up to 1.
  double worst = 0;
};

// Computes the request anew, on all cores; the time is that of B * Hq * M * N *
// (D + Dv) scalar multiply-adds. The request has contiguous tensors of layout
// kBshd or kBhsd without sequence lengths. Tolerances are those of
// reference::Tolerance.
//
// Internal when the result's type or shapes are not what the request calls for.
absl::StatusOr<CheckReport> CheckAnswer(const AttentionRequest& request,
                                        const AttentionResult& result);

}  // namespace attention::cli

#endif  // ATTENTION_CLIENT_CLI_ANSWER_CHECK_H_
