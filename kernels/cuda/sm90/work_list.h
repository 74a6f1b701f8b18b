// What a launch of the sm_90 kernels computes, as device code reads it.
//
// The unit of work is a tile: up to kBlockM rows of one head of one sequence.
// Where query heads share a K/V head, rows are packed: row i * group + g is
// query i of the g-th head of the group, so that short sequences fill a tile and
// keys are read once for all of them.
//
// Persistent blocks take tiles in order from a counter. The host orders them:
// in sections whose keys and values fit the L2 cache together, and within a
// section the tile with the most keys first, so that work that starts late is
// short.
//
// A sequence of few queries gives few tiles. Its keys are cut into chunks, each a
// tile of its own that leaves a partial result, and the partial results are
// merged.
#ifndef ATTENTION_KERNELS_CUDA_SM90_WORK_LIST_H_
#define ATTENTION_KERNELS_CUDA_SM90_WORK_LIST_H_

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "kernels/attention_params.h"
#include "kernels/cuda/find_entry.h"
#include "kernels/host_device.h"
#include "kernels/mask.h"

namespace attention::cuda::sm90 {

// Lengths are below it, and bounds at most as far from the diagonal, so that
// sums stay within 32 bits.
inline constexpr int32_t kMaxLength = 1 << 29;

// Chunks of keys that a sequence may be cut into.
inline constexpr int32_t kMaxChunks = 32;

// One sequence. Its tensors end where it ends: what lies behind reads as zeros
// and is never written.
struct PrefillSequence {
  CUtensorMap query;   // [heads, M, group, d_qk]
  CUtensorMap key;     // [K/V heads, N, d_qk]
  CUtensorMap value;   // [K/V heads, N, d_v]
  void* output;        // [M, query heads, d_v], rows on multiples of 16 bytes
  int64_t output_token_stride;
  int64_t output_head_stride;
  float* log_sum_exp;  // may be null
  int64_t log_sum_exp_token_stride;
  int64_t log_sum_exp_head_stride;
  // Query i sees the keys from i + lower to i + upper, up to key_end.
  int32_t lower, upper;
  int32_t key_end;  // N
  int32_t rows;     // M * group
  float factor;     // scale * log2(e), positive; not e4m3

  // Steps of keys in a chunk; 0: not cut. A partial result is the output of the
  // chunk's keys and their log-sum-exp in units of log2, for each chunk, head of
  // the query's map and row.
  int32_t chunk_steps;
  int32_t chunk_count;
  float* partial_output;       // [chunks, heads, rows, d_v]
  float* partial_log_sum_exp;  // [chunks, heads, rows]
  int32_t heads;               // of the query's map
  int32_t first_merge;         // heads * rows of all earlier sequences cut

  // e4m3 only: where in the list's scales those of the sequence begin: for each
  // query head the factor, with the scales of the head's queries and keys; then
  // for each K/V head the scale of its values.
  int64_t first_scale;

  ATTENTION_HOST_DEVICE int64_t PartialIndex(int32_t chunk, int32_t head,
                                             int32_t row) const {
    return (static_cast<int64_t>(chunk) * heads + head) * rows + row;
  }
};

// The tiles of heads [first_head, first_head + heads) at one block of rows, of
// one chunk of keys or of all.
struct TileRun {
  int32_t first_tile;  // tiles of all earlier runs
  int32_t sequence;
  int32_t first_row;
  int32_t first_head;
  int32_t chunk;  // -1: all keys
};

struct WorkList {
  // A copy of their own would cost more than the longer parameters do.
  static constexpr int kMaxInlineSequences = 32;
  static constexpr int kMaxInlineRuns = 512;
  static constexpr int kMaxInlineScales = 512;

  const PrefillSequence* sequences;  // null: inlined
  const TileRun* runs;
  const float* scales;
  int32_t run_count;
  int32_t tile_count;
  int32_t group_shift;   // log2 of the packed query heads per K/V head
  int32_t heads_per_kv;  // unpacked query heads per K/V head
  int32_t value_dims;    // d_v
  int32_t sequence_count;
  int32_t merge_count;  // heads * rows of the sequences cut into chunks
  unsigned* counter;     // 0 before and after a launch

  PrefillSequence inlined_sequences[kMaxInlineSequences];
  TileRun inlined_runs[kMaxInlineRuns];
  float inlined_scales[kMaxInlineScales];

  // By an earlier kernel on the stream.
  ATTENTION_HOST_DEVICE bool IsUploaded() const { return sequences != nullptr; }

  ATTENTION_HOST_DEVICE const float* HeadFactors(
      const PrefillSequence& sequence) const {
    return (IsUploaded() ? scales : inlined_scales) +
           sequence.first_scale;
  }
  ATTENTION_HOST_DEVICE const float* ValueScales(
      const PrefillSequence& sequence) const {
    return HeadFactors(sequence) + (sequence.heads << group_shift);
  }
  ATTENTION_HOST_DEVICE const PrefillSequence& Get(int32_t sequence) const {
    return Sequences()[sequence];
  }
  // The sequence that owns `merge`, 0 <= merge < merge_count.
  ATTENTION_HOST_DEVICE const PrefillSequence& FindMerged(int32_t merge) const {
    return FindEntry(Sequences(), sequence_count, merge,
                     &PrefillSequence::first_merge);
  }
  // The run that owns `tile`, 0 <= tile < tile_count.
  ATTENTION_HOST_DEVICE const TileRun& Find(int32_t tile) const {
    return FindEntry(IsUploaded() ? runs : inlined_runs, run_count, tile,
                     &TileRun::first_tile);
  }

 private:
  ATTENTION_HOST_DEVICE const PrefillSequence* Sequences() const {
    return IsUploaded() ? sequences : inlined_sequences;
  }
};

}  // namespace attention::cuda::sm90

#endif  // ATTENTION_KERNELS_CUDA_SM90_WORK_LIST_H_
