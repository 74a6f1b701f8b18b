// The producer warpgroup of the fp32 kernels: a thread that takes tiles from
// list and copies their operands, and warps that split or transpose them.
#ifndef ATTENTION_KERNELS_CUDA_SM90_FLOAT_FLOAT_PRODUCER_CUH_
#define ATTENTION_KERNELS_CUDA_SM90_FLOAT_FLOAT_PRODUCER_CUH_

#include "kernels/cuda/sm90/float/float_tile.cuh"
#include "kernels/cuda/sm90/float/split.cuh"
#include "kernels/cuda/sm90/non_finite.cuh"
#include "kernels/cuda/sm90/producer.cuh"

namespace attention::cuda::sm90 {

// Copies the boxes of 64 rows. copy(address, barrier, first_column) starts one.
template <typename Tile, typename Copy>
__device__ __forceinline__ void CopyBoxes(FloatShared<Tile>& shared,
                                          const FloatMemory<Tile>& memory,
                                          RingPosition<Tile::kBoxSlots>& ring,
                                          Copy copy) {
#pragma unroll 1
  for (int box = 0; box < Tile::kBoxes; ++box) {
    Barrier& full = shared.box_full[ring.stage];
    shared.box_empty[ring.stage].Wait(ring.parity ^ 1);
    full.ArriveAndExpect(Tile::kPanelBytes);
    copy(memory.Box(ring.stage), full, box * Tile::kBoxColumns);
    ring.Advance();
  }
}

// As CopyBoxes, but to where they are multiplied.
template <typename Tile, typename Copy>
__device__ __forceinline__ void CopyOperand(uint32_t operand, Barrier& full,
                                            Barrier& empty,
                                            uint32_t empty_parity, Copy copy) {
  empty.Wait(empty_parity);
  full.ArriveAndExpect(Tile::kOperandBytes);
#pragma unroll 1
  for (int box = 0; box < Tile::kBoxes; ++box) {
    copy(operand + box * Tile::kPanelBytes, full, box * Tile::kBoxColumns);
  }
}

// Announces the tiles of this block, in the order in which it takes them, and
// copies for each the query, then keys and values in turn.
template <typename Tile>
__device__ void ScheduleAndLoad(const WorkList& list, FloatShared<Tile>& shared,
                                const FloatMemory<Tile>& memory) {
  RingPosition<Tile::kWorkSlots> work_ring;
  RingPosition<Tile::kBoxSlots> ring;
  RingPosition<1> query_ring;
  RingPosition<Tile::kStages> key_ring;
  int32_t tile = blockIdx.x;
  while (true) {
    shared.work_empty[work_ring.stage].Wait(work_ring.parity ^ 1);
    TileWork& work = shared.work[work_ring.stage];
    const bool is_last = tile >= list.tile_count;
    if (is_last) {
      work.sequence = -1;
    } else {
      DescribeTile<Tile>(list, tile, work);
    }
    shared.work_full[work_ring.stage].Arrive();
    work_ring.Advance();
    if (is_last) return;
    // Claims are as many as tiles, the last of each block included, which wraps
    // the counter to 0 for the next launch.
    tile = gridDim.x + atomicInc(list.counter, list.tile_count - 1);

    const PrefillSequence& sequence = list.Get(work.sequence);
#pragma unroll 1
    for (int i = 0; i < Tile::kWarpgroups; ++i) {
      const int first_row = work.first_row + i * Tile::kBoxRows;
      const auto copy = [&](uint32_t address, const Barrier& full, int column) {
        CopyBox(address, sequence.query, full, kEvictFirst, column, 0,
                first_row >> list.group_shift, work.head);
      };
      if constexpr (!Tile::kIsSplit) {
        CopyOperand<Tile>(memory.Query(i), shared.query_full[i],
                          shared.query_empty[i], query_ring.parity ^ 1, copy);
      } else {
        CopyBoxes(shared, memory, ring, copy);
      }
    }
    query_ring.Advance();
#pragma unroll 1
    for (int step = work.end_step - 1; step >= work.first_step; --step) {
      const int key = step * Tile::kBlockN;
      const auto copy = [&](uint32_t address, const Barrier& full, int column) {
        CopyBox(address, sequence.key, full, kEvictLast, column, key,
                work.kv_head);
      };
      if constexpr (!Tile::kIsSplit) {
        CopyOperand<Tile>(
            memory.Key(key_ring.stage), shared.key_full[key_ring.stage],
            shared.key_empty[key_ring.stage], key_ring.parity ^ 1, copy);
        key_ring.Advance();
      } else {
        CopyBoxes(shared, memory, ring, copy);
      }
      CopyBoxes(shared, memory, ring,
                [&](uint32_t address, const Barrier& full, int column) {
                  CopyBox(address, sequence.value, full, kEvictLast, column,
                          key, work.kv_head);
                });
    }
  }
}

// One warp of those that take turns at boxes.
template <typename Tile>
class Preparer {
 public:
  static constexpr int kParts = Tile::kParts;

  __device__ Preparer(FloatShared<Tile>& shared,
                      const FloatMemory<Tile>& memory, int warp)
      : shared_(shared), memory_(memory), warp_(warp) {}

  __device__ void Run() {
    RingPosition<Tile::kWorkSlots> work_ring;
    RingPosition<1> query_ring;
    RingPosition<Tile::kStages> ring;
    while (true) {
      shared_.work_full[work_ring.stage].Wait(work_ring.parity);
      const TileWork& work = shared_.work[work_ring.stage];
      if (work.sequence < 0) return;
      if constexpr (Tile::kIsSplit) {
#pragma unroll 1
        for (int i = 0; i < Tile::kWarpgroups; ++i) {
          ForEachShare(shared_.query_full[i], shared_.query_empty[i],
                       query_ring.parity ^ 1, [&](int share) {
                         SplitShare(share, memory_.Query(i), kApart);
                       });
        }
        query_ring.Advance();
      }
#pragma unroll 1
      for (int step = work.end_step - 1; step >= work.first_step; --step) {
        if constexpr (Tile::kIsSplit) {
          ForEachShare(shared_.key_full[ring.stage],
                       shared_.key_empty[ring.stage], ring.parity ^ 1,
                       [&](int share) {
                         SplitShare(share, memory_.Key(ring.stage), kTogether);
                       });
        }
        ForEachShare(
            shared_.value_full[ring.stage], shared_.value_empty[ring.stage],
            ring.parity ^ 1, [&](int share) {
              bool found = false;
              if constexpr (Tile::kIsSplit) {
                found = SplitShare(share, memory_.Value(ring.stage), kApart);
              } else {
                found = TransposeShare(share, memory_.Value(ring.stage),
                                       work.IsMixed(step));
              }
              found = __any_sync(0xffffffffu, found);
              if (Lane() == 0) {
                shared_.has_non_finite_value[ring.stage][share] = found;
              }
            });
        ring.Advance();
      }
      ArriveByWarp(shared_.work_empty[work_ring.stage]);
      work_ring.Advance();
    }
  }

 private:
  static constexpr int kShareRows = Tile::kBoxRows / Tile::kBoxShares;

  static __device__ int Lane() { return threadIdx.x % 32; }

  // Distances, in bytes, of the parts and of the panels of an operand.
  struct Layout {
    int part, panel;
  };
  static constexpr Layout kApart = {Tile::kPartBytes, Tile::kPanelBytes};
  static constexpr Layout kTogether = {Tile::kPanelBytes,
                                       kParts* Tile::kPanelBytes};

  // Calls on_share(share) for this warp's shares of an operand.
  template <typename OnShare>
  __device__ __forceinline__ void ForEachShare(Barrier& full, Barrier& empty,
                                               uint32_t empty_parity,
                                               OnShare on_share) {
#pragma unroll 1
    for (int share = 0; share < Tile::kShares; ++share) {
      if (turn_ == warp_) {
        // Copies may arrive out of order: the box before in this slot can still
        // be on its way, and its phase would be taken for the next.
        shared_.box_empty[ring_.stage].Wait(ring_.parity ^ 1);
        shared_.box_full[ring_.stage].Wait(ring_.parity);
        empty.Wait(empty_parity);
        on_share(share);
        FenceAsyncProxy();
        ArriveByWarp(shared_.box_empty[ring_.stage], full);
      }
      if ((share + 1) % Tile::kBoxShares == 0) ring_.Advance();
      turn_ = turn_ + 1 == Tile::kPreparers ? 0 : turn_ + 1;
    }
  }

  // Splits rows of a box. Returns whether this thread found a number that is
  // not finite.
  __device__ __forceinline__ bool SplitShare(int share, uint32_t operand,
                                             Layout layout) {
    const int box = share / Tile::kBoxShares;
    const int first_row = share % Tile::kBoxShares * kShareRows;
    // Neighbouring fours of lanes have rows whose chunks lie in different
    // banks, in the box and in the panel.
    const int four = Lane() / 4;
    const int row = four ^ (four & 1) * 4;
    const int column = Lane() % 4;  // in units of 8 numbers
    const uint32_t from =
        memory_.Box(ring_.stage) + (first_row + row) * kPanelWidthBytes;
    const uint32_t first = from + ((2 * column ^ row) * 16);
    const uint32_t second = from + (((2 * column + 1) ^ row) * 16);
    const uint32_t to = operand + box / 2 * layout.panel +
                        (first_row + row) * kPanelWidthBytes +
                        (((box % 2 * 4 + column) ^ row) * 16);
    bool found = false;
#pragma unroll 2
    for (int offset = 0; offset < kShareRows * kPanelWidthBytes;
         offset += 8 * kPanelWidthBytes) {
      const uint4 a = LoadShared(first + offset);
      const uint4 b = LoadShared(second + offset);
      const uint32_t bits[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
      uint32_t word[4][kParts];
      float rest = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        rest += SplitPair(__uint_as_float(bits[2 * i]),
                          __uint_as_float(bits[2 * i + 1]), word[i]);
      }
      if (rest != rest) {
        found = true;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          if (portable::Element<float>::NonFinite(bits[i])) {
            SplitNonFinite(bits[i], i % 2, word[i / 2]);
          }
        }
      }
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        StoreShared(to + offset + part * layout.part,
                    make_uint4(word[0][part], word[1][part], word[2][part],
                               word[3][part]));
      }
    }
    return found;
  }

  // Transposes rows of a box, 32 of which become a panel with 32 columns. In
  // eights, even keys stand before odd ones: the weights' accumulator then is
  // the operand. Returns whether this thread found a value that is not finite,
  // if it is to look for that.
  __device__ __forceinline__ bool TransposeShare(int share, uint32_t operand,
                                                 bool inspect) {
    const int box = share / Tile::kBoxShares;
    const int first_panel = share % Tile::kBoxShares;
    // Lanes have the 16-byte chunk `chunk` of the new rows 4 * quad + {0...3}.
    const int chunk = Lane() % 8;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4 / Tile::kBoxShares; ++i) {
      const int panel = first_panel + i / 2;
      const int quad = (chunk & 6) ^ (Lane() / 8 + i % 2 * 4);
      const int first_key = chunk / 2 * 8 + chunk % 2;
      const uint32_t from = memory_.Box(ring_.stage) +
                            (panel * 32 + first_key) * kPanelWidthBytes;
      uint4 v[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        v[k] = LoadShared(from + 2 * k * kPanelWidthBytes +
                          ((quad ^ (chunk % 2 + 2 * k)) * 16));
        if (inspect) {
          sum = fmaf(__uint_as_float(v[k].x), 0.0f, sum);
          sum = fmaf(__uint_as_float(v[k].y), 0.0f, sum);
          sum = fmaf(__uint_as_float(v[k].z), 0.0f, sum);
          sum = fmaf(__uint_as_float(v[k].w), 0.0f, sum);
        }
      }
      const int row = box * Tile::kBoxColumns + quad * 4;
      const uint32_t to = operand + panel * Tile::kTransposedPanelBytes +
                          row * kPanelWidthBytes;
      const int swizzle = chunk ^ quad % 2 * 4;
      StoreShared(to + (swizzle * 16),
                  make_uint4(v[0].x, v[1].x, v[2].x, v[3].x));
      StoreShared(to + kPanelWidthBytes + ((swizzle ^ 1) * 16),
                  make_uint4(v[0].y, v[1].y, v[2].y, v[3].y));
      StoreShared(to + 2 * kPanelWidthBytes + ((swizzle ^ 2) * 16),
                  make_uint4(v[0].z, v[1].z, v[2].z, v[3].z));
      StoreShared(to + 3 * kPanelWidthBytes + ((swizzle ^ 3) * 16),
                  make_uint4(v[0].w, v[1].w, v[2].w, v[3].w));
    }
    return sum != sum;
  }

  static __device__ void StoreShared(uint32_t address, uint4 v) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address),
                 "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
  }

  FloatShared<Tile>& shared_;
  const FloatMemory<Tile>& memory_;
  const int warp_;
  RingPosition<Tile::kBoxSlots> ring_;
  int turn_ = 0;  // the warp that has the next share
};

}  // namespace attention::cuda::sm90

#endif  // ATTENTION_KERNELS_CUDA_SM90_FLOAT_FLOAT_PRODUCER_CUH_
