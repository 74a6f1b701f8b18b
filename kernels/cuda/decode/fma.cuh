// Paged attention without tensor cores: for fp32, and for devices older than
// sm_80.
//
// Each warp owns some rows; a thread scores one key of a tile against them, and
// accumulates some columns of the values.
#ifndef ATTENTION_KERNELS_CUDA_DECODE_FMA_CUH_
#define ATTENTION_KERNELS_CUDA_DECODE_FMA_CUH_

#include <cstdint>

#include "kernels/cuda/decode/block_problem.cuh"
#include "kernels/cuda/decode/kernels.h"
#include "kernels/cuda/decode/store.cuh"
#include "kernels/cuda/find_entry.h"
#include "kernels/cuda/float8.cuh"

namespace attention::cuda::decode {

template <typename T_, bool kFloat8_>
struct FmaTile {
  using T = T_;
  static constexpr bool kFloat8 = kFloat8_;
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kWarpRows = 4;
  static constexpr int kRows = kWarps * kWarpRows;  // at a time
  static constexpr int kKeys = 32;
  static constexpr int kColumnsPerLane = kMaxHeadDim / 32;
  // Four floats of padding spread the keys over the banks.
  static constexpr int kKeyRowFloats = kMaxHeadDim + 4;
  static constexpr int kSharedBytes =
      (kKeys * kKeyRowFloats + kRows * kMaxHeadDim) * sizeof(float);
};

// An element of the row of the key at `position`.
template <typename Tile>
__device__ float PageElement(const uint8_t* row, int row_bytes, int position,
                             int index) {
  constexpr int kBytes = Tile::kFloat8 ? 1 : sizeof(typename Tile::T);
  const int byte = index * kBytes;
  const uint8_t* const from =
      row + StoredPiece(row_bytes, position, byte / kPieceBytes) * kPieceBytes +
      byte % kPieceBytes;
  if constexpr (Tile::kFloat8) {
    return Float8ToFloat(*from);
  } else {
    using Element = portable::Element<typename Tile::T>;
    return Element::ToFloat(
        *reinterpret_cast<const typename Element::Bits*>(from));
  }
}

// Rows first, first + 1... of the block's, at most kRows.
template <typename Tile>
class FmaRows {
 public:
  __device__ FmaRows(const BlockProblem& problem, const PageGeometry& geometry,
                     float* shared, int first)
      : problem_(problem),
        geometry_(geometry),
        keys_(shared),
        query_(shared + Tile::kKeys * Tile::kKeyRowFloats),
        first_(first),
        rows_(min(problem.rows - first, Tile::kRows)) {}

  __device__ void LoadQuery() {
    using Element = portable::Element<typename Tile::T>;
    using Bits = typename Element::Bits;
    for (int i = threadIdx.x; i < rows_ * kMaxHeadDim; i += Tile::kThreads) {
      const int row = i / kMaxHeadDim;
      const int column = i % kMaxHeadDim;
      float value = 0;
      if (column < problem_.head_dim_qk) {
        value = Element::ToFloat(problem_.template QueryRow<Bits>(
            first_ + row)[column * problem_.entry.query_strides.dim]);
      }
      if (problem_.scale.query == portable::ScoreScale::kNegate) value = -value;
      if (problem_.scale.query == portable::ScoreScale::kZero) value *= 0.0f;
      query_[i] = value;
    }
  }

  // Keys [first_key, first_key + kKeys) into shared memory; the places of their
  // values into `value_rows`.
  __device__ void LoadKeys(int first_key, const uint8_t** value_rows) {
    constexpr int kThreadsPerKey = Tile::kThreads / Tile::kKeys;
    const int i = threadIdx.x / kThreadsPerKey;
    const int part = threadIdx.x % kThreadsPerKey;
    const int key = first_key + i;
    const uint8_t* key_row = nullptr;
    const uint8_t* value_row = nullptr;
    if (problem_.IsRead(key)) {
      const unsigned page = static_cast<unsigned>(key) /
                            static_cast<unsigned>(geometry_.page_tokens);
      const int slot = key - static_cast<int>(page) * geometry_.page_tokens;
      const auto* data =
          static_cast<const uint8_t*>(problem_.entry.pages[page]);
      key_row = data + geometry_.KeyOffset(problem_.kv_head, slot);
      value_row = data + geometry_.ValueOffset(problem_.kv_head, slot);
    }
    if (part == 0) value_rows[i] = value_row;
    const int padded = (problem_.head_dim_qk + 3) / 4 * 4;
    float* to = keys_ + i * Tile::kKeyRowFloats;
#pragma unroll 8
    for (int column = part; column < padded; column += kThreadsPerKey) {
      to[column] =
          key_row != nullptr && column < problem_.head_dim_qk
              ? PageElement<Tile>(key_row, geometry_.key_row_bytes, key, column)
              : 0.0f;
    }
  }

  // After a barrier.
  __device__ void Accumulate(int first_key, const uint8_t* const* value_rows) {
    const int lane = threadIdx.x % 32;
    const int key = first_key + lane;
    float p[Tile::kWarpRows];
    unsigned seen[Tile::kWarpRows];
    unsigned any = 0;
#pragma unroll
    for (int r = 0; r < Tile::kWarpRows; ++r) {
      seen[r] = 0;
      p[r] = 0;
      if (Row(r) >= rows_) continue;
      const bool sees =
          value_rows[lane] != nullptr && problem_.Sees(first_ + Row(r), key);
      seen[r] = __ballot_sync(0xffffffffu, sees);
      any |= seen[r];
      if (seen[r] == 0) continue;
      float max = sees ? p[r] = Score(r) : -INFINITY;
      for (int step = 16; step > 0; step /= 2) {
        max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, step));
      }
      const float rescale = state_[r].Raise(max, problem_.scale.factor);
      p[r] = sees ? exp2f((p[r] - state_[r].Base()) * problem_.scale.factor)
                  : 0.0f;
      state_[r].sum += p[r];
#pragma unroll
      for (int c = 0; c < Tile::kColumnsPerLane; ++c) o_[r][c] *= rescale;
    }
    for (; any != 0; any &= any - 1) {
      const int j = __ffs(any) - 1;
      float value[Tile::kColumnsPerLane];
#pragma unroll
      for (int c = 0; c < Tile::kColumnsPerLane; ++c) {
        const int column = lane + 32 * c;
        value[c] =
            column < problem_.head_dim_v
                ? PageElement<Tile>(value_rows[j], geometry_.value_row_bytes,
                                    first_key + j, column)
                : 0.0f;
      }
#pragma unroll
      for (int r = 0; r < Tile::kWarpRows; ++r) {
        // A weight of 0 does not hide a NaN, so unseen values stay out.
        if ((seen[r] >> j & 1) == 0) continue;
        const float weight = __shfl_sync(0xffffffffu, p[r], j);
#pragma unroll
        for (int c = 0; c < Tile::kColumnsPerLane; ++c) {
          o_[r][c] = fmaf(weight, value[c], o_[r][c]);
        }
      }
    }
  }

  __device__ void Store() {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < Tile::kWarpRows; ++r) {
      if (Row(r) >= rows_) continue;
      for (int step = 16; step > 0; step /= 2) {
        state_[r].sum += __shfl_xor_sync(0xffffffffu, state_[r].sum, step);
      }
      if (lane == 0) StoreState(problem_, first_ + Row(r), state_[r]);
#pragma unroll
      for (int c = 0; c < Tile::kColumnsPerLane; ++c) {
        StoreColumn<typename Tile::T>(problem_, first_ + Row(r), lane + 32 * c,
                                      o_[r][c], state_[r].sum);
      }
    }
  }

 private:
  // Neighbouring rows go to different warps: often there are only a few.
  static __device__ int Row(int r) {
    return r * Tile::kWarps + static_cast<int>(threadIdx.x) / 32;
  }
  __device__ float Score(int r) const {
    const auto* key = reinterpret_cast<const float4*>(
        keys_ + threadIdx.x % 32 * Tile::kKeyRowFloats);
    const auto* query =
        reinterpret_cast<const float4*>(query_ + Row(r) * kMaxHeadDim);
    float sum = 0;
#pragma unroll 4
    for (int i = 0; i < (problem_.head_dim_qk + 3) / 4; ++i) {
      const float4 k = key[i];
      const float4 q = query[i];
      sum = fmaf(k.x, q.x, sum);
      sum = fmaf(k.y, q.y, sum);
      sum = fmaf(k.z, q.z, sum);
      sum = fmaf(k.w, q.w, sum);
    }
    return sum;
  }

  const BlockProblem& problem_;
  const PageGeometry& geometry_;
  float* const keys_;   // [kKeys][kKeyRowFloats]
  float* const query_;  // [kRows][kMaxHeadDim]
  const int first_;
  const int rows_;
  portable::RowState state_[Tile::kWarpRows];
  float o_[Tile::kWarpRows][Tile::kColumnsPerLane] = {};
};

template <typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, 4)
    AttendFmaKernel(HeadConfig config, PageGeometry geometry, AttendTable table,
                    int64_t first_block) {
  extern __shared__ __align__(16) float shared_floats[];
  __shared__ Uninitialized<BlockProblem> problem_memory;
  BlockProblem& problem = problem_memory.get();
  __shared__ const uint8_t* value_rows[Tile::kKeys];
  WaitForPreviousKernel();
  LetNextKernelCome();
  if (threadIdx.x == 0) {
    const int64_t block = first_block + blockIdx.x;
    problem.entry =
        FindEntry(table.entries, table.count, block, &AttendEntry::first_block);
    problem.Plan(config, table, block);
  }
  __syncthreads();
#pragma unroll 1
  for (int first = 0; first < problem.rows; first += Tile::kRows) {
    FmaRows<Tile> rows(problem, geometry, shared_floats, first);
    rows.LoadQuery();
#pragma unroll 1
    for (int tile = problem.NextTile(0); tile != BlockProblem::kNoTile;
         tile = problem.NextTile(tile + 1)) {
#pragma unroll 1
      for (int part = 0; part < BlockProblem::kTileKeys / Tile::kKeys; ++part) {
        const int first_key =
            tile * BlockProblem::kTileKeys + part * Tile::kKeys;
        rows.LoadKeys(first_key, value_rows);
        __syncthreads();
        rows.Accumulate(first_key, value_rows);
        __syncthreads();
      }
    }
    rows.Store();
    __syncthreads();
  }
}

template <typename T, bool kFloat8>
AttendKernel DescribeFma() {
  using Tile = FmaTile<T, kFloat8>;
  return {reinterpret_cast<const void*>(AttendFmaKernel<Tile>), kMaxHeadDim,
          Tile::kThreads, Tile::kSharedBytes, 75};
}

}  // namespace attention::cuda::decode

#endif  // ATTENTION_KERNELS_CUDA_DECODE_FMA_CUH_
