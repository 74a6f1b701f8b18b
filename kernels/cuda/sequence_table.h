// The sequences of one launch, as device code reads them.
//
// A launch is one-dimensional: sequence s owns a contiguous run of
// thread blocks, so that batch, heads and tiles may each exceed the limits of
// grid.y and grid.z, and ragged batches need no padding.
//
// A few sequences travel with the kernel's parameters: a copy of their own
// would cost a small launch more than the launch, and would queue behind the
// tensors that other streams are copying.
//
//   host:    MakeSequenceTable(config, sequences, count, blocks_of, scratch,
//                              stream, &table);
//            LaunchBlocks(table.block_count, [&](int64_t first, unsigned blocks) {
//              Kernel<<<blocks, threads, smem, stream>>>(table, first);
//            });
//   device:  // `table` is __grid_constant__
//            const int64_t block = first + blockIdx.x;
//            const SequenceEntry& entry = table.Find(block);
//            const int64_t local = block - entry.first_block;
#ifndef ATTENTION_KERNELS_CUDA_SEQUENCE_TABLE_H_
#define ATTENTION_KERNELS_CUDA_SEQUENCE_TABLE_H_

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "kernels/attention_params.h"
#include "kernels/cuda/attention_cuda.h"
#include "kernels/cuda/find_entry.h"
#include "kernels/host_device.h"

namespace attention::cuda {

struct SequenceEntry {
  Sequence sequence;
  int64_t first_block = 0;  // thread blocks of all earlier sequences

  // True where `dim` is 1 and base, token and head strides are multiples of
  // 16 bytes: every row can then be read in 16-byte vectors (the last of which
  // may be partial when the head dimension is odd).
  bool query_is_vectorizable = false;
  bool key_is_vectorizable = false;
  bool value_is_vectorizable = false;
  bool output_is_vectorizable = false;
};

struct SequenceTable {
  static constexpr int64_t kMaxInline = 16;

  const SequenceEntry* uploaded = nullptr;  // [count], in device memory, or
  SequenceEntry inlined[kMaxInline];        // [count] here, if that is null
  int64_t count = 0;
  int64_t block_count = 0;

  // The sequence that owns `block`, 0 <= block < block_count. Sequences
  // without blocks are never returned.
  ATTENTION_HOST_DEVICE const SequenceEntry& Find(int64_t block) const {
    return FindEntry(uploaded != nullptr ? uploaded : inlined, count, block,
                     &SequenceEntry::first_block);
  }
};

// Bytes that the table of `sequence_count` sequences takes, both in
// scratch.host and in scratch.device; a multiple of 256, 0 for a few.
size_t SequenceTableBytes(int64_t sequence_count);

// Fills *table; unless it takes no memory, writes it to scratch.host and
// enqueues its copy to scratch.device. `blocks_of` gives the number of thread
// blocks of a sequence (0 is fine). The host part may be reused once the stream
// has passed the copy.
cudaError_t MakeSequenceTable(
    const HeadConfig& config, const Sequence* sequences, int64_t sequence_count,
    const std::function<int64_t(const Sequence&)>& blocks_of,
    const Scratch& scratch, cudaStream_t stream, SequenceTable* table);

// Calls launch(first_block, blocks) until all blocks are covered: once, unless
// there are more than a grid may have.
template <typename LaunchFunction>
void LaunchBlocks(int64_t block_count, LaunchFunction launch) {
  constexpr int64_t kMaxGrid = (int64_t{1} << 31) - 1;
  for (int64_t first = 0; first < block_count; first += kMaxGrid) {
    launch(first,
           static_cast<unsigned>(std::min(kMaxGrid, block_count - first)));
  }
}

}  // namespace attention::cuda

#endif  // ATTENTION_KERNELS_CUDA_SEQUENCE_TABLE_H_
