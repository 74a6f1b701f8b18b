// The oracle: naive float64 attention, obviously right and slow.
//
// Inputs are read as stored (already rounded to their type), times the scale of
// their head if they have one, and everything is computed in float64 with the
// exact scale. One row at a time, two passes, no
// blocking. Not for production use.
#ifndef ATTENTION_KERNELS_REFERENCE_REFERENCE_ATTENTION_H_
#define ATTENTION_KERNELS_REFERENCE_REFERENCE_ATTENTION_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/attention_params.h"
#include "kernels/paged_params.h"

namespace attention::reference {

struct SequenceResult {
  std::vector<double> output;       // [M, query_head_count, head_dim_v]
  std::vector<double> log_sum_exp;  // [M, query_head_count]
  std::vector<double> weights;  // [query_head_count, M, N]; empty unless asked
};

// Only reads the sequence's query, key and value pointers and their scales. A row without
// visible keys, or whose scores are all -inf, gives output 0 and log-sum-exp
// -inf; NaN propagates to the rows that may see it.
SequenceResult ComputeAttention(const HeadConfig& config,
                                const Sequence& sequence,
                                bool want_weights = false);

// A sequence as plain numbers, wherever they come from.
struct DenseSequence {
  int64_t query_length = 0;  // M
  int64_t key_length = 0;    // N
  double scale = 1.0;
  std::vector<double> query;  // [M, query_head_count, head_dim_qk]
  std::vector<double> key;    // [N, kv_head_count, head_dim_qk]
  std::vector<double> value;  // [N, kv_head_count, head_dim_v]
  std::function<bool(int64_t query, int64_t key)> sees;
};

SequenceResult ComputeAttention(const HeadConfig& config,
                                const DenseSequence& sequence,
                                bool want_weights = false);

// Only reads the query, key and value pointers and their scales.
DenseSequence MakeDense(const HeadConfig& config, const Sequence& sequence);

// Of the pointers only reads `query`: the keys and values of all key_length
// tokens, as pages give them back, are the caller's to know.
DenseSequence MakeDense(const PagedConfig& config,
                        const PagedSequence& sequence, std::vector<double> key,
                        std::vector<double> value);

// What a page gives back of an element that was appended to it. `scale` is that
// of its K/V head (kFloat8E4M3 only).
double StoredElement(const PagedConfig& config, float element, float scale);

}  // namespace attention::reference

#endif  // ATTENTION_KERNELS_REFERENCE_REFERENCE_ATTENTION_H_
