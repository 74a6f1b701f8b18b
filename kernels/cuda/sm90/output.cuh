// How a consumer of the sm_90 kernel stores the results of its rows.
#ifndef ATTENTION_KERNELS_CUDA_SM90_OUTPUT_CUH_
#define ATTENTION_KERNELS_CUDA_SM90_OUTPUT_CUH_

#include "kernels/cuda/portable/element.cuh"
#include "kernels/cuda/portable/problem.cuh"
#include "kernels/cuda/sm90/prefill_tile.cuh"

namespace attention::cuda::sm90 {

// A row in global memory.
struct OutputRow {
  int32_t row;  // of the head of the query's map
  int64_t query, head;
  bool exists;
};

// Of the two rows of a thread (wgmma.cuh), number `half`.
__device__ __forceinline__ OutputRow RowOf(const WorkList& list,
                                           const TileWork& work, int warpgroup,
                                           int thread, int half) {
  const int row = work.first_row + warpgroup * 64 + thread / 32 * 16 +
                  half * 8 + thread % 32 / 4;
  return {
      row, row >> list.group_shift,
      (work.head << list.group_shift) + (row & ((1 << list.group_shift) - 1)),
      row < work.rows};
}

// The thread's index in its warpgroup, read again, so that what follows from it
// does not occupy registers before.
inline __device__ int ThreadAnew() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread % 128;
}

template <typename Tile>
__device__ bool IsChunk(const TileWork& work) {
  return Tile::kTakesChunks && work.chunk >= 0;
}

// `sum` is that of the whole row, relative to `max`.
template <typename Tile>
__device__ __forceinline__ void StoreLogSumExp(
    const WorkList& list, const TileWork& work, int warpgroup,
    const float (&max)[2], const float (&sum)[2], float factor) {
  if (work.log_sum_exp == nullptr && !IsChunk<Tile>(work)) return;
  const int thread = ThreadAnew();
  if (thread % 4 != 0) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const OutputRow row = RowOf(list, work, warpgroup, thread, half);
    if (!row.exists) continue;
    const float log_sum =
        sum[half] == 0 ? -INFINITY : fmaf(max[half], factor, log2f(sum[half]));
    if (IsChunk<Tile>(work)) {
      const PrefillSequence& sequence = list.Get(work.sequence);
      sequence.partial_log_sum_exp[sequence.PartialIndex(work.chunk, work.head,
                                                         row.row)] = log_sum;
    } else {
      work.log_sum_exp[row.query * work.log_sum_exp_token_stride +
                       row.head * work.log_sum_exp_head_stride] =
          log_sum * portable::kLn2;
    }
  }
}

// Of four lanes with four words each: lane i gets the words i of all.
__device__ __forceinline__ void TransposeInQuad(uint32_t (&word)[4],
                                                int thread) {
#pragma unroll
  for (int distance = 1; distance < 4; distance *= 2) {
    const bool upper = thread & distance;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & distance) continue;
      uint32_t& low = word[i];
      uint32_t& high = word[i | distance];
      const uint32_t sent = upper ? low : high;
      const uint32_t received = __shfl_xor_sync(0xffffffffu, sent, distance);
      if (upper) {
        low = received;
      } else {
        high = received;
      }
    }
  }
}

template <typename Tile>
__device__ __forceinline__ void StorePartialOutput(
    const WorkList& list, const TileWork& work, int warpgroup, int thread,
    const float (&o)[Tile::kValueDims / 2], const float (&inverse)[2]) {
  const PrefillSequence& sequence = list.Get(work.sequence);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const OutputRow row = RowOf(list, work, warpgroup, thread, half);
    if (!row.exists) continue;
    float* const output =
        sequence.partial_output +
        sequence.PartialIndex(work.chunk, work.head, row.row) * list.value_dims;
#pragma unroll
    for (int j = 0; j < Tile::kValueDims / 8; ++j) {
      const int column = 8 * j + thread % 4 * 2;
      if (column >= list.value_dims) continue;
      const int i = 4 * j + 2 * half;
      *reinterpret_cast<float2*>(output + column) =
          make_float2(o[i] * inverse[half], o[i + 1] * inverse[half]);
    }
  }
}

// output = O / l
template <typename Tile>
__device__ __forceinline__ void StoreOutput(
    const WorkList& list, const TileWork& work, int warpgroup,
    const float (&o)[Tile::kValueDims / 2], const float (&inverse)[2]) {
  using Element = portable::Element<typename Tile::Type>;
  const int thread = ThreadAnew();
  if (IsChunk<Tile>(work)) {
    StorePartialOutput<Tile>(list, work, warpgroup, thread, o, inverse);
    return;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const OutputRow row = RowOf(list, work, warpgroup, thread, half);
    auto* const output = static_cast<typename Element::Bits*>(work.output) +
                         row.query * work.output_token_stride +
                         row.head * work.output_head_stride;
#pragma unroll
    for (int j = 0; j < Tile::kValueDims / 8; j += 4) {
      uint32_t word[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int k = 4 * (j + i) + 2 * half;
        word[i] = Element::Pack(o[k] * inverse[half], o[k + 1] * inverse[half]);
      }
      TransposeInQuad(word, thread);
      const int column = 8 * (j + thread % 4);
      if (row.exists && column < list.value_dims) {
        *reinterpret_cast<uint4*>(output + column) =
            make_uint4(word[0], word[1], word[2], word[3]);
      }
    }
  }
}

}  // namespace attention::cuda::sm90

#endif  // ATTENTION_KERNELS_CUDA_SM90_OUTPUT_CUH_
