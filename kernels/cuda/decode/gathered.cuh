// Paged attention on tensor cores for any page size and head dimension.
//
// A block takes one chunk tile by tile through a ring of stages in shared
// memory that cp.async fills: pages are gathered row by row, piece by piece.
#ifndef ATTENTION_KERNELS_CUDA_DECODE_GATHERED_CUH_
#define ATTENTION_KERNELS_CUDA_DECODE_GATHERED_CUH_

#include "kernels/cuda/decode/attend_warp.cuh"
#include "kernels/cuda/decode/kernels.h"
#include "kernels/cuda/decode/query_tile.cuh"
#include "kernels/cuda/decode/store_warps.cuh"
#include "kernels/cuda/find_entry.h"

namespace attention::cuda::decode {

// Fills the stages.
template <typename Tile>
class PageLoader {
 public:
  struct RowAddress {
    const uint8_t* key;  // null: zeros
    const uint8_t* value;
  };
  // Of the rows of the tiles that come next.
  struct Shared {
    RowAddress rows[Tile::kStages][Tile::kKeys];
  };

  __device__ PageLoader(const BlockProblem& problem,
                        const PageGeometry& geometry, Shared& shared,
                        uint8_t* stages)
      : problem_(problem),
        geometry_(geometry),
        shared_(shared),
        stages_(SharedAddress(stages)) {}

  // Looks up where the rows of a tile are, for the stage that will hold it.
  __device__ void Find(int tile, int stage) {
    for (int row = threadIdx.x; row < Tile::kKeys; row += Tile::kThreads) {
      RowAddress address = {nullptr, nullptr};
      const int key = tile * Tile::kKeys + row;
      if (tile != BlockProblem::kNoTile && problem_.IsRead(key)) {
        const unsigned page = static_cast<unsigned>(key) /
                              static_cast<unsigned>(geometry_.page_tokens);
        const int slot = key - static_cast<int>(page) * geometry_.page_tokens;
        const auto* data =
            static_cast<const uint8_t*>(problem_.entry.pages[page]);
        address = {data + geometry_.KeyOffset(problem_.kv_head, slot),
                   data + geometry_.ValueOffset(problem_.kv_head, slot)};
      }
      shared_.rows[stage][row] = address;
    }
  }

  // Starts to load the tile that was found for the stage.
  __device__ void Start(int stage) {
    constexpr int kPieces = Tile::kRowBytes / kPieceBytes;
    constexpr int kRowsPerPass = Tile::kThreads / kPieces;
    const int piece = threadIdx.x % kPieces;
    const int offset = piece * kPieceBytes;
    const uint32_t to = stages_ + stage * Tile::kStageBytes;
#pragma unroll
    for (int pass = 0; pass < Tile::kKeys / kRowsPerPass; ++pass) {
      const int row = pass * kRowsPerPass + threadIdx.x / kPieces;
      const RowAddress from = shared_.rows[stage][row];
      const auto place = [&](int row_bytes) {
        return PieceOffset<Tile::kRowBytes>(row,
                                            StoredPiece(row_bytes, row, piece));
      };
      Copy(to + place(geometry_.key_row_bytes), from.key, offset,
           geometry_.key_row_bytes);
      Copy(to + Tile::kTileBytes + place(geometry_.value_row_bytes), from.value,
           offset, geometry_.value_row_bytes);
    }
  }

 private:
  // Rows are as long as a multiple of a piece; what is beyond reads as zeros.
  __device__ void Copy(uint32_t to, const uint8_t* row, int offset,
                       int row_bytes) {
    const bool inside = row != nullptr && offset < row_bytes;
    const void* from = inside ? static_cast<const void*>(row + offset)
                              : static_cast<const void*>(problem_.entry.pages);
#if __CUDA_ARCH__ >= 800
    asm volatile(
        "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to),
        "l"(from), "r"(inside ? kPieceBytes : 0)
        : "memory");
#endif
  }

  const BlockProblem& problem_;
  const PageGeometry& geometry_;
  Shared& shared_;
  const uint32_t stages_;
};

inline __device__ void CommitStage() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until all but the kPending youngest stages are there, for this thread.
template <int kPending>
__device__ void WaitForStage() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

template <typename Tile>
__device__ void AttendGathered(const HeadConfig& config,
                               const PageGeometry& geometry,
                               const AttendTable& table, int64_t block) {
  static_assert(Tile::kMergeBytes <= Tile::kStages * Tile::kStageBytes);
  extern __shared__ __align__(1024) uint8_t shared[];
  uint8_t* const query = shared;
  uint8_t* const stages = query + Tile::kQueryBytes;
  __shared__ Uninitialized<BlockProblem> problem_memory;
  BlockProblem& problem = problem_memory.get();
  __shared__ typename PageLoader<Tile>::Shared addresses;
  __shared__ float row_scales[Tile::kRows];
  WaitForPreviousKernel();
  LetNextKernelCome();
  if (threadIdx.x == 0) {
    problem.entry =
        FindEntry(table.entries, table.count, block, &AttendEntry::first_block);
    problem.Plan(config, table, block);
  }
  __syncthreads();

  PageLoader<Tile> loader(problem, geometry, addresses, stages);
  const auto next = [&](int tile) {
    return tile == BlockProblem::kNoTile ? BlockProblem::kNoTile
                                         : problem.NextTile(tile + 1);
  };
  int tile = problem.NextTile(0);
  int found = tile;  // the last tile whose rows were looked up
  for (int stage = 0; stage < Tile::kStages; ++stage) {
    if (stage > 0) found = next(found);
    loader.Find(found, stage);
  }
  __syncthreads();
  for (int stage = 0; stage < Tile::kStages - 1; ++stage) {
    loader.Start(stage);
    CommitStage();
  }
  LoadQueryTile<Tile>(problem, query, threadIdx.x, Tile::kThreads);
  __syncthreads();

  AttendWarp<Tile> warp;
  if constexpr (Tile::kFloat8) {
    NormalizeQueryTile<Tile>(query, row_scales, Tile::kRows, threadIdx.x / 32,
                             Tile::kWarps);
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      warp.row_scale[half] = row_scales[AttendWarp<Tile>::Row(half)];
    }
  }
  warp.LoadQuery(query);

#pragma unroll 1
  for (int stage = 0; tile != BlockProblem::kNoTile; tile = next(tile)) {
    WaitForStage<Tile::kStages - 2>();
    __syncthreads();  // the tile is there, and nobody reads the one before it
    loader.Start((stage + Tile::kStages - 1) % Tile::kStages);
    CommitStage();
    found = next(found);
    loader.Find(found, stage);  // for the tile that comes into this stage next

    AttendTileOfKeys<Tile>(
        warp, query, stages + stage * Tile::kStageBytes, problem, tile,
        problem.NeedsMask(tile), [] {}, [] {});
    stage = (stage + 1) % Tile::kStages;
  }
  WaitForStage<0>();
  warp.CompleteSums();
  if constexpr (Tile::kManyRows) {
    StoreRows<Tile>(warp, problem);
  } else {
    __syncthreads();  // nobody reads the stages any more
    __shared__ WarpStates<Tile> states;
    MergeWarps<Tile>(warp, problem, reinterpret_cast<float*>(stages), states);
  }
}

template <typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kMinBlocks)
    GatheredKernel(HeadConfig config, PageGeometry geometry, AttendTable table,
                   int64_t first_block) {
  // Built for an older architecture, the kernel is never chosen.
#if __CUDA_ARCH__ >= 800
  AttendGathered<Tile>(config, geometry, table, first_block + blockIdx.x);
#endif
}

template <typename Tile>
AttendKernel DescribeGathered() {
  return {.function = reinterpret_cast<const void*>(GatheredKernel<Tile>),
          .columns = Tile::kColumns,
          .threads = Tile::kThreads,
          .shared_bytes = Tile::kQueryBytes + Tile::kStages * Tile::kStageBytes,
          .min_arch = 80};
}

}  // namespace attention::cuda::decode

#endif  // ATTENTION_KERNELS_CUDA_DECODE_GATHERED_CUH_
