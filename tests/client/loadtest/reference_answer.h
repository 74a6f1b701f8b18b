// The right answer to a request of the load tester, whole, by the reference.
#ifndef ATTENTION_TESTS_CLIENT_LOADTEST_REFERENCE_ANSWER_H_
#define ATTENTION_TESTS_CLIENT_LOADTEST_REFERENCE_ANSWER_H_

#include "client/cpp/attention_client.h"
#include "client/loadtest/request_shape.h"

namespace attention::loadtest {

// Output and log-sum-exp in the request's layout and type, with all timings at
// 1 ms and a batch of 2 requests. `shape` is resolved and small.
AttentionResult ReferenceAnswer(const RequestShape& shape,
                                const AttentionRequest& request);

}  // namespace attention::loadtest

#endif  // ATTENTION_TESTS_CLIENT_LOADTEST_REFERENCE_ANSWER_H_
