// What one thread block of the attend kernels works on.
#ifndef ATTENTION_KERNELS_CUDA_DECODE_BLOCK_PROBLEM_CUH_
#define ATTENTION_KERNELS_CUDA_DECODE_BLOCK_PROBLEM_CUH_

#include <cstdint>

#include "kernels/cuda/decode/table.h"
#include "kernels/cuda/portable/problem.cuh"

namespace attention::cuda::decode {

// See LaunchOverlapping. Programmatic dependent launch exists since sm_90.
inline __device__ void WaitForPreviousKernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
inline __device__ void LetNextKernelCome() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// As FindEntry, by all lanes of a warp, in as few steps as can be: each waits
// for memory.
template <typename Entry>
__device__ const Entry& FindEntryByWarp(const Entry* entries, int64_t count,
                                        int64_t index, int64_t Entry::*first) {
  int64_t low = 0;
  int64_t high = count;
  while (high - low > 1) {
    const int64_t step = (high - low + 31) / 32;
    const int64_t probe = low + threadIdx.x % 32 * step;
    const unsigned before = __ballot_sync(
        0xffffffffu, probe < high && entries[probe].*first <= index);
    low += (__popc(before) - 1) * step;
    high = min(high, low + step);
  }
  return entries[low];
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
  int64_t first_row;
  int rows;
  int64_t first_query, last_query;

  // Keys of the chunk that some row sees.
  int sinks_begin, sinks_end;
  int window_begin, window_end;

  // Fills in the rest for one of the entry's blocks.
  __device__ void Plan(const HeadConfig& config, const AttendTable& table,
                       int64_t block) {
    const AttendEntry& e = entry;
    head_dim_qk = config.head_dim_qk;
    head_dim_v = config.head_dim_v;
    group = config.query_head_count / config.kv_head_count;

    // Row tiles that share keys are neighbours, and so are chunks.
    const int64_t local = block - e.first_block;
    const int64_t tile = local % e.row_tiles;
    split = local / e.row_tiles % e.splits;
    kv_head = static_cast<int>(local / e.row_tiles / e.splits);
    first_row = tile * table.row_tile;
    rows = static_cast<int>(
        min(e.rows - first_row, static_cast<int64_t>(table.row_tile)));
    first_query = first_row / group;
    last_query = (first_row + rows - 1) / group;

    const int64_t begin = e.Chunk(split) * e.chunk_tokens;
    const int64_t end = begin + e.chunk_tokens;
    const KeyRange sinks = e.mask.sinks.VisibleKeys(first_query, last_query);
    sinks_begin = static_cast<int>(max(sinks.begin, begin));
    sinks_end = static_cast<int>(min(sinks.end, end));
    const KeyRange window = e.mask.window.VisibleKeys(first_query, last_query);
    window_begin = static_cast<int>(max(window.begin, begin));
    window_end = static_cast<int>(min(window.end, end));

    const double key_scale =
        e.key_scales == nullptr ? 1.0 : e.key_scales[kv_head];
    scale = portable::ScoreScale::From(e.scale * key_scale);
    value_scale = e.value_scales == nullptr ? 1.0f : e.value_scales[kv_head];
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
    const int64_t begin = static_cast<int64_t>(tile) * kTileKeys;
    const KeyRange keys = {begin, begin + kTileKeys};
    return !entry.mask.window.SeesAll(first_query, last_query, keys) &&
           !entry.mask.sinks.SeesAll(first_query, last_query, keys);
  }
  // Whether rows may differ in which of the keys they see that are read.
  __device__ bool IsMixed(int tile) const {
    return first_query != last_query && NeedsMask(tile);
  }

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
  // Where the unnormalised result of a row goes: accumulator, maximum, sum.
  __device__ float* Partial(int row) const {
    return entry.partials +
           ((kv_head * entry.splits + split) * entry.rows + first_row + row) *
               (head_dim_v + 2);
  }

 private:
  static __device__ bool Contains(KeyRange keys, int key) {
    return keys.begin <= key && key < keys.end;
  }
  __device__ int64_t QueryHead(int row) const {
    return kv_head * group + (first_row + row) % group;
  }
};

}  // namespace attention::cuda::decode

#endif  // ATTENTION_KERNELS_CUDA_DECODE_BLOCK_PROBLEM_CUH_
