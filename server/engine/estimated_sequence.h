// What a step on resident keys and values is expected to compute.
#ifndef ATTENTION_SERVER_ENGINE_ESTIMATED_SEQUENCE_H_
#define ATTENTION_SERVER_ENGINE_ESTIMATED_SEQUENCE_H_

#include <algorithm>
#include <cstdint>

#include "kernels/paged_params.h"
#include "server/engine/attention_work.h"
#include "server/engine/kv_cache.h"

namespace attention {

// The sequence as it will be when its step has begun, if its lengths and
// windows are what they were when the work was made. Without pointers.
inline PagedSequence EstimatedSequence(const WorkSequence& sequence,
                                       const KvStep& step) {
  PagedSequence estimate;
  estimate.query_length = sequence.shape.query_length;
  estimate.append_length = step.append_length;
  estimate.key_length = std::max(sequence.shape.key_length, step.append_length);
  estimate.key_end = estimate.key_length;
  if (step.key_range.has_value()) {
    const auto clamped = [&](int64_t key) {
      return std::clamp(key, int64_t{0}, estimate.key_length);
    };
    estimate.key_begin = clamped(step.key_range->begin);
    estimate.key_end =
        std::max(estimate.key_begin, clamped(step.key_range->end));
  }
  estimate.window_left = sequence.shape.window_left;
  estimate.window_right = sequence.shape.window_right;
  return estimate;
}

}  // namespace attention

#endif  // ATTENTION_SERVER_ENGINE_ESTIMATED_SEQUENCE_H_
