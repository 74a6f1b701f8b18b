// Paged attention on tensor cores, for 16-bit types and sm_80 and later.
//
// A block takes its chunk tile by tile, 64 keys each, through a ring of stages
// in shared memory that cp.async fills: pages are gathered row by row, so that
// their size hardly matters. With few rows the warps share the keys of a tile
// and merge in the end; with many, each warp has rows of its own.
//
// Rows of a stage follow each other without padding: the 16-byte pieces of a
// row change places with the row's number, so that eight rows of one column are
// in different banks.
#ifndef ATTENTION_KERNELS_CUDA_DECODE_TENSOR_CORE_CUH_
#define ATTENTION_KERNELS_CUDA_DECODE_TENSOR_CORE_CUH_

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/decode/block_problem.cuh"
#include "kernels/cuda/decode/float8.cuh"
#include "kernels/cuda/decode/kernels.h"
#include "kernels/cuda/decode/store.cuh"
#include "kernels/cuda/portable/mma.cuh"
#include "kernels/cuda/portable/tensor_core.cuh"

namespace attention::cuda::decode {

using portable::Element;
using portable::MatrixUnit;
using portable::RowState;
using portable::ScoreScale;
using portable::SharedAddress;

inline constexpr int kPieceBytes = 16;

// Where a piece of a row of kRowBytes lies in shared memory.
template <int kRowBytes>
__device__ constexpr int PieceOffset(int row, int piece) {
  constexpr int kPieces = kRowBytes / kPieceBytes;
  static_assert(kPieces >= 4);
  const int swap = kPieces >= 8 ? row % 8 : row / 2 % 4;
  return row * kRowBytes + (piece ^ swap) * kPieceBytes;
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
  static constexpr int kWarpKeys = kManyRows ? kKeys : kKeys / kWarps;
  static constexpr int kQueryRowBytes = kColumns * 2;
  static constexpr int kRowBytes = kColumns * (kFloat8 ? 1 : 2);
  static constexpr int kTileBytes = kKeys * kRowBytes;  // of K, and of V
  static constexpr int kQueryBytes = kRows * kQueryRowBytes;
  static constexpr int kSharedBytes = kQueryBytes + kStages * 2 * kTileBytes;
  // Larger heads leave no registers for the query.
  static constexpr bool kQueryInRegisters = kColumns <= 128;
  static_assert(kManyRows ||
                kWarps * kRows * kColumns * 4 <= kStages * 2 * kTileBytes);
};

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
    const uint32_t to = stages_ + stage * 2 * Tile::kTileBytes;
#pragma unroll
    for (int pass = 0; pass < Tile::kKeys / kRowsPerPass; ++pass) {
      const int row = pass * kRowsPerPass + threadIdx.x / kPieces;
      const RowAddress from = shared_.rows[stage][row];
      const int place = PieceOffset<Tile::kRowBytes>(row, piece);
      Copy(to + place, from.key, offset, geometry_.key_row_bytes);
      Copy(to + Tile::kTileBytes + place, from.value, offset,
           geometry_.value_row_bytes);
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
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(
                     to),
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

// A warp's share of the block: rows [first_row, first_row + 16) of the tile's
// keys [first_key, first_key + kWarpKeys).
template <typename Tile>
struct AttendWarp {
  using T = typename Tile::T;
  using Operand = typename Tile::Operand;
  using Unit = MatrixUnit<Operand>;
  static constexpr int kSteps = Tile::kColumns / 16;
  static constexpr int kKeyTiles = Tile::kWarpKeys / 8;
  static constexpr int kColumnTiles = Tile::kColumns / 8;

  uint32_t query[Tile::kQueryInRegisters ? kSteps : 1][4];
  float o[kColumnTiles][4] = {};
  float s[kKeyTiles][4];
  RowState state[2];
  float row_scale[2] = {1.0f, 1.0f};  // of the query; only with Float8

  static __device__ int Lane() { return threadIdx.x % 32; }
  static __device__ int Warp() { return threadIdx.x / 32; }
  static __device__ int FirstRow() { return Tile::kManyRows ? Warp() * 16 : 0; }
  static __device__ int FirstKey() {
    return Tile::kManyRows ? 0 : Warp() * Tile::kWarpKeys;
  }
  // Of accumulator elements 2 * half + {0, 1}.
  static __device__ int Row(int half) {
    return FirstRow() + half * 8 + Lane() / 4;
  }
  static __device__ int Column(int tile, int element) {
    if constexpr (Tile::kFloat8) {
      return tile / 2 * 16 + Lane() % 4 * 4 + element % 2 * 2 + tile % 2;
    } else {
      return tile * 8 + Lane() % 4 * 2 + element % 2;
    }
  }
  // The key, within the tile, of score elements.
  static __device__ int Key(int tile, int element) {
    return FirstKey() + tile * 8 + Lane() % 4 * 2 + element % 2;
  }

  // Operand a of one k-step. With Float8 the elements of a step are in the
  // order in which the bytes of K come: four for each thread of a group.
  static __device__ void QueryStep(uint32_t (&a)[4], const uint8_t* tile,
                                   int step) {
    const int lane = Lane();
    if constexpr (Tile::kFloat8) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint2 words = *reinterpret_cast<const uint2*>(
            tile +
            PieceOffset<Tile::kQueryRowBytes>(Row(half),
                                              step * 2 + lane % 4 / 2) +
            lane % 2 * 8);
        a[half] = words.x;
        a[half + 2] = words.y;
      }
    } else {
      portable::LoadMatrices(
          a, SharedAddress(tile) + PieceOffset<Tile::kQueryRowBytes>(
                                       FirstRow() + lane % 16,
                                       step * 2 + lane / 16));
    }
  }

  __device__ void LoadQuery(const uint8_t* tile) {
    if constexpr (Tile::kQueryInRegisters) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        QueryStep(query[step], tile, step);
      }
    }
  }

  // S = Q K^T
  __device__ void ComputeScores(const uint8_t* query_tile, uint32_t keys) {
    const int lane = Lane();
    const int row = FirstKey() + lane % 8 + lane / 16 * 8;
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s[n][e] = 0.0f;
    }
    // Pieces of K that one ldmatrix brings: 16 bytes by 16 keys, twice.
    constexpr int kStepsPerLoad = Tile::kFloat8 ? 2 : 1;
#pragma unroll
    for (int load = 0; load < kSteps / kStepsPerLoad; ++load) {
      uint32_t a[kStepsPerLoad][4];
#pragma unroll
      for (int j = 0; j < kStepsPerLoad; ++j) {
        const int step = load * kStepsPerLoad + j;
        if constexpr (Tile::kQueryInRegisters) {
#pragma unroll
          for (int i = 0; i < 4; ++i) a[j][i] = query[step][i];
        } else {
          QueryStep(a[j], query_tile, step);
        }
      }
#pragma unroll
      for (int pair = 0; pair < kKeyTiles / 2; ++pair) {
        uint32_t b[4];
        portable::LoadMatrices(
            b, keys + PieceOffset<Tile::kRowBytes>(row + pair * 16,
                                                   load * 2 + lane / 8 % 2));
        if constexpr (Tile::kFloat8) {
#pragma unroll
          for (int j = 0; j < 2; ++j) {
#pragma unroll
            for (int n = 0; n < 2; ++n) {
              const uint32_t bytes = b[2 * n + j];
              Unit::Multiply(s[2 * pair + n], a[j], Float8PairToHalf(bytes),
                             Float8PairToHalf(bytes >> 16));
            }
          }
        } else {
          Unit::Multiply(s[2 * pair], a[0], b[0], b[1]);
          Unit::Multiply(s[2 * pair + 1], a[0], b[2], b[3]);
        }
      }
    }
    if constexpr (Tile::kFloat8) {
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) s[n][e] *= row_scale[e / 2];
      }
    }
  }

  __device__ void MaskScores(const BlockProblem& problem, int tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // Rows beyond the last are computed and thrown away.
      const int row = min(Row(half), problem.rows - 1);
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          const int key = tile * Tile::kKeys + Key(n, e);
          if (!problem.Sees(row, key)) s[n][e] = -INFINITY;
        }
      }
    }
  }

  // Turns scores into weights relative to the new maxima and rescales what was
  // accumulated. Each thread sums its own keys only.
  __device__ void UpdateSoftmax(float factor) {
    float rescale[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float max = s[0][2 * half];
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
        max = fmaxf(max, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
      }
      max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 1));
      max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 2));
      rescale[half] = state[half].Raise(max, factor);
    }
    if (__any_sync(0xffffffffu, rescale[0] != 1.0f || rescale[1] != 1.0f)) {
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) o[n][e] *= rescale[e / 2];
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float base = state[half].Base();
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          s[n][e] = portable::FastExp2((s[n][e] - base) * factor);
          state[half].sum += s[n][e];
        }
      }
    }
  }

  // O += P V
  __device__ void AccumulateValues(uint32_t values) {
    const int lane = Lane();
    const int row = FirstKey() + lane % 16;
#pragma unroll
    for (int step = 0; step < kKeyTiles / 2; ++step) {
      uint32_t a[4];
      Unit::WeightStep(a, s, step);
      if constexpr (Tile::kFloat8) {
#pragma unroll
        for (int pair = 0; pair < kColumnTiles / 4; ++pair) {
          uint32_t b[4];
          portable::LoadMatricesTransposed(
              b, values + PieceOffset<Tile::kRowBytes>(row + step * 16,
                                                       pair * 2 + lane / 16));
          // Bytes are columns 2c, 2c + 1 of key 2k, then of key 2k + 1.
#pragma unroll
          for (int i = 0; i < 4; ++i) b[i] = __byte_perm(b[i], 0, 0x3120);
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            Unit::Multiply(o[4 * pair + 2 * j], a, Float8PairToHalf(b[2 * j]),
                           Float8PairToHalf(b[2 * j + 1]));
            Unit::Multiply(o[4 * pair + 2 * j + 1], a,
                           Float8PairToHalf(b[2 * j] >> 16),
                           Float8PairToHalf(b[2 * j + 1] >> 16));
          }
        }
      } else {
#pragma unroll
        for (int pair = 0; pair < kColumnTiles / 2; ++pair) {
          uint32_t b[4];
          portable::LoadMatricesTransposed(
              b, values + PieceOffset<Tile::kRowBytes>(row + step * 16,
                                                       pair * 2 + lane / 16));
          Unit::Multiply(o[2 * pair], a, b[0], b[1]);
          Unit::Multiply(o[2 * pair + 1], a, b[2], b[3]);
        }
      }
    }
  }

  // Adds the non-finite values of the tile to the rows that see them. Their
  // weight is positive, so that NaN and infinity stand for their products.
  __device__ void AddNonFiniteValues(const uint8_t* values,
                                     const BlockProblem& problem, int tile) {
#pragma unroll 1
    for (int i = 0; i < Tile::kWarpKeys; ++i) {
      const int key = FirstKey() + i;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (Row(half) >= problem.rows ||
            !problem.Sees(Row(half), tile * Tile::kKeys + key)) {
          continue;
        }
#pragma unroll
        for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            const float v = Value(values, key, Column(n, e));
            if (!isfinite(v)) o[n][e] += v;
          }
        }
      }
    }
  }

  // Adds up the threads' sums of each row.
  __device__ void CompleteSums() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float& sum = state[half].sum;
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    }
  }

 private:
  static __device__ float Value(const uint8_t* values, int key, int column) {
    constexpr int kBytes = Tile::kFloat8 ? 1 : 2;
    const int byte = column * kBytes;
    const uint8_t* data =
        values + PieceOffset<Tile::kRowBytes>(key, byte / kPieceBytes) +
        byte % kPieceBytes;
    if constexpr (Tile::kFloat8) {
      return Float8ToFloat(*data);
    } else {
      return Element<T>::ToFloat(*reinterpret_cast<const uint16_t*>(data));
    }
  }
};

// Reads the query rows of the block into `tile`, as operands; the sign of the
// scale included.
template <typename Tile>
__device__ void LoadQueryTile(const BlockProblem& problem, uint8_t* tile) {
  using T = typename Tile::T;
  using Bits = typename Element<T>::Bits;
#pragma unroll 4
  for (int i = threadIdx.x; i < Tile::kRows * Tile::kColumns;
       i += Tile::kThreads) {
    const int row = i / Tile::kColumns;
    const int column = i % Tile::kColumns;
    Bits bits = 0;
    if (row < problem.rows && column < problem.head_dim_qk) {
      bits = problem.template QueryRow<Bits>(
          row)[column * problem.entry.query_strides.dim];
    }
    const uint32_t word = bits;
    if (problem.scale.query == ScoreScale::kNegate) {
      bits ^= static_cast<Bits>(Element<T>::kSignBits);
    } else if (problem.scale.query == ScoreScale::kZero) {
      bits = static_cast<Bits>(Element<T>::NonFinite(word));
    }
    *reinterpret_cast<Bits*>(
        tile +
        PieceOffset<Tile::kQueryRowBytes>(row, column * 2 / kPieceBytes) +
        column * 2 % kPieceBytes) = bits;
  }
}

// Turns a query tile of T into one of fp16, whose rows are scaled by powers of
// two to about 1 and `scales` undoes that.
template <typename Tile>
__device__ void NormalizeQueryTile(uint8_t* tile, float* scales) {
  using T = typename Tile::T;
  const int lane = threadIdx.x % 32;
  for (int row = threadIdx.x / 32; row < Tile::kRows; row += Tile::kWarps) {
    const auto at = [&](int column) {
      return reinterpret_cast<uint16_t*>(
          tile +
          PieceOffset<Tile::kQueryRowBytes>(row, column * 2 / kPieceBytes) +
          column * 2 % kPieceBytes);
    };
    float largest = 0;
    for (int column = lane; column < Tile::kColumns; column += 32) {
      const float value = fabsf(Element<T>::ToFloat(*at(column)));
      if (isfinite(value)) largest = fmaxf(largest, value);
    }
    for (int step = 16; step > 0; step /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    }
    // 2^-126 and 2^126 are normal, and so are their inverses.
    const int exponent =
        largest > 0 ? min(max(ilogbf(largest), -126), 126) : 0;
    const float down = ldexpf(1.0f, -exponent);
    for (int column = lane; column < Tile::kColumns; column += 32) {
      *at(column) = Element<__half>::FromFloat(
          Element<T>::ToFloat(*at(column)) * down);
    }
    if (lane == 0) scales[row] = ldexpf(1.0f, exponent);
  }
}

// See IsolateNonFiniteValues in portable/streaming_kernel.cuh.
template <typename Tile>
__device__ void IsolateNonFinite(AttendWarp<Tile>& warp, uint8_t* values,
                                 const BlockProblem& problem, int tile) {
  const auto mark = [](uint32_t word) {
    if constexpr (Tile::kFloat8) {
      return Float8NanBytes(word);
    } else {
      return Element<typename Tile::T>::NonFinite(word);
    }
  };
  uint32_t found = 0;
  portable::ForEachWord<false, Tile::kKeys, Tile::kRowBytes, Tile::kRowBytes,
                        Tile::kThreads>(
      values, [&](uint32_t word) { found |= mark(word); });
  if (!__syncthreads_or(found != 0)) return;
  warp.AddNonFiniteValues(values, problem, tile);
  __syncthreads();
  portable::ForEachWord<true, Tile::kKeys, Tile::kRowBytes, Tile::kRowBytes,
                        Tile::kThreads>(
      values, [&](uint32_t& word) { word &= ~mark(word); });
  __syncthreads();
}

// Each warp has its own rows.
template <typename Tile>
__device__ void StoreRows(AttendWarp<Tile>& warp, const BlockProblem& problem) {
  using Warp = AttendWarp<Tile>;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = Warp::Row(half);
    if (row >= problem.rows) continue;
    if (Warp::Lane() % 4 == 0) StoreState(problem, row, warp.state[half]);
#pragma unroll
    for (int n = 0; n < Warp::kColumnTiles; ++n) {
#pragma unroll
      for (int e = 2 * half; e < 2 * half + 2; ++e) {
        StoreColumn<typename Tile::T>(problem, row, Warp::Column(n, e),
                                      warp.o[n][e], warp.state[half].sum);
      }
    }
  }
}

// All warps have the same rows: adds up what they have in `o`, in shared
// memory, [warp][row][column].
template <typename Tile>
__device__ void MergeWarps(AttendWarp<Tile>& warp, const BlockProblem& problem,
                           float* o) {
  using Warp = AttendWarp<Tile>;
  constexpr int kWarps = Tile::kWarps;
  constexpr int kRows = Tile::kRows;
  __shared__ float maxima[kWarps][kRows];
  __shared__ float sums[kWarps][kRows];
  if (Warp::Lane() % 4 == 0) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      maxima[Warp::Warp()][Warp::Row(half)] = warp.state[half].max;
    }
  }
  __syncthreads();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = Warp::Row(half);
    float max = maxima[0][row];
    for (int w = 1; w < kWarps; ++w) max = fmaxf(max, maxima[w][row]);
    const float weight = warp.state[half].Raise(max, problem.scale.factor);
    if (Warp::Lane() % 4 == 0) sums[Warp::Warp()][row] = warp.state[half].sum;
    if (row >= problem.rows) continue;
    float* to = o + (Warp::Warp() * kRows + row) * Tile::kColumns;
#pragma unroll
    for (int n = 0; n < Warp::kColumnTiles; ++n) {
#pragma unroll
      for (int e = 2 * half; e < 2 * half + 2; ++e) {
        to[Warp::Column(n, e)] = warp.o[n][e] * weight;
      }
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < problem.rows * Tile::kColumns;
       i += Tile::kThreads) {
    const int row = i / Tile::kColumns;
    const int column = i % Tile::kColumns;
    float value = 0;
    RowState state;
    for (int w = 0; w < kWarps; ++w) {
      value += o[(w * kRows + row) * Tile::kColumns + column];
      state.sum += sums[w][row];
      state.max = fmaxf(state.max, maxima[w][row]);
    }
    StoreColumn<typename Tile::T>(problem, row, column, value, state.sum);
    if (column == 0) StoreState(problem, row, state);
  }
}

template <typename Tile>
__device__ void Attend(const HeadConfig& config, const PageGeometry& geometry,
                       const AttendTable& table, int64_t block) {
  extern __shared__ __align__(1024) uint8_t shared[];
  uint8_t* const query = shared;
  uint8_t* const stages = query + Tile::kQueryBytes;
  __shared__ Uninitialized<BlockProblem> problem_memory;
  BlockProblem& problem = problem_memory.get();
  __shared__ typename PageLoader<Tile>::Shared addresses;
  __shared__ float row_scales[Tile::kRows];
  if (threadIdx.x == 0) {
    problem = BlockProblem::Make(config, table, block);
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
  LoadQueryTile<Tile>(problem, query);
  __syncthreads();

  AttendWarp<Tile> warp;
  if constexpr (Tile::kFloat8) {
    NormalizeQueryTile<Tile>(query, row_scales);
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

    uint8_t* const keys = stages + stage * 2 * Tile::kTileBytes;
    uint8_t* const values = keys + Tile::kTileBytes;
    warp.ComputeScores(query, SharedAddress(keys));
    if (problem.NeedsMask(tile)) warp.MaskScores(problem, tile);
    warp.UpdateSoftmax(problem.scale.factor);
    if (problem.IsMixed(tile)) {
      IsolateNonFinite<Tile>(warp, values, problem, tile);
    }
    warp.AccumulateValues(SharedAddress(values));
    stage = (stage + 1) % Tile::kStages;
  }
  WaitForStage<0>();
  warp.CompleteSums();
  if constexpr (Tile::kManyRows) {
    StoreRows<Tile>(warp, problem);
  } else {
    __syncthreads();  // nobody reads the stages any more
    MergeWarps<Tile>(warp, problem, reinterpret_cast<float*>(stages));
  }
}

template <typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kMinBlocks)
    AttendTensorKernel(HeadConfig config, PageGeometry geometry,
                       AttendTable table, int64_t first_block) {
  // Built for an older architecture, the kernel is never chosen.
#if __CUDA_ARCH__ >= 800
  Attend<Tile>(config, geometry, table, first_block + blockIdx.x);
#endif
}

template <typename Tile>
constexpr AttendKernel DescribeTensor() {
  return {AttendTensorKernel<Tile>, Tile::kColumns, Tile::kThreads,
          Tile::kSharedBytes, 80};
}

}  // namespace attention::cuda::decode

#endif  // ATTENTION_KERNELS_CUDA_DECODE_TENSOR_CORE_CUH_
