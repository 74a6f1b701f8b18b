// A large work cut into parts, so that the copies of one part overlap the
// computation of another.
#ifndef ATTENTION_SERVER_ENGINE_CUDA_WORK_PARTS_H_
#define ATTENTION_SERVER_ENGINE_CUDA_WORK_PARTS_H_

#include <array>
#include <cstddef>
#include <vector>

#include "absl/types/span.h"
#include "kernels/attention_params.h"
#include "server/engine/batch_binding.h"

namespace attention {

// Bytes [begin, end) of a tensor.
struct ByteRange {
  size_t begin = 0;
  size_t end = 0;

  size_t size() const { return end - begin; }
};

// Of query, key and value.
using InputRanges = std::array<ByteRange, 3>;

struct WorkPart {
  HeadConfig config;  // of its launch
  size_t first_sequence = 0;
  size_t sequence_count = 0;
  // What it needs beside what the parts before it need.
  InputRanges inputs;
  // What is complete of the output after it.
  ByteRange output;
};

struct WorkParts {
  std::vector<Sequence> sequences;
  std::vector<WorkPart> parts;  // at least 2, or none

  AttentionParams Params(const WorkPart& part) const {
    return {.config = part.config,
            .sequences = sequences.data() + part.first_sequence,
            .sequence_count = static_cast<int64_t>(part.sequence_count)};
  }
};

// Cuts the work between its sequences, and sequences between rows or heads, as
// its layout allows; computing the parts in this order gives the same bits as
// the whole. The ranges of all parts together are the whole tensors. No parts
// when that saves no time: the output is small, or stays on the device.
WorkParts CutIntoParts(const PreparedWork& prepared);

}  // namespace attention

#endif  // ATTENTION_SERVER_ENGINE_CUDA_WORK_PARTS_H_
