// The producer warpgroup of the e4m3 kernels: a thread that takes tiles from the
// list and copies their operands, and warps that transpose values.
#ifndef ATTENTION_KERNELS_CUDA_SM90_FLOAT8_FLOAT8_PRODUCER_CUH_
#define ATTENTION_KERNELS_CUDA_SM90_FLOAT8_FLOAT8_PRODUCER_CUH_

#include "kernels/cuda/portable/mma.cuh"
#include "kernels/cuda/sm90/float8/float8_tile.cuh"
#include "kernels/cuda/sm90/producer.cuh"

namespace attention::cuda::sm90 {

// Announces the tiles of this block, in the order in which it takes them, and
// copies for each the query, then keys and values in turn.
template <typename Tile>
__device__ void ScheduleAndLoad(const WorkList& list,
                                Float8Shared<Tile>& shared,
                                const Float8Memory<Tile>& memory) {
  RingPosition<Tile::kWorkSlots> work_ring;
  RingPosition<Tile::kQueryStages> query_ring;
  RingPosition<Tile::kStages> key_ring;
  uint32_t box_parity = 0;
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
    Barrier& query_full = shared.query_full[query_ring.stage];
    shared.query_empty[query_ring.stage].Wait(query_ring.parity ^ 1);
    query_full.ArriveAndExpect(Tile::kQueryBytes);
    CopyBox(memory.Query(query_ring.stage), sequence.query, query_full,
            kEvictFirst, 0, 0, work.first_row >> list.group_shift, work.head);
    query_ring.Advance();
#pragma unroll 1
    for (int step = work.end_step - 1; step >= work.first_step; --step) {
      Barrier& key_full = shared.key_full[key_ring.stage];
      shared.key_empty[key_ring.stage].Wait(key_ring.parity ^ 1);
      key_full.ArriveAndExpect(Tile::kKeyBytes);
#pragma unroll 1
      for (int box = 0; box < Tile::kBoxes; ++box) {
        CopyBox(memory.Key(key_ring.stage) + box * Tile::kBoxBytes,
                sequence.key, key_full, kEvictLast, 0,
                step * Tile::kBlockN + box * Tile::kBoxKeys, work.kv_head);
      }
      key_ring.Advance();
#pragma unroll 1
      for (int box = 0; box < Tile::kBoxes; ++box) {
        Barrier& box_full = shared.box_full[box];
        shared.box_empty[box].Wait(box_parity ^ 1);
        box_full.ArriveAndExpect(Tile::kBoxBytes);
        CopyBox(memory.Box(box), sequence.value, box_full, kEvictLast, 0,
                step * Tile::kBlockN + box * Tile::kBoxKeys, work.kv_head);
      }
      box_parity ^= 1;
    }
  }
}

// One warp of those that transpose values, each its box of a step.
template <typename Tile>
class Transposer {
 public:
  __device__ Transposer(Float8Shared<Tile>& shared,
                        const Float8Memory<Tile>& memory, int warp)
      : shared_(shared), memory_(memory), warp_(warp) {}

  __device__ void Run() {
    RingPosition<Tile::kWorkSlots> work_ring;
    RingPosition<Tile::kStages> ring;
    uint32_t box_parity = 0;
    while (true) {
      shared_.work_full[work_ring.stage].Wait(work_ring.parity);
      const TileWork& work = shared_.work[work_ring.stage];
      if (work.sequence < 0) return;
#pragma unroll 1
      for (int step = work.end_step - 1; step >= work.first_step; --step) {
        shared_.value_empty[ring.stage].Wait(ring.parity ^ 1);
        shared_.box_full[warp_].Wait(box_parity);
        box_parity ^= 1;
        const uint32_t panel =
            memory_.Value(ring.stage) + warp_ * Tile::kValuePanelBytes;
        if (work.IsMixed(step)) {
          const bool found =
              __any_sync(0xffffffffu, TransposeBox<true>(panel));
          if (Lane() == 0) shared_.has_nan_value[ring.stage][warp_] = found;
        } else {
          TransposeBox<false>(panel);
        }
        FenceAsyncProxy();
        ArriveByWarp(shared_.box_empty[warp_], shared_.value_full[ring.stage]);
        ring.Advance();
      }
      ArriveByWarp(shared_.work_empty[work_ring.stage]);
      work_ring.Advance();
    }
  }

 private:
  static __device__ int Lane() { return threadIdx.x % 32; }

  // Transposes the box of this warp. Of each 16 dimensions, those with even
  // numbers stand before the odd ones. Returns whether this thread found NaN,
  // if it is to look for that.
  template <bool kInspect>
  __device__ __forceinline__ bool TransposeBox(uint32_t panel) {
    // Lane 8 i + r has the addresses of the rows r of matrices i: of key 8 i + r,
    // and of dimension 8 (i % 2) + r at keys from 16 (i / 2).
    const int matrix = Lane() / 8, row = Lane() % 8;
    const uint32_t from =
        memory_.Box(warp_) + Lane() * kPanelWidthBytes + row * 16;
    const uint32_t to = panel + (matrix % 2 * 8 + row) * Tile::kBoxKeys +
                  ((matrix / 2 ^ row / 2) * 16);
    uint32_t nan = 0;
    constexpr int kBatch = 4;  // under way at the same time
#pragma unroll 1
    for (int batch = 0; batch < Tile::kValueDims / 16 / kBatch * 2; ++batch) {
      const int keys = batch % 2 * 32;
      const int dims = batch / 2 * kBatch;  // in 16s
      uint32_t m[kBatch][4];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        portable::LoadMatricesTransposed(
            m[i], (from ^ (dims + i) * 16) + keys * kPanelWidthBytes);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if constexpr (kInspect) {
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            nan |= (m[i][k] & 0x7f7f7f7fu) + 0x01010101u;
          }
        }
        StoreMatrices((to ^ keys) + (dims + i) * 16 * Tile::kBoxKeys,
                      __byte_perm(m[i][0], m[i][1], 0x6420),
                      __byte_perm(m[i][0], m[i][1], 0x7531),
                      __byte_perm(m[i][2], m[i][3], 0x6420),
                      __byte_perm(m[i][2], m[i][3], 0x7531));
      }
    }
    return (nan & 0x80808080u) != 0;
  }

  static __device__ void StoreMatrices(uint32_t address, uint32_t a, uint32_t b,
                                       uint32_t c, uint32_t d) {
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
            address),
        "r"(a), "r"(b), "r"(c), "r"(d)
        : "memory");
  }

  Float8Shared<Tile>& shared_;
  const Float8Memory<Tile>& memory_;
  const int warp_;
};

}  // namespace attention::cuda::sm90

#endif  // ATTENTION_KERNELS_CUDA_SM90_FLOAT8_FLOAT8_PRODUCER_CUH_
