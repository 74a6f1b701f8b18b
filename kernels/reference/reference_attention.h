// The oracle: naive float64 attention, obviously right and slow.
//
// Inputs are read as stored (already rounded to their type) and everything is
// computed in float64 with the exact scale. One row at a time, two passes, no
// blocking. Not for production use.
#ifndef ATTENTION_KERNELS_REFERENCE_REFERENCE_ATTENTION_H_
#define ATTENTION_KERNELS_REFERENCE_REFERENCE_ATTENTION_H_

#include <cstdint>
#include <vector>

#include "kernels/attention_params.h"

namespace attention::reference {

struct SequenceResult {
  std::vector<double> output;       // [M, query_head_count, head_dim_v]
  std::vector<double> log_sum_exp;  // [M, query_head_count]
  std::vector<double> weights;      // [query_head_count, M, N]; empty unless asked
};

// Only reads the sequence's query, key and value pointers. A row without
// visible keys, or whose scores are all -inf, gives output 0 and log-sum-exp
// -inf; NaN propagates to the rows that may see it.
SequenceResult ComputeAttention(const HeadConfig& config, const Sequence& sequence,
                                bool want_weights = false);

}  // namespace attention::reference

#endif  // ATTENTION_KERNELS_REFERENCE_REFERENCE_ATTENTION_H_
