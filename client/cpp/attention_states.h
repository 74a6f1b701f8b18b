// Attention over keys that are in several places.
//
// The output and the log-sum-exp of a query over a set of keys are all that is
// needed to add other keys later. So a context can be cut into parts, each be
// attended to where it is, also on different servers, and the answers be
// merged:
//
//   log_sum_exp = log(sum over parts of exp(log_sum_exp_part))
//   output      = sum over parts of exp(log_sum_exp_part - log_sum_exp) *
//   output_part
#ifndef ATTENTION_CLIENT_CPP_ATTENTION_STATES_H_
#define ATTENTION_CLIENT_CPP_ATTENTION_STATES_H_

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/cpp/attention_client.h"

namespace attention {

// Merges the answers to one query over disjoint sets of keys, all computed with
// `log_sum_exp` and the same scale, in any layout. The result has their shapes,
// no weights and no timings.
//
// Sums are formed in double and rounded once to the states' data type. A part
// without visible keys (log-sum-exp -infinity) adds nothing, whatever its
// output is; a row without any gets 0 and -infinity. Merging one state returns
// it bit by bit. NaN in a row of a part makes that row NaN.
//
// InvalidArgument when there is no state, one has no log-sum-exp (results that
// went into a ResultBuffer are not in their AttentionResult), or types, shapes
// and sizes disagree.
absl::StatusOr<AttentionResult> MergeAttentionStates(
    absl::Span<const AttentionResult> states);

}  // namespace attention

#endif  // ATTENTION_CLIENT_CPP_ATTENTION_STATES_H_
