// The shape of a tile of the sm_90 kernel, its shared memory, and what one tile
// is about.
#ifndef ATTENTION_KERNELS_CUDA_SM90_PREFILL_TILE_CUH_
#define ATTENTION_KERNELS_CUDA_SM90_PREFILL_TILE_CUH_

#include "kernels/cuda/sm90/async.cuh"
#include "kernels/cuda/sm90/wgmma.cuh"
#include "kernels/cuda/sm90/work_list.h"

namespace attention::cuda::sm90 {

// kWarpgroups_ warpgroups of 64 rows each against steps of kBlockN_ keys.
template <typename T, int kQueryDims_, int kValueDims_, int kWarpgroups_,
          int kBlockN_, int kQueryStages_>
struct PrefillTile {
  using Type = T;
  static constexpr int kQueryDims = kQueryDims_;
  static constexpr int kValueDims = kValueDims_;
  static constexpr int kWarpgroups = kWarpgroups_;
  static constexpr int kBlockM = 64 * kWarpgroups;
  static constexpr int kBlockN = kBlockN_;
  static constexpr int kStages = 2;  // of keys, and of values
  // Partial results take registers that three warpgroups do not have.
  static constexpr bool kTakesChunks = kWarpgroups < 3;
  static constexpr int kQueryStages = kQueryStages_;
  // Tiles announced: the one that ends, the one that begins, the one to come.
  static constexpr int kWorkSlots = 3;
  static constexpr int kConsumerThreads = 128 * kWarpgroups;
  static constexpr int kThreads = 128 + kConsumerThreads;

  // Registers of a thread, in eights. What a block is launched with is moved
  // from the producer to the consumers.
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kConsumerRegisters = kWarpgroups == 3 ? 160 : 232;
  static constexpr int kProducerRegisters =
      (kWarpgroups + 1) * kLaunchRegisters - kWarpgroups * kConsumerRegisters;

  static constexpr int kPanelColumns = kPanelWidthBytes / sizeof(T);
  static constexpr int kQueryPanels =
      (kQueryDims + kPanelColumns - 1) / kPanelColumns;
  static constexpr int kValuePanels =
      (kValueDims + kPanelColumns - 1) / kPanelColumns;
  static constexpr int kQueryPanelBytes = kBlockM * kPanelWidthBytes;
  static constexpr int kKeyPanelBytes = kBlockN * kPanelWidthBytes;
  static constexpr int kQueryBytes = kQueryPanels * kQueryPanelBytes;
  static constexpr int kKeyBytes = kQueryPanels * kKeyPanelBytes;
  static constexpr int kValueBytes = kValuePanels * kKeyPanelBytes;
  static constexpr int kOperandBytes =
      kQueryStages * kQueryBytes + kStages * (kKeyBytes + kValueBytes);
};

// One tile, as the scheduler announces it.
struct alignas(16) TileWork {
  int32_t sequence;  // -1: there are no more tiles
  int32_t head;      // of the query's map
  int32_t kv_head;
  int32_t chunk;  // -1: all keys
  // Steps of keys that some row sees, [first, end); those in the middle of
  // which all rows see all keys; and those of which all rows see the same,
  // which takes in the last step, with fewer keys, where rows do not differ in
  // it. What describes a step is read at once.
  int32_t first_step;
  int32_t first_full_step, end_full_step;
  int32_t end_uniform_step;
  int32_t end_step;
  int32_t first_row;
  // The mask: query i sees the keys from i + lower to i + upper, up to key_end.
  int32_t lower, upper, key_end;
  // Of the sequence, which lies further away.
  int32_t rows;
  float factor;
  void* output;
  int64_t output_token_stride, output_head_stride;
  float* log_sum_exp;
  int64_t log_sum_exp_token_stride, log_sum_exp_head_stride;

  __device__ bool IsEmpty() const { return first_step >= end_step; }
  // Whether some row does not see some key of the step.
  __device__ bool IsMasked(int step) const {
    return step < first_full_step || step >= end_full_step;
  }
  // Whether rows differ in the keys of the step that they see.
  __device__ bool IsMixed(int step) const {
    return step < first_full_step || step >= end_uniform_step;
  }

  // What is known of a step, in one register.
  enum StepKind : int {
    kIsFirst = 1,   // of the tile
    kIsMasked = 2,  // some row does not see some key
    kIsMixed = 4,
  };
  __device__ __forceinline__ int KindOf(int step) const {
    const int early = step < first_full_step ? kIsMasked | kIsMixed : 0;
    return (step == first_step ? kIsFirst : 0) | early |
           (step >= end_full_step ? kIsMasked : 0) |
           (step >= end_uniform_step ? kIsMixed : 0);
  }

  // The keys that a query sees, relative to `first_key`: [begin, end), which
  // may lie outside of a step.
  struct Columns {
    int begin, end;
  };
  __device__ __forceinline__ Columns VisibleColumns(int query,
                                                    int first_key) const {
    return {max(query + lower, 0) - first_key,
            min(query + upper + 1, key_end) - first_key};
  }
};

template <typename Tile>
struct PrefillShared {
  Barrier query_full[Tile::kQueryStages], query_empty[Tile::kQueryStages];
  Barrier key_full[Tile::kStages], key_empty[Tile::kStages];
  Barrier value_full[Tile::kStages], value_empty[Tile::kStages];
  Barrier value_inspected[Tile::kStages];
  Barrier work_full[Tile::kWorkSlots], work_empty[Tile::kWorkSlots];
  TileWork work[Tile::kWorkSlots];
  bool has_non_finite_value[Tile::kStages];  // of inspected, mixed steps

  __device__ void Init() {
    constexpr int kConsumers = 4 * Tile::kWarpgroups * kWarpArrivals;
    for (int i = 0; i < Tile::kQueryStages; ++i) {
      query_full[i].Init(1);
      query_empty[i].Init(kConsumers);
    }
    for (int i = 0; i < Tile::kStages; ++i) {
      key_full[i].Init(1);
      key_empty[i].Init(kConsumers);
      value_full[i].Init(1);
      value_inspected[i].Init(kWarpArrivals);
      value_empty[i].Init(kConsumers + kWarpArrivals);  // and the inspector
    }
    for (int i = 0; i < Tile::kWorkSlots; ++i) {
      work_full[i].Init(1);
      // And the inspector and two loaders, a thread each.
      work_empty[i].Init(kConsumers + kWarpArrivals + 2);
    }
    FenceBarrierInit();
  }
};

// Addresses of the operands in dynamic shared memory.
template <typename Tile>
struct OperandMemory {
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
};

}  // namespace attention::cuda::sm90

#endif  // ATTENTION_KERNELS_CUDA_SM90_PREFILL_TILE_CUH_
