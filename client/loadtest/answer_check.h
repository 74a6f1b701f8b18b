// Checks answers against the reference.
//
// The float64 reference is far too slow for whole answers of a real size, and a
// row is as good as another: some rows of each input are computed before the
// run, and every answer to that input is compared in these rows. A row costs
// N * (head_dim + head_dim_v) multiply-adds, whatever M, the batch and the head
// count are.
#ifndef ATTENTION_CLIENT_LOADTEST_ANSWER_CHECK_H_
#define ATTENTION_CLIENT_LOADTEST_ANSWER_CHECK_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "client/cpp/attention_client.h"
#include "client/loadtest/request_shape.h"

namespace attention::loadtest {

struct ExpectedRow {
  int64_t sequence = 0;
  int64_t query = 0;
  int64_t head = 0;
  std::vector<double> output;  // [head_dim_v]
  double log_sum_exp = 0;
};

// What is known about the answer to one input.
struct Expectation {
  std::vector<ExpectedRow> rows;
  double max_abs_output = 0;  // over these rows
};

// Computes `max_rows` rows, or fewer when keys are so many that this would take
// seconds (but at least two): the first and the last row of the answer, and
// others at random. The shape is resolved, and the request has contiguous
// tensors of that shape and the default scale.
Expectation ComputeExpectation(const RequestShape& shape,
                               const AttentionRequest& request, int max_rows,
                               uint64_t seed);

// OK when the result has the right type, shapes and sizes and its rows are
// within reference::Tolerance of the expected ones, the largest expected
// absolute output being that of these rows; DataLoss naming the first
// difference otherwise.
absl::Status CheckAnswer(const RequestShape& shape,
                         const Expectation& expectation,
                         const AttentionResult& result);

// As CheckAnswer, of some queries of a shape of one sequence, kBshd or kThd:
// `output` and, unless it is null, `log_sum_exp` begin with query
// `first_query`. Adds the number of rows that are known to `compared`.
absl::Status CheckQueries(const RequestShape& shape,
                          const Expectation& expectation, int64_t first_query,
                          int64_t query_count, const char* output,
                          const char* log_sum_exp, int64_t& compared);

}  // namespace attention::loadtest

#endif  // ATTENTION_CLIENT_LOADTEST_ANSWER_CHECK_H_
