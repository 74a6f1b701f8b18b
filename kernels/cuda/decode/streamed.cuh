// Paged attention on tensor cores at the speed of memory (sm_90 and later).
//
// Blocks stay on the multiprocessors and take chunks until none is left,
// so that loading never pauses: while four warps of a block compute, one copies
// tiles of the chunks to come into a ring of stages, in runs of rows that are
// neighbours in a page, and one prepares the chunks after those.
//
//   planner --items--> loader --stages--> computing warps
//      ^          \________items_________/     |
//      \___________________done_______________/
//
// Where keys are split, the planner announces the chunks that are done, and the
// block with the last one of some rows merges them, in the order of the keys
// whoever computed them.
//
// Pages are read before the kernels ahead on the stream are done, those that
// write pages excepted (see PublishPages): loading goes on while they end.
#ifndef ATTENTION_KERNELS_CUDA_DECODE_STREAMED_CUH_
#define ATTENTION_KERNELS_CUDA_DECODE_STREAMED_CUH_

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/decode/attend_warp.cuh"
#include "kernels/cuda/decode/kernels.h"
#include "kernels/cuda/decode/merge_splits.cuh"
#include "kernels/cuda/decode/query_tile.cuh"
#include "kernels/cuda/decode/store_warps.cuh"

namespace attention::cuda::decode {

// Adds 1 to what other blocks add to; they see what this thread has written, or
// knew to be written, before. Returns the number before.
inline __device__ unsigned AddAndRelease(unsigned* counter) {
  unsigned before;
  asm volatile("atom.release.gpu.global.add.u32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(counter)
               : "memory");
  return before;
}

template <typename Tile>
struct StreamedBlock {
  static constexpr int kLoaderWarp = Tile::kWarps;
  static constexpr int kPlannerWarp = Tile::kWarps + 1;
  static constexpr int kThreads = (Tile::kWarps + 2) * 32;
  static constexpr int kItems = Tile::kQueryBytes > 16384 ? 2 : 3;
  // Blocks end together if each takes its next chunk as late as it can: what is
  // loaded meanwhile takes longer than to plan that.
  static constexpr int kClaimTiles =
      std::max(1, (128 << 10) / (2 * Tile::kTileBytes));

  enum Task { kNothing, kChunk, kMerge, kEnd };
  // A chunk to compute; then, if it was the last one, the rows to merge.
  struct Item {
    Uninitialized<BlockProblem> problem;
    float row_scales[Tile::kRows];
    Task task;
    // Of a chunk that is done: it has been announced; it was the last of its
    // rows.
    bool is_announced;
    bool completes_rows;
  };
  // Fixed part of shared memory.
  struct Shared {
    Item items[kItems];
    WarpStates<Tile> states[2];
    // Without and with the query.
    Barrier item_planned[kItems], item_full[kItems], item_empty[kItems];
    // The loader is at the last kClaimTiles tiles of a chunk.
    Barrier near_end;
    // Of a stage's keys and of its values, which come and go by themselves.
    Barrier full[Tile::kStages][2], empty[Tile::kStages][2];
  };
  static constexpr int kSharedBytes = Tile::kStages * Tile::kStageBytes +
                                      Tile::kMergeBytes +
                                      kItems * Tile::kQueryBytes;

  const HeadConfig& config;
  const PageGeometry& geometry;
  const AttendTable& table;
  const FirstEntries& first;
  Shared& shared;
  uint8_t* const stages;
  float* const merge;
  uint8_t* const queries;

  // A place in a ring, and how often it has come round.
  template <int kSize>
  struct Turn {
    int index = 0;
    uint32_t round = 0;

    __device__ void Next() {
      if (++index == kSize) {
        index = 0;
        ++round;
      }
    }
    // The same place in the round before.
    __device__ Turn Before() const { return {index, round - 1}; }
    // Of the phase of its barriers in which it is filled, and the one before.
    __device__ uint32_t Full() const { return round & 1; }
    __device__ uint32_t Empty() const { return (round & 1) ^ 1; }
  };
  enum Part { kKeys, kValues };
  using ItemTurn = Turn<kItems>;
  using StageTurn = Turn<Tile::kStages>;

  static __device__ int Lane() { return threadIdx.x % 32; }

  __device__ void InitBarriers() {
    for (int i = 0; i < kItems; ++i) {
      shared.item_planned[i].Init(32);
      shared.item_full[i].Init(32);
      shared.item_empty[i].Init((Tile::kWarps + 1) * 32);
      shared.items[i].task = kNothing;
    }
    for (int i = 0; i < Tile::kStages; ++i) {
      for (int part = 0; part < 2; ++part) {
        shared.full[i][part].Init(1);
        shared.empty[i][part].Init(Tile::kWarps * kWarpArrivals);
      }
    }
    shared.near_end.Init(kWarpArrivals);
    FenceBarrierInit();
  }

  // The chunk that a planner will plan next.
  struct NextChunk {
    static constexpr int kWords = sizeof(AttendEntry) / sizeof(uint64_t);
    static constexpr int kLaneWords = (kWords + 31) / 32;
    static constexpr int64_t kUnknown = int64_t{1} << 62;
    static_assert(sizeof(AttendEntry) % sizeof(uint64_t) == 0);

    int64_t block;
    int64_t place = 0;  // of its entry in the table
    // First blocks of entries from `place` on, one a lane; at first unknown.
    int64_t first_blocks = kUnknown;
    bool is_first;  // the entry is in `first`
    bool is_fetched = false;
    uint64_t entry[kLaneWords];  // a lane's part
  };

  // Reads the entry of next.block. One lane at a time could not hide the
  // latencies of this.
  __device__ void FetchEntry(NextChunk& next) {
    next.is_first = next.block < first.block_count;
    const AttendEntry* entries = first.entries();
    if (next.is_first) {
      next.place = FindEntryByWarp(entries, next.place, first.count, next.block,
                                   &AttendEntry::first_block);
    } else {
      WaitForPreviousKernel();
      entries = table.entries;
      const int before =
          __popc(__ballot_sync(0xffffffffu, next.first_blocks <= next.block));
      next.place = before == 0 || before == 32
                       ? FindEntryByWarp(entries, next.place, table.count,
                                         next.block, &AttendEntry::first_block)
                       : next.place + before - 1;
    }
    const auto* from = reinterpret_cast<const uint64_t*>(entries + next.place);
#pragma unroll
    for (int i = 0; i < NextChunk::kLaneWords; ++i) {
      const int word = i * 32 + Lane();
      if (word < NextChunk::kWords) next.entry[i] = from[word];
    }
    next.is_fetched = true;
  }
  // What FetchEntry will need for the chunk after this one.
  __device__ void LookAhead(NextChunk& next) {
    const int64_t entry = next.place + Lane();
    next.first_blocks = entry < table.count ? table.entries[entry].first_block
                                            : table.block_count;
  }

  __device__ void PlanItem(Item& item, const NextChunk& next) {
    BlockProblem& problem = item.problem.get();
    AttendEntry& entry = problem.entry;
    auto* to = reinterpret_cast<uint64_t*>(&entry);
#pragma unroll
    for (int i = 0; i < NextChunk::kLaneWords; ++i) {
      const int word = i * 32 + Lane();
      if (word < NextChunk::kWords) to[word] = next.entry[i];
    }
    __syncwarp();
    if (Lane() != 0) return;
    if (next.is_first) {
      entry.pages = first.Here(entry.pages);
      if (entry.key_scales != nullptr) {
        entry.key_scales = first.Here(entry.key_scales);
        entry.value_scales = first.Here(entry.value_scales);
      }
    }
    problem.Plan(config, table, next.block);
    item.is_announced = Tile::kManyRows || entry.splits == 1;
    item.completes_rows = false;
  }

  // Waits until the item's chunk has been computed, and announces that.
  __device__ void Announce(const ItemTurn& turn) {
    Item& item = shared.items[turn.index];
    const bool is_announced = item.is_announced;
    __syncwarp();  // all have read it
    if (is_announced) return;
    shared.item_empty[turn.index].Wait(turn.Full());
    if (Lane() == 0) {
      const BlockProblem& problem = item.problem.get();
      const AttendEntry& e = problem.entry;
      item.completes_rows =
          AddAndRelease(
              &e.arrivals[problem.kv_head * e.row_tiles + problem.row_tile]) ==
          e.splits - 1;
      if (item.completes_rows) __threadfence();
      item.is_announced = true;
    }
    __syncwarp();
  }

  __device__ void Plan() {
    // The first blocks of the table are everyone's first.
    NextChunk next = {.block = blockIdx.x};
    int pending = 0;  // chunks of which it is not known whether they are done
    ItemTurn last;    // the last chunk's
    uint32_t chunks = 0;
    for (ItemTurn turn;; turn.Next()) {
      Item& item = shared.items[turn.index];
      if (!next.is_fetched && next.block < table.block_count) FetchEntry(next);
      shared.item_empty[turn.index].Wait(turn.Empty());
      Task task = kNothing;
      if (item.task == kChunk) {
        --pending;
        Announce(turn.Before());
        if (item.completes_rows) task = kMerge;
      }
      if (task == kNothing && next.is_fetched) {
        task = kChunk;
        ++pending;
        PlanItem(item, next);
      } else if (task == kNothing && pending == 0) {
        task = kEnd;
      }
      __syncwarp();
      if (Lane() == 0) item.task = task;
      __syncwarp();
      shared.item_planned[turn.index].Arrive();
      if (task != kChunk) {
        shared.item_full[turn.index].Arrive();
        if (task == kEnd) return;
        continue;
      }
      WaitForPreviousKernel();
      LetNextKernelCome();
      LoadQuery(item, turn.index);
      // Early, for whoever has the other chunks of those rows.
      if (chunks > 0) Announce(last);
      last = turn;
      shared.near_end.Wait(chunks++ & 1);
      unsigned long long ticket = 0;
      if (Lane() == 0) ticket = atomicAdd(table.next_block, 1ull);
      LookAhead(next);
      next.block =
          static_cast<int64_t>(__shfl_sync(0xffffffffu, ticket, 0) + gridDim.x);
      next.is_fetched = false;
    }
  }

  // Arrives at item_full when the query is there.
  __device__ void LoadQuery(Item& item, int index) {
    uint8_t* const query = queries + index * Tile::kQueryBytes;
    const BlockProblem& problem = item.problem.get();
    Barrier& full = shared.item_full[index];
    if (!Tile::kFloat8 && problem.scale.query == ScoreScale::kKeep &&
        HasQueryPieces<typename Tile::T>(problem)) {
      StartQueryTile<Tile>(problem, query, Lane(), 32);
      full.ArriveAfterCopies();
      return;
    }
    LoadQueryTile<Tile>(problem, query, Lane(), 32);
    if constexpr (Tile::kFloat8) {
      __syncwarp();
      NormalizeQueryTile<Tile>(query, item.row_scales, problem.rows, 0, 1);
    }
    __syncwarp();
    full.Arrive();
  }

  __device__ void Load() {
    const uint64_t policy = EvictFirstPolicy();
    StageTurn stage;
    for (ItemTurn turn;; turn.Next()) {
      shared.item_planned[turn.index].Wait(turn.Full());
      const Task task = shared.items[turn.index].task;
      if (task == kEnd) return;
      if (task == kChunk) {
        LoadChunk(shared.items[turn.index].problem.get(), policy, stage);
      }
      shared.item_empty[turn.index].Arrive();
    }
  }

  __device__ void LoadChunk(const BlockProblem& problem, uint64_t policy,
                            StageTurn& stage) {
    bool is_near_end = false;
    int tile = problem.NextTile(0);
    Runs runs = FindRuns(problem, tile);
    while (tile != BlockProblem::kNoTile) {
      if (!is_near_end &&
          problem.NextTile(tile + kClaimTiles) == BlockProblem::kNoTile) {
        is_near_end = true;
        ArriveByWarp(shared.near_end);
      }
      // Pages are looked up a tile ahead, which takes long.
      const int next_tile = problem.NextTile(tile + 1);
      const Runs next_runs = FindRuns(problem, next_tile);
      LoadTile(runs, policy, stage);
      stage.Next();
      tile = next_tile;
      runs = next_runs;
    }
    if (!is_near_end) ArriveByWarp(shared.near_end);
  }

  // Keys [begin, end) of a tile that are read, relative to it; there may be two
  // such ranges.
  struct Span {
    int begin, end;
    __device__ int size() const { return max(end - begin, 0); }
    // What it has of `count` rows from `row` on.
    __device__ Span Of(int row, int count) const {
      return {max(begin, row), min(end, row + count)};
    }
  };
  static __device__ Span SpanOf(int begin, int end, int tile) {
    const int first = tile * Tile::kKeys;
    return {max(begin - first, 0), min(end - first, Tile::kKeys)};
  }
  static __device__ Span Sinks(const BlockProblem& p, int tile) {
    return SpanOf(p.sinks_begin, p.sinks_end, tile);
  }
  static __device__ Span Window(const BlockProblem& p, int tile) {
    return SpanOf(p.window_begin, p.window_end, tile);
  }

  // A tile's rows that are neighbours in every page are copied together: a
  // power of two of them, a run, by one lane.
  struct Runs {
    static constexpr int kCount = Tile::kKeys / 32;  // of a lane
    int rows;                                        // of a run
    Span spans[2] = {};
    // The page of each, and where in it the keys of the first row are; below 0
    // if nothing is read. Values have the same places among values.
    const uint8_t* pages[kCount] = {};
    int64_t offsets[kCount];

    __device__ int read_rows() const {
      return spans[0].size() + spans[1].size();
    }
    // Calls copy(row, keys, rows) for what is read of this lane's runs.
    template <typename Copy>
    __device__ void ForEach(Copy copy) const {
      const bool is_whole = read_rows() == Tile::kKeys;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (offsets[i] < 0) continue;
        const int row = (i * 32 + Lane()) * rows;
        const uint8_t* const keys = pages[i] + offsets[i];
        if (is_whole) {
          copy(row, keys, rows);
          continue;
        }
#pragma unroll
        for (const Span& span : spans) {
          const Span read = span.Of(row, rows);
          if (read.size() == 0) continue;
          copy(read.begin, keys + (read.begin - row) * Tile::kRowBytes,
               read.size());
        }
      }
    }
  };

  // Does not wait for what it reads from memory. None for kNoTile.
  __device__ Runs FindRuns(const BlockProblem& problem, int tile) {
    Runs runs = {
        .rows = min(1 << geometry.page_shift, static_cast<int>(Tile::kKeys))};
    if (tile != BlockProblem::kNoTile) {
      runs.spans[0] = Sinks(problem, tile);
      runs.spans[1] = Window(problem, tile);
    }
#pragma unroll
    for (int i = 0; i < Runs::kCount; ++i) {
      const int row = (i * 32 + Lane()) * runs.rows;
      runs.offsets[i] = -1;
      if (runs.spans[0].Of(row, runs.rows).size() +
              runs.spans[1].Of(row, runs.rows).size() ==
          0) {
        continue;
      }
      const unsigned key = tile * Tile::kKeys + row;
      const unsigned page = geometry.PageOf(key);
      runs.pages[i] = static_cast<const uint8_t*>(problem.entry.pages[page]);
      runs.offsets[i] = geometry.KeyOffset(
          problem.kv_head, static_cast<int>(key - page * geometry.page_tokens));
    }
    return runs;
  }

  __device__ void LoadTile(const Runs& runs, uint64_t policy,
                           const StageTurn& stage) {
    for (Part part : {kKeys, kValues}) {
      Barrier& full = shared.full[stage.index][part];
      shared.empty[stage.index][part].Wait(stage.Empty());
      if (Lane() == 0) {
        full.ArriveAndExpect(runs.read_rows() * Tile::kRowBytes);
      }
      __syncwarp();
      const uint32_t to = SharedAddress(
          stages + stage.index * Tile::kStageBytes + part * Tile::kTileBytes);
      const int64_t offset = part == kKeys ? 0 : geometry.values_offset;
      runs.ForEach([&](int row, const uint8_t* keys, int rows) {
        BulkCopy(to + row * Tile::kRowBytes, keys + offset,
                 rows * Tile::kRowBytes, full, policy);
      });
    }
  }

  // A weight of 0 does not hide what an earlier tile left in rows that were not
  // read. All warps that compute take part.
  __device__ void ClearUnreadValues(const BlockProblem& problem, int tile,
                                    uint8_t* values) {
    constexpr int kPieces = Tile::kRowBytes / kPieceBytes;
    const Span sinks = Sinks(problem, tile);
    const Span window = Window(problem, tile);
    if (sinks.size() + window.size() == Tile::kKeys) return;
#pragma unroll 1
    for (int i = threadIdx.x; i < Tile::kKeys * kPieces; i += Tile::kThreads) {
      const int key = i / kPieces;
      if ((key >= sinks.begin && key < sinks.end) ||
          (key >= window.begin && key < window.end)) {
        continue;
      }
      reinterpret_cast<uint4*>(values)[i] = make_uint4(0, 0, 0, 0);
    }
    FenceAsyncProxy();
    SyncWarps<Tile>();
  }

  __device__ void Compute() {
    StageTurn stage;
    Turn<2> states;
    for (ItemTurn turn;; turn.Next()) {
      shared.item_planned[turn.index].Wait(turn.Full());
      shared.item_full[turn.index].Wait(turn.Full());
      const Task task = shared.items[turn.index].task;
      if (task == kEnd) return;
      if (task == kChunk) {
        ComputeItem(turn, shared.states[states.index], stage);
        states.Next();
      } else if (task == kMerge) {
        if constexpr (!Tile::kManyRows) {
          MergeRows<Tile>(shared.items[turn.index].problem.get(),
                          AttendWarp<Tile>::Warp());
        }
      }
      shared.item_empty[turn.index].Arrive();
    }
  }

  // By turns, fast warps may be at the next chunk's first barrier while slow
  // ones still read `states`.
  __device__ void ComputeItem(const ItemTurn& turn, WarpStates<Tile>& states,
                              StageTurn& stage) {
    Item& item = shared.items[turn.index];
    const BlockProblem& problem = item.problem.get();
    const uint8_t* const query = queries + turn.index * Tile::kQueryBytes;
    AttendWarp<Tile> warp;
    if constexpr (Tile::kFloat8) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        warp.row_scale[half] = item.row_scales[AttendWarp<Tile>::Row(half)];
      }
    }
    warp.LoadQuery(query);
#pragma unroll 1
    for (int tile = problem.NextTile(0); tile != BlockProblem::kNoTile;
         tile = problem.NextTile(tile + 1), stage.Next()) {
      uint8_t* const keys = stages + stage.index * Tile::kStageBytes;
      // Of a tile that needs no mask, all is read.
      const bool needs_mask = problem.NeedsMask(tile);
      shared.full[stage.index][kKeys].Wait(stage.Full());
      AttendTileOfKeys<Tile>(
          warp, query, keys, problem, tile, needs_mask,
          [&] { ArriveByWarp(shared.empty[stage.index][kKeys]); },
          [&] {
            shared.full[stage.index][kValues].Wait(stage.Full());
            if (needs_mask) {
              ClearUnreadValues(problem, tile, keys + Tile::kTileBytes);
            }
          });
      // Values may have been changed.
      if (needs_mask && problem.IsMixed()) FenceAsyncProxy();
      ArriveByWarp(shared.empty[stage.index][kValues]);
    }
    warp.CompleteSums();
    if constexpr (Tile::kManyRows) {
      StoreRows<Tile>(warp, problem);
    } else {
      MergeWarps<Tile>(warp, problem, merge, states);
    }
  }
};

template <typename Tile>
__global__ void __launch_bounds__(StreamedBlock<Tile>::kThreads,
                                  Tile::kMinBlocks)
    StreamedKernel(HeadConfig config, PageGeometry geometry, AttendTable table,
                   const __grid_constant__ FirstEntries first) {
  // Built for an older architecture, the kernel is never chosen.
#if __CUDA_ARCH__ >= 900
  using Block = StreamedBlock<Tile>;
  extern __shared__ __align__(1024) uint8_t dynamic[];
  __shared__ Uninitialized<typename Block::Shared> shared;
  uint8_t* const merge = dynamic + Tile::kStages * Tile::kStageBytes;
  Block block = {config,
                 geometry,
                 table,
                 first,
                 shared.get(),
                 dynamic,
                 reinterpret_cast<float*>(merge),
                 merge + Tile::kMergeBytes};
  if (threadIdx.x == 0) block.InitBarriers();
  __syncthreads();
  const int warp = threadIdx.x / 32;
  if (warp == Block::kPlannerWarp) {
    block.Plan();
  } else if (warp == Block::kLoaderWarp) {
    block.Load();
  } else {
    block.Compute();
  }
#endif
}

template <typename Tile>
AttendKernel DescribeStreamed() {
  using Block = StreamedBlock<Tile>;
  return {.function = reinterpret_cast<const void*>(StreamedKernel<Tile>),
          .columns = Tile::kColumns,
          .threads = Block::kThreads,
          .shared_bytes = Block::kSharedBytes,
          .min_arch = 90,
          .blocks_per_processor = Tile::kMinBlocks,
          .is_exact = true,
          .merges = !Tile::kManyRows};
}

}  // namespace attention::cuda::decode

#endif  // ATTENTION_KERNELS_CUDA_DECODE_STREAMED_CUH_
