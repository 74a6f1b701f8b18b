// What one thread block of the attend kernels works on.
#ifndef ATTENTION_KERNELS_CUDA_DECODE_BLOCK_PROBLEM_CUH_
#define ATTENTION_KERNELS_CUDA_DECODE_BLOCK_PROBLEM_CUH_

#include <cstdint>

#include "kernels/cuda/decode/table.h"
#include "kernels/cuda/overlapping_launch.cuh"
#include "kernels/cuda/portable/problem.cuh"

namespace attention::cuda::decode {

// As FindEntry, by all lanes of a warp, in as few steps as can be: each waits
// for memory. Returns the entry's index; it is at least `low`, and mostly not
// far from there.
template <typename Entry>
__device__ int64_t FindEntryByWarp(const Entry* entries, int64_t low,
                                   int64_t count, int64_t index,
                                   int64_t Entry::*first) {
  int64_t high = count;
  for (int64_t step = 1; high - low > 1; step = (high - low + 31) / 32) {
    const int64_t probe = low + threadIdx.x % 32 * step;
    const int before = __popc(__ballot_sync(
        0xffffffffu, probe < high && entries[probe].*first <= index));
    const bool is_past = before < 32 || low + 32 * step >= high;
    low += (before - 1) * step;
    if (is_past) high = min(high, low + step);
  }
  return low;
}

// Memory for a T that is no constructor's business, as shared variables need.
template <typename T>
struct Uninitialized {
  alignas(T) unsigned char bytes[sizeof(T)];

  __device__ T& get() { return *reinterpret_cast<T*>(bytes); }
};

// Rows [first_row, first_row + rows) of one K/V head against one chunk of keys,
// which it visits in tiles of kTileKeys at multiples of that. Keys are below
// 2^31.
struct BlockProblem {
  static constexpr int kTileKeys = 64;
  static constexpr int kNoTile = 0x7fffffff;

  AttendEntry entry;
  portable::ScoreScale scale;  // that of the keys included
  float value_scale;
  int head_dim_qk, head_dim_v;
  int kv_head, group;
  int64_t split;
  int64_t row_tile;
  int64_t first_row;
  int rows;
  int64_t first_query, last_query;

  // Keys of the chunk that some row sees.
  int sinks_begin, sinks_end;
  int window_begin, window_end;
  // Tiles of which every row sees all keys, in this chunk or not.
  int full_sinks_begin, full_sinks_end;
  int full_window_begin, full_window_end;
  float* partial;  // see Partial()

  // Fills in the rest for one of the entry's blocks.
  __device__ void Plan(const HeadConfig& config, const AttendTable& table,
                       int64_t block) {
    const AttendEntry& e = entry;
    head_dim_qk = config.head_dim_qk;
    head_dim_v = config.head_dim_v;
    group = config.query_head_count / config.kv_head_count;

    // Row tiles that share keys are neighbours, and so are heads that share
    // pages. Divisions take long, those of 64 bits longer still.
    const int64_t local = block - e.first_block;
    row_tile = e.row_tiles == 1 ? 0 : local % e.row_tiles;
    const auto head_and_split =
        static_cast<uint32_t>(e.row_tiles == 1 ? local : local / e.row_tiles);
    split = head_and_split / static_cast<uint32_t>(config.kv_head_count);
    kv_head = static_cast<int>(head_and_split - split * config.kv_head_count);
    first_row = row_tile * table.row_tile;
    rows = static_cast<int>(
        min(e.rows - first_row, static_cast<int64_t>(table.row_tile)));
    first_query = first_row == 0 ? 0 : first_row / group;
    const int offset = static_cast<int>(first_row - first_query * group);
    last_query = first_query + (offset + rows - 1) / group;

    const int64_t begin = e.Chunk(split) * e.chunk_tokens;
    const int64_t end = begin + e.chunk_tokens;
    const KeyRange sinks = e.mask.sinks.VisibleKeys(first_query, last_query);
    sinks_begin = static_cast<int>(max(sinks.begin, begin));
    sinks_end = static_cast<int>(min(sinks.end, end));
    const KeyRange window = e.mask.window.VisibleKeys(first_query, last_query);
    window_begin = static_cast<int>(max(window.begin, begin));
    window_end = static_cast<int>(min(window.end, end));
    FindFullTiles(e.mask.sinks, &full_sinks_begin, &full_sinks_end);
    FindFullTiles(e.mask.window, &full_window_begin, &full_window_end);

    const double key_scale =
        e.key_scales == nullptr ? 1.0 : e.key_scales[kv_head];
    scale = portable::ScoreScale::From(e.scale * key_scale);
    value_scale = e.value_scales == nullptr ? 1.0f : e.value_scales[kv_head];
    if (e.splits > 1) partial = PartialOfSplit(split);
  }

  // The first tile from `tile` on with a key that some row sees.
  __device__ int NextTile(int tile) const {
    if (sinks_begin < sinks_end && tile <= (sinks_end - 1) / kTileKeys) {
      return max(tile, sinks_begin / kTileKeys);
    }
    if (window_begin < window_end && tile <= (window_end - 1) / kTileKeys) {
      return max(tile, window_begin / kTileKeys);
    }
    return kNoTile;
  }

  // Whether some row of the block sees the key. Others are not read.
  __device__ bool IsRead(int key) const {
    return (key >= sinks_begin && key < sinks_end) ||
           (key >= window_begin && key < window_end);
  }
  __device__ int64_t Query(int row) const { return (first_row + row) / group; }
  __device__ bool Sees(int row, int key) const {
    const int64_t query = Query(row);
    return Contains(entry.mask.sinks.VisibleKeys(query), key) ||
           Contains(entry.mask.window.VisibleKeys(query), key);
  }
  // Whether some row does not see some key of the tile.
  __device__ bool NeedsMask(int tile) const {
    return !(tile >= full_window_begin && tile < full_window_end) &&
           !(tile >= full_sinks_begin && tile < full_sinks_end);
  }
  // Whether rows may differ in which of the keys they see that are read, of a
  // tile that needs a mask.
  __device__ bool IsMixed() const { return first_query != last_query; }

  template <typename T>
  __device__ const T* QueryRow(int row) const {
    return static_cast<const T*>(entry.query) +
           Query(row) * entry.query_strides.token +
           QueryHead(row) * entry.query_strides.head;
  }
  template <typename T>
  __device__ T* OutputRow(int row) const {
    return static_cast<T*>(entry.output) +
           Query(row) * entry.output_strides.token +
           QueryHead(row) * entry.output_strides.head;
  }
  __device__ void StoreLogSumExp(int row, float value) const {
    if (entry.log_sum_exp == nullptr) return;
    entry.log_sum_exp[Query(row) * entry.log_sum_exp_token_stride +
                      QueryHead(row) * entry.log_sum_exp_head_stride] = value;
  }
  // Where the unnormalised result of a row goes if there are several splits:
  // accumulator, maximum, sum.
  __device__ float* Partial(int row) const {
    return partial + row * PartialColumns(head_dim_v);
  }
  // That of row 0 for any split.
  __device__ float* PartialOfSplit(int64_t index) const {
    return entry.partials +
           ((kv_head * entry.splits + index) * entry.rows + first_row) *
               PartialColumns(head_dim_v);
  }

 private:
  __device__ void FindFullTiles(const MaskBand& band, int* begin,
                                int* end) const {
    const int64_t first = band.VisibleKeys(last_query).begin;
    const int64_t last = band.VisibleKeys(first_query).end;
    *begin = static_cast<int>((first + kTileKeys - 1) / kTileKeys);
    *end = static_cast<int>(max(last, int64_t{0}) / kTileKeys);
  }
  static __device__ bool Contains(KeyRange keys, int key) {
    return keys.begin <= key && key < keys.end;
  }
  __device__ int64_t QueryHead(int row) const {
    return kv_head * group + (first_row + row) % group;
  }
};

}  // namespace attention::cuda::decode

#endif  // ATTENTION_KERNELS_CUDA_DECODE_BLOCK_PROBLEM_CUH_
