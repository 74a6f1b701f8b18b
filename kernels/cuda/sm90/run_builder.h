// The order in which a launch of the sm_90 kernels takes its tiles.
#ifndef ATTENTION_KERNELS_CUDA_SM90_RUN_BUILDER_H_
#define ATTENTION_KERNELS_CUDA_SM90_RUN_BUILDER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/attention_params.h"
#include "kernels/cuda/sm90/shape.h"
#include "kernels/cuda/sm90/work_list.h"

namespace attention::cuda::sm90 {

// Orders the tiles as work_list.h says.
class RunBuilder {
 public:
  RunBuilder(const Shape& shape, const AttentionParams& params)
      : shape_(shape), params_(params) {}

  // Writes the runs, as many as Shape::Runs of all sequences, and returns the
  // number of tiles.
  int64_t Build(int multiprocessors, TileRun* runs);

 private:
  // A block of rows of some heads.
  struct Block {
    int32_t steps;  // of keys
    int32_t sequence;
    int32_t first_row;
    int32_t first_head;
    int32_t heads;
    int32_t chunk;
  };

  void AddSections();
  void EndSection();
  void AddBlocks(int32_t index, int64_t first_head, int64_t heads,
                 int32_t chunk);
  void MergeTail(int multiprocessors);

  const Shape& shape_;
  const AttentionParams& params_;
  std::vector<Block> blocks_;
  std::vector<size_t> begins_;  // of the sections, and the end of the last
};

}  // namespace attention::cuda::sm90

#endif  // ATTENTION_KERNELS_CUDA_SM90_RUN_BUILDER_H_
