// The producer warpgroup of the sm_90 kernel. One warp each: a scheduler takes
// tiles from the list, two loaders keep the copies of their operands ahead of
// the consumers, and an inspector looks for values that a weight of 0 would not
// hide.
#ifndef ATTENTION_KERNELS_CUDA_SM90_PRODUCER_CUH_
#define ATTENTION_KERNELS_CUDA_SM90_PRODUCER_CUH_

#include <climits>

#include "kernels/cuda/sm90/non_finite.cuh"
#include "kernels/cuda/sm90/prefill_tile.cuh"

namespace attention::cuda::sm90 {

// Sets all but the slot of `work`, and makes the maps of its sequence usable.
template <typename Tile>
__device__ void DescribeTile(const WorkList& list, int32_t tile,
                             TileWork& work) {
  const TileRun& run = list.Find(tile);
  const PrefillSequence& sequence = list.Get(run.sequence);
  work.sequence = run.sequence;
  work.head = run.first_head + tile - run.first_tile;
  work.kv_head = work.head / list.heads_per_kv;
  work.chunk = run.chunk;
  work.first_row = run.first_row;
  const int32_t last_row =
      min(run.first_row + Tile::kBlockM, sequence.rows) - 1;
  const int32_t first_query = run.first_row >> list.group_shift;
  const int32_t last_query = last_row >> list.group_shift;
  // Keys that some row sees, and those that all rows see.
  const int32_t begin = max(first_query + sequence.lower, 0);
  const int32_t end = min(last_query + sequence.upper + 1, sequence.key_end);
  const int32_t full_begin = max(last_query + sequence.lower, 0);
  const int32_t full_end =
      max(min(first_query + sequence.upper + 1, sequence.key_end), 0);
  constexpr int32_t kBlockN = Tile::kBlockN;
  const bool is_empty = begin >= end;
  work.first_step = is_empty ? 0 : begin / kBlockN;
  work.end_step = is_empty ? 0 : (end + kBlockN - 1) / kBlockN;
  if (run.chunk >= 0) {
    const int32_t first = run.chunk * sequence.chunk_steps;
    work.first_step = max(work.first_step, first);
    work.end_step = min(work.end_step, first + sequence.chunk_steps);
  }
  work.first_full_step = (full_begin + kBlockN - 1) / kBlockN;
  work.end_full_step = full_end / kBlockN;
  work.end_uniform_step =
      full_end == sequence.key_end ? INT_MAX : work.end_full_step;
  work.lower = sequence.lower;
  work.upper = sequence.upper;
  work.key_end = sequence.key_end;
  work.rows = sequence.rows;
  work.factor = sequence.factor;
  work.output = sequence.output;
  work.output_token_stride = sequence.output_token_stride;
  work.output_head_stride = sequence.output_head_stride;
  work.log_sum_exp = sequence.log_sum_exp;
  work.log_sum_exp_token_stride = sequence.log_sum_exp_token_stride;
  work.log_sum_exp_head_stride = sequence.log_sum_exp_head_stride;
  if (list.IsUploaded()) {
    AcquireMap(sequence.query);
    AcquireMap(sequence.key);
    AcquireMap(sequence.value);
  }
}

// Announces the tiles of this block, in the order in which it takes them.
template <typename Tile>
__device__ void Schedule(const WorkList& list, PrefillShared<Tile>& shared) {
  RingPosition<Tile::kWorkSlots> ring;
  RingPosition<Tile::kQueryStages> query_ring;
  int32_t tile = blockIdx.x;
  if (list.IsUploaded()) WaitForPreviousKernel();
  while (true) {
    shared.work_empty[ring.stage].Wait(ring.parity ^ 1);
    TileWork& work = shared.work[ring.stage];
    const bool is_last = tile >= list.tile_count;
    if (is_last) {
      work.sequence = -1;
    } else {
      DescribeTile<Tile>(list, tile, work);
    }
    shared.work_full[ring.stage].Arrive();
    if (is_last) return;
    const PrefillSequence& sequence = list.Get(work.sequence);
    PrefetchMap(sequence.query);
    PrefetchMap(sequence.key);
    PrefetchMap(sequence.value);
    ring.Advance();
    // A tile is claimed once the query of the one before is there: one that is
    // claimed earlier is missing where a block is done earlier.
    shared.query_full[query_ring.stage].Wait(query_ring.parity);
    query_ring.Advance();
    // Claims are as many as tiles, the last of each block included, which wraps
    // the counter to 0 for the next launch.
    tile = gridDim.x + atomicInc(list.counter, list.tile_count - 1);
  }
}

// Before the first copy: what an earlier kernel writes is there then, and what
// it reads may be written, since nothing happens without copies. Tiles of lists
// in the parameters are described under the end of that kernel.
template <typename Tile>
__device__ void WaitForFirstTile(PrefillShared<Tile>& shared) {
  shared.work_full[0].Wait(0);
  WaitForPreviousKernel();
}

// Walks the tiles of this block: calls on_tile(work) for each.
template <typename Tile, typename OnTile>
__device__ void ForEachTile(PrefillShared<Tile>& shared, OnTile on_tile) {
  RingPosition<Tile::kWorkSlots> ring;
  while (true) {
    shared.work_full[ring.stage].Wait(ring.parity);
    const TileWork& work = shared.work[ring.stage];
    if (work.sequence < 0) return;
    on_tile(work);
    shared.work_empty[ring.stage].Arrive();
    ring.Advance();
  }
}

template <typename Tile>
__device__ void LoadQueriesAndKeys(const WorkList& list,
                                   PrefillShared<Tile>& shared,
                                   const OperandMemory<Tile>& memory) {
  WaitForFirstTile(shared);
  RingPosition<Tile::kQueryStages> query_ring;
  RingPosition<Tile::kStages> key_ring;
  ForEachTile(shared, [&](const TileWork& work) {
    const PrefillSequence& sequence = list.Get(work.sequence);
    Barrier& query_full = shared.query_full[query_ring.stage];
    shared.query_empty[query_ring.stage].Wait(query_ring.parity ^ 1);
    query_full.ArriveAndExpect(Tile::kQueryBytes);
#pragma unroll 1
    for (int panel = 0; panel < Tile::kQueryPanels; ++panel) {
      CopyBox(memory.Query(query_ring.stage) + panel * Tile::kQueryPanelBytes,
              sequence.query, query_full, kEvictFirst,
              panel * Tile::kPanelColumns, 0,
              work.first_row >> list.group_shift, work.head);
    }
    query_ring.Advance();
#pragma unroll 1
    for (int step = work.end_step - 1; step >= work.first_step; --step) {
      Barrier& key_full = shared.key_full[key_ring.stage];
      shared.key_empty[key_ring.stage].Wait(key_ring.parity ^ 1);
      key_full.ArriveAndExpect(Tile::kKeyBytes);
#pragma unroll 1
      for (int panel = 0; panel < Tile::kQueryPanels; ++panel) {
        CopyBox(memory.Key(key_ring.stage) + panel * Tile::kKeyPanelBytes,
                sequence.key, key_full, kEvictLast, panel * Tile::kPanelColumns,
                step * Tile::kBlockN, work.kv_head);
      }
      key_ring.Advance();
    }
  });
}

template <typename Tile>
__device__ void LoadValues(const WorkList& list, PrefillShared<Tile>& shared,
                           const OperandMemory<Tile>& memory) {
  WaitForFirstTile(shared);
  RingPosition<Tile::kStages> ring;
  ForEachTile(shared, [&](const TileWork& work) {
    const PrefillSequence& sequence = list.Get(work.sequence);
#pragma unroll 1
    for (int step = work.end_step - 1; step >= work.first_step; --step) {
      Barrier& full = shared.value_full[ring.stage];
      shared.value_empty[ring.stage].Wait(ring.parity ^ 1);
      full.ArriveAndExpect(Tile::kValueBytes);
#pragma unroll 1
      for (int panel = 0; panel < Tile::kValuePanels; ++panel) {
        CopyBox(memory.Value(ring.stage) + panel * Tile::kKeyPanelBytes,
                sequence.value, full, kEvictLast, panel * Tile::kPanelColumns,
                step * Tile::kBlockN, work.kv_head);
      }
      ring.Advance();
    }
  });
}

// Looks through the values of steps where rows differ in the keys they see. The
// whole warp calls it.
template <typename Tile>
__device__ void InspectValues(PrefillShared<Tile>& shared,
                              const OperandMemory<Tile>& memory) {
  const int lane = threadIdx.x % 32;
  RingPosition<Tile::kStages> ring;
  RingPosition<Tile::kWorkSlots> work_ring;
  while (true) {
    shared.work_full[work_ring.stage].Wait(work_ring.parity);
    const TileWork& work = shared.work[work_ring.stage];
    if (work.sequence < 0) return;
#pragma unroll 1
    for (int step = work.end_step - 1; step >= work.first_step; --step) {
      shared.value_full[ring.stage].Wait(ring.parity);
      if (work.IsMixed(step)) {
        const bool found = HasNonFinite<typename Tile::Type>(
            memory.Value(ring.stage), Tile::kValueBytes, lane);
        if (lane == 0) shared.has_non_finite_value[ring.stage] = found;
      }
      ArriveByWarp(shared.value_inspected[ring.stage],
                   shared.value_empty[ring.stage]);
      ring.Advance();
    }
    ArriveByWarp(shared.work_empty[work_ring.stage]);
    work_ring.Advance();
  }
}

}  // namespace attention::cuda::sm90

#endif  // ATTENTION_KERNELS_CUDA_SM90_PRODUCER_CUH_
