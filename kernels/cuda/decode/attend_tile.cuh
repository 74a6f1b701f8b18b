// A tile of keys, and a block's rows, in shared memory: how large they are and
// where their pieces lie, for 16-bit types and sm_80 and later.
//
// Rows of a tile follow each other without padding: the 16-byte pieces of a row
// change places with the row's number (StoredPiece), so that eight rows of one
// column are in different banks. With few rows the warps share the keys of a
// tile and merge in the end; with many, each warp has rows of its own.
#ifndef ATTENTION_KERNELS_CUDA_DECODE_ATTEND_TILE_CUH_
#define ATTENTION_KERNELS_CUDA_DECODE_ATTEND_TILE_CUH_

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/decode/block_problem.cuh"
#include "kernels/cuda/decode/page_geometry.h"
#include "kernels/cuda/decode/table.h"
#include "kernels/cuda/portable/element.cuh"

namespace attention::cuda::decode {

// Where a piece of a row of kRowBytes lies in shared memory.
template <int kRowBytes>
__device__ constexpr int PieceOffset(int row, int piece) {
  return row * kRowBytes + StoredPiece(kRowBytes, row, piece) * kPieceBytes;
}

template <typename T_, bool kFloat8_, bool kManyRows_, int kColumns_,
          int kStages_, int kMinBlocks_>
struct AttendTile {
  using T = T_;  // of query and output
  // Of products: fp16 holds e4m3 exactly, and weights better than bf16 does.
  using Operand = std::conditional_t<kFloat8_, __half, T_>;
  static constexpr bool kFloat8 = kFloat8_;
  static constexpr bool kManyRows = kManyRows_;
  static constexpr int kColumns = kColumns_;  // bounds both head dimensions
  static constexpr int kStages = kStages_;
  static constexpr int kMinBlocks = kMinBlocks_;  // per multiprocessor
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kRows = kManyRows ? kManyRowsTile : kFewRowsTile;
  static constexpr int kKeys = BlockProblem::kTileKeys;
  // Large heads leave no registers for the scores of a whole tile.
  static constexpr int kPasses = kManyRows && kColumns > 128 ? 2 : 1;
  static constexpr int kPassKeys = kKeys / kPasses;
  static constexpr int kWarpKeys = kManyRows ? kPassKeys : kPassKeys / kWarps;
  static constexpr int kQueryRowBytes = kColumns * 2;
  static constexpr int kRowBytes = kColumns * (kFloat8 ? 1 : 2);
  static constexpr int kTileBytes = kKeys * kRowBytes;  // of K, and of V
  static constexpr int kQueryBytes = kRows * kQueryRowBytes;
  static constexpr int kStageBytes = 2 * kTileBytes;
  // What warps that share rows merge their accumulators in.
  static constexpr int kMergeBytes =
      kManyRows ? 0 : kWarps * kRows * kColumns * 4;
  // Larger heads leave no registers for the query.
  static constexpr bool kQueryInRegisters = kColumns <= 128;
};

// Barriers of the kWarps warps that compute, the block's first ones.
template <typename Tile>
__device__ void SyncWarps() {
  asm volatile("bar.sync 1, %0;" ::"n"(Tile::kThreads) : "memory");
}
template <typename Tile>
__device__ bool AnyOfWarps(bool value) {
  int any;
  asm volatile(
      "{ .reg .pred p; setp.ne.s32 p, %1, 0;\n"
      "bar.red.or.pred p, 1, %2, p;\n"
      "selp.s32 %0, 1, 0, p; }"
      : "=r"(any)
      : "r"(static_cast<int>(value)), "n"(Tile::kThreads)
      : "memory");
  return any != 0;
}

}  // namespace attention::cuda::decode

#endif  // ATTENTION_KERNELS_CUDA_DECODE_ATTEND_TILE_CUH_
