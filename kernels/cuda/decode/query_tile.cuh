// How the query rows of a block come into shared memory.
#ifndef ATTENTION_KERNELS_CUDA_DECODE_QUERY_TILE_CUH_
#define ATTENTION_KERNELS_CUDA_DECODE_QUERY_TILE_CUH_

#include <cstdint>

#include "kernels/cuda/decode/attend_tile.cuh"
#include "kernels/cuda/decode/block_problem.cuh"
#include "kernels/cuda/portable/element.cuh"
#include "kernels/cuda/portable/tile_io.cuh"

namespace attention::cuda::decode {

using portable::Element;
using portable::ScoreScale;
using portable::SharedAddress;

// Whether the query can be read in pieces.
template <typename T>
__device__ bool HasQueryPieces(const BlockProblem& problem) {
  const TensorStrides& strides = problem.entry.query_strides;
  const auto base = reinterpret_cast<uintptr_t>(problem.entry.query);
  constexpr int kElements = kPieceBytes / sizeof(T);
  return strides.dim == 1 && base % kPieceBytes == 0 &&
         strides.token % kElements == 0 && strides.head % kElements == 0 &&
         problem.head_dim_qk % kElements == 0;
}

// Applies the part of the scale that is the query's to a word of elements.
template <typename T>
__device__ uint32_t AdjustQueryWord(ScoreScale::Query how, uint32_t word) {
  if (how == ScoreScale::kNegate) return word ^ Element<T>::kSignBits;
  // A word of all ones is NaN in every type.
  return how == ScoreScale::kZero ? Element<T>::NonFinite(word) : word;
}

// Reads the query rows of the block into `tile`, as operands, the sign of the
// scale included, as one of `threads` threads.
template <typename Tile>
__device__ void LoadQueryTile(const BlockProblem& problem, uint8_t* tile,
                              int thread, int threads) {
  using T = typename Tile::T;
  using Bits = typename Element<T>::Bits;
  constexpr int kPieces = Tile::kQueryRowBytes / kPieceBytes;
  const ScoreScale::Query how = problem.scale.query;
  // Rows beyond the last are zeros: their maxima do not move.
  const int used = problem.rows * kPieces;
  for (int i = used + thread; i < Tile::kRows * kPieces; i += threads) {
    reinterpret_cast<uint4*>(tile)[i] = make_uint4(0, 0, 0, 0);
  }
  if (HasQueryPieces<T>(problem)) {
    const int pieces = problem.head_dim_qk * 2 / kPieceBytes;
#pragma unroll 4
    for (int i = thread; i < used; i += threads) {
      const int row = i / kPieces;
      const int piece = i % kPieces;
      uint4 words = make_uint4(0, 0, 0, 0);
      if (piece < pieces) {
        words = reinterpret_cast<const uint4*>(
            problem.template QueryRow<Bits>(row))[piece];
      }
      words.x = AdjustQueryWord<T>(how, words.x);
      words.y = AdjustQueryWord<T>(how, words.y);
      words.z = AdjustQueryWord<T>(how, words.z);
      words.w = AdjustQueryWord<T>(how, words.w);
      *reinterpret_cast<uint4*>(
          tile + PieceOffset<Tile::kQueryRowBytes>(row, piece)) = words;
    }
    return;
  }
#pragma unroll 4
  for (int i = thread; i < problem.rows * Tile::kColumns; i += threads) {
    const int row = i / Tile::kColumns;
    const int column = i % Tile::kColumns;
    Bits bits = 0;
    if (column < problem.head_dim_qk) {
      bits = problem.template QueryRow<Bits>(
          row)[column * problem.entry.query_strides.dim];
    }
    *reinterpret_cast<Bits*>(
        tile +
        PieceOffset<Tile::kQueryRowBytes>(row, column * 2 / kPieceBytes) +
        column * 2 % kPieceBytes) =
        static_cast<Bits>(AdjustQueryWord<T>(how, bits));
  }
}

// Starts to copy the query rows of the block into `tile`, of a query that has
// pieces and that the scale does not change.
template <typename Tile>
__device__ void StartQueryTile(const BlockProblem& problem, uint8_t* tile,
                               int thread, int threads) {
#if __CUDA_ARCH__ >= 800
  using Bits = typename Element<typename Tile::T>::Bits;
  constexpr int kPieces = Tile::kQueryRowBytes / kPieceBytes;
  const int pieces = problem.head_dim_qk * 2 / kPieceBytes;
#pragma unroll 4
  for (int i = thread; i < Tile::kRows * kPieces; i += threads) {
    const int row = i / kPieces;
    const int piece = i % kPieces;
    const bool is_used = row < problem.rows && piece < pieces;
    const void* from = problem.entry.query;
    if (is_used) {
      from =
          reinterpret_cast<const uint4*>(problem.template QueryRow<Bits>(row)) +
          piece;
    }
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     SharedAddress(tile) +
                     PieceOffset<Tile::kQueryRowBytes>(row, piece)),
                 "l"(from), "r"(is_used ? kPieceBytes : 0)
                 : "memory");
  }
#endif
}

// Turns the first `rows` of a query tile of T into fp16, scaled by powers of
// two to about 1; `scales` undoes that.
template <typename Tile>
__device__ void NormalizeQueryTile(uint8_t* tile, float* scales, int rows,
                                   int warp, int warps) {
  using T = typename Tile::T;
  const int lane = threadIdx.x % 32;
  for (int row = warp; row < rows; row += warps) {
    const auto at = [&](int column) {
      return reinterpret_cast<uint16_t*>(
          tile +
          PieceOffset<Tile::kQueryRowBytes>(row, column * 2 / kPieceBytes) +
          column * 2 % kPieceBytes);
    };
    float largest = 0;
    for (int column = lane; column < Tile::kColumns; column += 32) {
      const float value = fabsf(Element<T>::ToFloat(*at(column)));
      if (isfinite(value)) largest = fmaxf(largest, value);
    }
    for (int step = 16; step > 0; step /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    }
    // 2^-126 and 2^126 are normal, and so are their inverses.
    const int exponent = largest > 0 ? min(max(ilogbf(largest), -126), 126) : 0;
    const float down = ldexpf(1.0f, -exponent);
    for (int column = lane; column < Tile::kColumns; column += 32) {
      *at(column) =
          Element<__half>::FromFloat(Element<T>::ToFloat(*at(column)) * down);
    }
    if (lane == 0) scales[row] = ldexpf(1.0f, exponent);
  }
}

}  // namespace attention::cuda::decode

#endif  // ATTENTION_KERNELS_CUDA_DECODE_QUERY_TILE_CUH_
