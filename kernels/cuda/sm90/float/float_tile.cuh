// The shape of a tile of the fp32 kernels and its shared memory.
//
// Precision::kTf32 multiplies queries and keys as tensor copies write them,
// which round them; values, of which products want keys along the row, are
// transposed first. Precision::kIeee splits all of them (split.cuh) and
// multiplies bf16. What warps have to prepare so, arrives in boxes of 64 rows
// of 32 numbers.
#ifndef ATTENTION_KERNELS_CUDA_SM90_FLOAT_FLOAT_TILE_CUH_
#define ATTENTION_KERNELS_CUDA_SM90_FLOAT_FLOAT_TILE_CUH_

#include "kernels/cuda/sm90/float/split.cuh"
#include "kernels/cuda/sm90/prefill_tile.cuh"

namespace attention::cuda::sm90 {

// Two warpgroups of 64 rows each against steps of 64 keys.
template <Precision kPrecision, int kDims_, int kStages_, int kBoxSlots_>
struct FloatTile {
  static constexpr bool kIsSplit = kPrecision == Precision::kIeee;
  static constexpr int kParts = kIsSplit ? kSplitParts : 1;
  static constexpr int kQueryDims = kDims_;
  static constexpr int kValueDims = kDims_;
  static constexpr int kWarpgroups = 2;
  static constexpr int kBlockM = 64 * kWarpgroups;
  static constexpr int kBlockN = 64;
  static constexpr int kStages = kStages_;  // of keys, and of values
  static constexpr int kWorkSlots = 4;      // tiles that the scheduler is ahead
  static constexpr int kConsumerThreads = 128 * kWarpgroups;
  static constexpr int kThreads = 128 + kConsumerThreads;
  static constexpr int kPreparers = 3;  // warps
  // Of the 64 rows of an operand: more than there are warps, so that each has
  // one.
  static constexpr int kShares = 4;

  static constexpr int kConsumerRegisters = 216;
  static constexpr int kProducerRegisters = 72;

  // Rows of all boxes and panels are 64.
  static constexpr int kBoxRows = 64;
  static constexpr int kBoxColumns = 32;
  static constexpr int kPanelBytes = kBoxRows * kPanelWidthBytes;
  static constexpr int kBoxes = kDims_ / kBoxColumns;  // of 64 rows
  static constexpr int kBoxShares = kShares / kBoxes;
  static constexpr int kPanels = kDims_ / 64;
  static constexpr int kBoxSlots = kBoxSlots_;
  static constexpr int kTransposedPanelBytes = kDims_ * kPanelWidthBytes;
  static constexpr int kPartBytes = kPanels * kPanelBytes;
  static constexpr int kOperandBytes =  // of 64 rows
      kIsSplit ? kParts * kPartBytes : kBoxes * kPanelBytes;
  static constexpr int kSharedBytes =
      kBoxSlots * kPanelBytes + (kWarpgroups + 2 * kStages) * kOperandBytes;
};

template <typename Tile>
struct FloatShared {
  Barrier box_full[Tile::kBoxSlots], box_empty[Tile::kBoxSlots];
  Barrier query_full[Tile::kWarpgroups], query_empty[Tile::kWarpgroups];
  Barrier key_full[Tile::kStages], key_empty[Tile::kStages];
  Barrier value_full[Tile::kStages], value_empty[Tile::kStages];
  Barrier work_full[Tile::kWorkSlots], work_empty[Tile::kWorkSlots];
  TileWork work[Tile::kWorkSlots];
  bool has_non_finite_value[Tile::kStages][Tile::kShares];

  __device__ void Init() {
    constexpr int kConsumers = 4 * Tile::kWarpgroups * kWarpArrivals;
    constexpr int kShares = Tile::kShares * kWarpArrivals;
    for (int i = 0; i < Tile::kBoxSlots; ++i) {
      box_full[i].Init(1);
      box_empty[i].Init(Tile::kBoxShares * kWarpArrivals);
    }
    for (int i = 0; i < Tile::kWarpgroups; ++i) {
      query_full[i].Init(Tile::kIsSplit ? kShares : 1);
      query_empty[i].Init(4 * kWarpArrivals);
    }
    for (int i = 0; i < Tile::kStages; ++i) {
      key_full[i].Init(Tile::kIsSplit ? kShares : 1);
      key_empty[i].Init(kConsumers);
      value_full[i].Init(kShares);
      value_empty[i].Init(kConsumers);
    }
    for (int i = 0; i < Tile::kWorkSlots; ++i) {
      work_full[i].Init(1);
      work_empty[i].Init(kConsumers + Tile::kPreparers * kWarpArrivals);
    }
    FenceBarrierInit();
  }
};

// Addresses in dynamic shared memory. Where operands are split, parts of
// queries and values lie one after the other, each in panels of 64 columns;
// each panel of keys has the rows of all of its parts, so that one product
// takes those of two.
template <typename Tile>
struct FloatMemory {
  uint32_t base;

  __device__ uint32_t Box(int slot) const {
    return base + slot * Tile::kPanelBytes;
  }
  __device__ uint32_t Query(int warpgroup) const {
    return Box(Tile::kBoxSlots) + warpgroup * Tile::kOperandBytes;
  }
  __device__ uint32_t Key(int stage) const {
    return Query(Tile::kWarpgroups) + stage * Tile::kOperandBytes;
  }
  __device__ uint32_t Value(int stage) const {
    return Key(Tile::kStages) + stage * Tile::kOperandBytes;
  }
};

}  // namespace attention::cuda::sm90

#endif  // ATTENTION_KERNELS_CUDA_SM90_FLOAT_FLOAT_TILE_CUH_
