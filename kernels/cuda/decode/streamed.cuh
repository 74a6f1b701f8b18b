// Paged attention on tensor cores at the speed of memory (sm_90 and later).
//
// Blocks stay on the multiprocessors and take chunks until none is left,
// so that loading never pauses: while four warps of a block compute, one copies
// tiles of the chunks to come into a ring of stages, in runs of rows that are
// neighbours in a page, and one prepares the chunks after those.
//
//   planner --items--> loader --stages--> computing warps
//                 \________items_________/
#ifndef ATTENTION_KERNELS_CUDA_DECODE_STREAMED_CUH_
#define ATTENTION_KERNELS_CUDA_DECODE_STREAMED_CUH_

#include "kernels/cuda/decode/attend_warp.cuh"
#include "kernels/cuda/decode/barrier.cuh"

namespace attention::cuda::decode {

template <typename Tile>
struct StreamedBlock {
  static constexpr int kLoaderWarp = Tile::kWarps;
  static constexpr int kPlannerWarp = Tile::kWarps + 1;
  static constexpr int kThreads = (Tile::kWarps + 2) * 32;
  static constexpr int kItems = Tile::kQueryBytes > 16384 ? 2 : 3;

  // One chunk to compute.
  struct Item {
    Uninitialized<BlockProblem> problem;
    float row_scales[Tile::kRows];
    bool is_last;  // there is no chunk
  };
  // Fixed part of shared memory.
  struct Shared {
    Item items[kItems];
    WarpStates<Tile> states[2];
    // Without and with the query.
    Barrier item_planned[kItems], item_full[kItems], item_empty[kItems];
    // Of a stage's keys and of its values, which come and go by themselves.
    Barrier full[Tile::kStages][2], empty[Tile::kStages][2];
  };
  static constexpr int kSharedBytes = Tile::kStages * Tile::kStageBytes +
                                      Tile::kMergeBytes +
                                      kItems * Tile::kQueryBytes;

  const HeadConfig& config;
  const PageGeometry& geometry;
  const AttendTable& table;
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
    }
    for (int i = 0; i < Tile::kStages; ++i) {
      for (int part = 0; part < 2; ++part) {
        shared.full[i][part].Init(1);
        shared.empty[i][part].Init(Tile::kWarps);
      }
    }
    FenceBarrierInit();
  }

  // One lane at a time cannot hide the latencies of all this.
  __device__ void PlanItem(Item& item, int64_t block) {
    static_assert(sizeof(AttendEntry) % sizeof(uint64_t) == 0);
    constexpr int kWords = sizeof(AttendEntry) / sizeof(uint64_t);
    BlockProblem& problem = item.problem.get();
    const auto* from = reinterpret_cast<const uint64_t*>(&FindEntryByWarp(
        table.entries, table.count, block, &AttendEntry::first_block));
    auto* to = reinterpret_cast<uint64_t*>(&problem.entry);
    for (int i = Lane(); i < kWords; i += 32) to[i] = from[i];
    __syncwarp();
    if (Lane() == 0) problem.Plan(config, table, block);
    __syncwarp();
  }

  // The first blocks of the table are everyone's first.
  __device__ int64_t TakeNextBlock() {
    unsigned long long block = 0;
    if (Lane() == 0) block = atomicAdd(table.next_block, 1ull) + gridDim.x;
    return static_cast<int64_t>(__shfl_sync(0xffffffffu, block, 0));
  }

  __device__ void Plan() {
    int64_t block = blockIdx.x;
    for (ItemTurn turn;; turn.Next()) {
      Item& item = shared.items[turn.index];
      shared.item_empty[turn.index].Wait(turn.Empty());
      const bool is_last = block >= table.block_count;
      if (Lane() == 0) item.is_last = is_last;
      int64_t next_block = 0;
      if (!is_last) {
        next_block = TakeNextBlock();
        PlanItem(item, block);
      }
      __syncwarp();
      shared.item_planned[turn.index].Arrive();
      if (!is_last) LoadQuery(item, turn.index);
      shared.item_full[turn.index].Arrive();
      if (is_last) return;
      block = next_block;
    }
  }

  __device__ void LoadQuery(Item& item, int index) {
    uint8_t* const query = queries + index * Tile::kQueryBytes;
    const BlockProblem& problem = item.problem.get();
    LoadQueryTile<Tile>(problem, query, Lane(), 32);
    if constexpr (Tile::kFloat8) {
      __syncwarp();
      NormalizeQueryTile<Tile>(query, item.row_scales, problem.rows, 0, 1);
    }
    __syncwarp();
  }

  __device__ void Load() {
    StageTurn stage;
    for (ItemTurn turn;; turn.Next()) {
      shared.item_planned[turn.index].Wait(turn.Full());
      if (shared.items[turn.index].is_last) return;
      const BlockProblem& problem = shared.items[turn.index].problem.get();
      for (int tile = problem.NextTile(0); tile != BlockProblem::kNoTile;
           tile = problem.NextTile(tile + 1), stage.Next()) {
        for (Part part : {kKeys, kValues}) {
          shared.empty[stage.index][part].Wait(stage.Empty());
          LoadTile(problem, tile, stage.index, part);
        }
      }
      shared.item_empty[turn.index].Arrive();
    }
  }

  // Keys [begin, end) of a tile that are read, relative to it; there may be two
  // such ranges.
  struct Span {
    int begin, end;
    __device__ int size() const { return max(end - begin, 0); }
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

  __device__ void LoadTile(const BlockProblem& problem, int tile, int stage,
                           Part part) {
    const Span spans[2] = {Sinks(problem, tile), Window(problem, tile)};
    Barrier& full = shared.full[stage][part];
    if (Lane() == 0) {
      full.ArriveAndExpect((spans[0].size() + spans[1].size()) *
                           Tile::kRowBytes);
    }
    __syncwarp();
    const uint32_t rows = SharedAddress(stages + stage * Tile::kStageBytes +
                                        part * Tile::kTileBytes);
    // Rows that are neighbours in every page size: a power of two of them.
    const int run = min(geometry.page_tokens & -geometry.page_tokens,
                        static_cast<int>(Tile::kKeys));
    for (int row = Lane() * run; row < Tile::kKeys; row += 32 * run) {
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        const int begin = max(spans[s].begin, row);
        const int count = min(spans[s].end, row + run) - begin;
        if (count <= 0) continue;
        const unsigned key = tile * Tile::kKeys + begin;
        const unsigned page_tokens = geometry.page_tokens;
        const unsigned page = key / page_tokens;
        const int slot = static_cast<int>(key - page * page_tokens);
        const int64_t offset =
            part == kKeys ? geometry.KeyOffset(problem.kv_head, slot)
                          : geometry.ValueOffset(problem.kv_head, slot);
        BulkCopy(
            rows + begin * Tile::kRowBytes,
            static_cast<const uint8_t*>(problem.entry.pages[page]) + offset,
            count * Tile::kRowBytes, full);
      }
    }
  }

  // A weight of 0 does not hide what an earlier tile left in rows that were not
  // read.
  __device__ void ClearUnreadValues(const BlockProblem& problem, int tile,
                                    uint8_t* values) {
    constexpr int kPieces = Tile::kRowBytes / kPieceBytes;
    const Span sinks = Sinks(problem, tile);
    const Span window = Window(problem, tile);
    if (sinks.size() + window.size() == Tile::kKeys) return;
    // Each warp clears what it will read.
    const int first = Tile::kManyRows ? 0 : AttendWarp<Tile>::FirstKey(0);
    constexpr int kCount = Tile::kManyRows ? Tile::kKeys : Tile::kWarpKeys;
    for (int i = Lane(); i < kCount * kPieces; i += 32) {
      const int key = first + i / kPieces;
      if ((key >= sinks.begin && key < sinks.end) ||
          (key >= window.begin && key < window.end)) {
        continue;
      }
      reinterpret_cast<uint4*>(values)[key * kPieces + i % kPieces] =
          make_uint4(0, 0, 0, 0);
    }
    FenceBulkCopies();
    __syncwarp();
  }

  __device__ void Compute() {
    StageTurn stage;
    for (ItemTurn turn;; turn.Next()) {
      shared.item_full[turn.index].Wait(turn.Full());
      if (shared.items[turn.index].is_last) return;
      ComputeItem(turn, stage);
      shared.item_empty[turn.index].Arrive();
    }
  }

  // The warp has read what the barrier is about.
  static __device__ void Release(Barrier& empty) {
    __syncwarp();
    if (Lane() == 0) empty.Arrive();
  }

  __device__ void ComputeItem(const ItemTurn& turn, StageTurn& stage) {
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
      shared.full[stage.index][kKeys].Wait(stage.Full());
      AttendTileOfKeys<Tile>(
          warp, query, keys, problem, tile,
          [&] { Release(shared.empty[stage.index][kKeys]); },
          [&] {
            shared.full[stage.index][kValues].Wait(stage.Full());
            ClearUnreadValues(problem, tile, keys + Tile::kTileBytes);
          });
      // Values may have been changed.
      if (problem.IsMixed(tile)) FenceBulkCopies();
      Release(shared.empty[stage.index][kValues]);
    }
    warp.CompleteSums();
    if constexpr (Tile::kManyRows) {
      StoreRows<Tile>(warp, problem);
    } else {
      // By turns, since fast warps may be at the next chunk's first barrier
      // while slow ones still read.
      MergeWarps<Tile>(warp, problem, merge,
                       shared.states[(turn.round * kItems + turn.index) % 2]);
    }
  }
};

template <typename Tile>
__global__ void __launch_bounds__(StreamedBlock<Tile>::kThreads,
                                  Tile::kMinBlocks)
    StreamedKernel(HeadConfig config, PageGeometry geometry, AttendTable table,
                   int64_t) {
  // Built for an older architecture, the kernel is never chosen.
#if __CUDA_ARCH__ >= 900
  using Block = StreamedBlock<Tile>;
  extern __shared__ __align__(1024) uint8_t dynamic[];
  __shared__ Uninitialized<typename Block::Shared> shared;
  uint8_t* const merge = dynamic + Tile::kStages * Tile::kStageBytes;
  Block block = {config,
                 geometry,
                 table,
                 shared.get(),
                 dynamic,
                 reinterpret_cast<float*>(merge),
                 merge + Tile::kMergeBytes};
  if (threadIdx.x == 0) block.InitBarriers();
  __syncthreads();
  WaitForPreviousKernel();
  LetNextKernelCome();
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
constexpr AttendKernel DescribeStreamed() {
  using Block = StreamedBlock<Tile>;
  return {.function = StreamedKernel<Tile>,
          .columns = Tile::kColumns,
          .threads = Block::kThreads,
          .shared_bytes = Block::kSharedBytes,
          .min_arch = 90,
          .blocks_per_processor = Tile::kMinBlocks,
          .is_exact = true};
}

}  // namespace attention::cuda::decode

#endif  // ATTENTION_KERNELS_CUDA_DECODE_STREAMED_CUH_
