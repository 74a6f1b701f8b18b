// The shape of a tile of the e4m3 kernels and its shared memory.
//
// Products of 8-bit numbers want both operands along the reduction: queries and
// keys are multiplied as tensor copies write them, values are transposed first.
#ifndef ATTENTION_KERNELS_CUDA_SM90_FLOAT8_FLOAT8_TILE_CUH_
#define ATTENTION_KERNELS_CUDA_SM90_FLOAT8_FLOAT8_TILE_CUH_

#include "kernels/cuda/sm90/prefill_tile.cuh"

namespace attention::cuda::sm90 {

// Two warpgroups of 64 rows each against steps of 192 keys. Head dimensions are
// at most kDims_, at most 128: one panel.
template <int kDims_>
struct Float8Tile {
  static constexpr int kQueryDims = kDims_;
  static constexpr int kValueDims = kDims_;
  static constexpr int kWarpgroups = 2;
  static constexpr int kBlockM = 64 * kWarpgroups;
  static constexpr int kStages = 2;  // of keys, and of transposed values
  static constexpr int kQueryStages = 2;
  static constexpr int kWorkSlots = 4;  // tiles that the scheduler is ahead
  static constexpr bool kTakesChunks = false;
  static constexpr int kConsumerThreads = 128 * kWarpgroups;
  static constexpr int kThreads = 128 + kConsumerThreads;
  static constexpr int kConsumerRegisters = 232;
  static constexpr int kProducerRegisters = 40;

  static constexpr int kPanelColumns = kPanelWidthBytes;
  static constexpr int kQueryBytes = kBlockM * kPanelWidthBytes;

  // Values arrive in boxes of some keys, each the work of one warp, which makes
  // a panel of it: a row for each dimension, of a byte for each key.
  static constexpr int kBoxKeys = 64;
  static constexpr int kBoxes = 3;  // of a step
  static constexpr int kBlockN = kBoxes * kBoxKeys;
  static constexpr int kBoxBytes = kBoxKeys * kPanelWidthBytes;
  static constexpr int kKeyBytes = kBoxes * kBoxBytes;
  static constexpr int kValuePanelBytes = kValueDims * kBoxKeys;
  static constexpr int kValueBytes = kBoxes * kValuePanelBytes;

  // Tensor cores keep some 14 bits of sums: after so many steps a sum is added
  // to one in fp32, which lies in shared memory.
  static constexpr int kStepsPerSum = 8;
  static constexpr int
      kSumBytes =  // of a warpgroup, and what it is relative to
      64 * kValueDims * 4 + 128 * 8;

  static constexpr int kSharedBytes =
      kQueryStages * kQueryBytes + kStages * (kKeyBytes + kValueBytes) +
      kBoxes * kBoxBytes + kWarpgroups * kSumBytes;
};

template <typename Tile>
struct Float8Shared {
  Barrier query_full[Tile::kQueryStages], query_empty[Tile::kQueryStages];
  Barrier key_full[Tile::kStages], key_empty[Tile::kStages];
  Barrier box_full[Tile::kBoxes], box_empty[Tile::kBoxes];
  Barrier value_full[Tile::kStages], value_empty[Tile::kStages];
  Barrier turn[Tile::kWarpgroups];
  Barrier work_full[Tile::kWorkSlots], work_empty[Tile::kWorkSlots];
  TileWork work[Tile::kWorkSlots];
  bool has_nan_value[Tile::kStages][Tile::kBoxes];  // of mixed steps

  __device__ void Init() {
    constexpr int kConsumers = 4 * Tile::kWarpgroups * kWarpArrivals;
    constexpr int kTransposers = Tile::kBoxes * kWarpArrivals;
    for (int i = 0; i < Tile::kQueryStages; ++i) {
      query_full[i].Init(1);
      query_empty[i].Init(kConsumers);
    }
    for (int i = 0; i < Tile::kBoxes; ++i) {
      box_full[i].Init(1);
      box_empty[i].Init(kWarpArrivals);
    }
    for (int i = 0; i < Tile::kStages; ++i) {
      key_full[i].Init(1);
      key_empty[i].Init(kConsumers);
      value_full[i].Init(kTransposers);
      value_empty[i].Init(kConsumers);
    }
    for (Barrier& barrier : turn) barrier.Init(4 * kWarpArrivals);
    for (int i = 0; i < Tile::kWorkSlots; ++i) {
      work_full[i].Init(1);
      work_empty[i].Init(kConsumers + kTransposers);
    }
    FenceBarrierInit();
  }
};

// Addresses in dynamic shared memory.
template <typename Tile>
struct Float8Memory {
  uint32_t base;

  __device__ uint32_t Query(int stage) const {
    return base + stage * Tile::kQueryBytes;
  }
  __device__ uint32_t Key(int stage) const {
    return Query(Tile::kQueryStages) + stage * Tile::kKeyBytes;
  }
  __device__ uint32_t Value(int stage) const {
    return Key(Tile::kStages) + stage * Tile::kValueBytes;
  }
  __device__ uint32_t Box(int box) const {
    return Value(Tile::kStages) + box * Tile::kBoxBytes;
  }
  __device__ uint32_t Sum(int warpgroup) const {
    return Box(Tile::kBoxes) + warpgroup * Tile::kSumBytes;
  }
};

// Where the value of a key stands in a panel of transposed values, in bytes.
// Within a row, keys stand as the threads that have their weights multiply
// them: of 16 keys, a thread has weights 2 t, 2 t + 1, 2 t + 8 and 2 t + 9, and
// multiplies 4 t...4 t + 3.
inline __device__ int ValueOffset(int row, int key) {
  const int position = key % 8 / 2 * 4 + key % 16 / 8 * 2 + key % 2;
  return row * 64 + ((key / 16 ^ row / 2 % 4) * 16) + position;
}

}  // namespace attention::cuda::sm90

#endif  // ATTENTION_KERNELS_CUDA_SM90_FLOAT8_FLOAT8_TILE_CUH_
