// The inputs of a run, generated before it, so that the run itself only sends.
//
// Elements are standard normal. Each shape has several inputs that take turns:
// an answer that belongs to another request is then a wrong one.
#ifndef ATTENTION_CLIENT_LOADTEST_INPUT_SET_H_
#define ATTENTION_CLIENT_LOADTEST_INPUT_SET_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cpp/attention_client.h"
#include "client/loadtest/answer_check.h"
#include "client/loadtest/shape_mix.h"

namespace attention::loadtest {

// The request views the three buffers, and the expectation belongs to them.
struct Input {
  std::string query;
  std::string key;
  std::string value;
  AttentionRequest request;
  Expectation expectation;  // without rows unless answers are verified
};

// Immutable, hence thread-safe.
class InputSet {
 public:
  struct Options {
    int inputs_per_shape = 8;  // fewer where memory does not allow it
    int64_t max_bytes = int64_t{1} << 30;  // of all inputs together
    int verified_rows = 0;  // per input; 0: answers will not be verified
    uint64_t seed = 1;
  };

  // ResourceExhausted when max_bytes does not hold one input of each shape.
  static absl::StatusOr<InputSet> Create(const ShapeMix& mix,
                                         const Options& options);

  // The inputs of shape `shape` of the mix; never empty.
  const std::vector<std::unique_ptr<const Input>>& inputs(size_t shape) const {
    return inputs_[shape];
  }

 private:
  InputSet() = default;

  std::vector<std::vector<std::unique_ptr<const Input>>> inputs_;
};

}  // namespace attention::loadtest

#endif  // ATTENTION_CLIENT_LOADTEST_INPUT_SET_H_
