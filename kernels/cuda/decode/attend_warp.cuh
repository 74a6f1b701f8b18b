// What both tensor-core kernels do with a tile of keys once it is in shared
// memory, for 16-bit types and sm_80 and later.
//
// Rows of a tile follow each other without padding: the 16-byte pieces of a row
// change places with the row's number (StoredPiece), so that eight rows of one
// column are in different banks. With few rows the warps share the keys of a
// tile and merge in the end; with many, each warp has rows of its own.
#ifndef ATTENTION_KERNELS_CUDA_DECODE_ATTEND_WARP_CUH_
#define ATTENTION_KERNELS_CUDA_DECODE_ATTEND_WARP_CUH_

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

// Where a piece of a row of kRowBytes lies in shared memory.
template <int kRowBytes>
__device__ constexpr int PieceOffset(int row, int piece) {
  return row * kRowBytes + StoredPiece(kRowBytes, row, piece) * kPieceBytes;
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
  // Large heads leave no registers for the scores of a whole tile.
  static constexpr int kPasses = kManyRows && kColumns > 128 ? 2 : 1;
  static constexpr int kPassKeys = kKeys / kPasses;
  static constexpr int kWarpKeys = kManyRows ? kPassKeys : kPassKeys / kWarps;
  static constexpr int kQueryRowBytes = kColumns * 2;
  static constexpr int kRowBytes = kColumns * (kFloat8 ? 1 : 2);
  static constexpr int kTileBytes = kKeys * kRowBytes;  // of K, and of V
  static constexpr int kQueryBytes = kRows * kQueryRowBytes;
  static constexpr int kStageBytes = 2 * kTileBytes;
  // What warps that share rows merge their accumulators in.
  static constexpr int kMergeBytes =
      kManyRows ? 0 : kWarps * kRows * kColumns * 4;
  // Larger heads leave no registers for the query.
  static constexpr bool kQueryInRegisters = kColumns <= 128;
};

// Barriers of the kWarps warps that compute, the block's first ones.
template <typename Tile>
__device__ void SyncWarps() {
  asm volatile("bar.sync 1, %0;" ::"n"(Tile::kThreads) : "memory");
}
template <typename Tile>
__device__ bool AnyOfWarps(bool value) {
  int any;
  asm volatile(
      "{ .reg .pred p; setp.ne.s32 p, %1, 0;\n"
      "bar.red.or.pred p, 1, %2, p;\n"
      "selp.s32 %0, 1, 0, p; }"
      : "=r"(any)
      : "r"(static_cast<int>(value)), "n"(Tile::kThreads)
      : "memory");
  return any != 0;
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
  // Of a warp's keys in a pass over a tile.
  static __device__ int FirstKey(int pass) {
    return pass * Tile::kPassKeys +
           (Tile::kManyRows ? 0 : Warp() * Tile::kWarpKeys);
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
  // The key, from the first on, of score elements.
  static __device__ int Key(int tile, int element) {
    return tile * 8 + Lane() % 4 * 2 + element % 2;
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
          a, SharedAddress(tile) +
                 PieceOffset<Tile::kQueryRowBytes>(FirstRow() + lane % 16,
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
  __device__ void ComputeScores(const uint8_t* query_tile, uint32_t keys,
                                int first_key) {
    const int lane = Lane();
    const int row = first_key + lane % 8 + lane / 16 * 8;
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

  // `first_key` counts from the start of the sequence.
  __device__ void MaskScores(const BlockProblem& problem, int first_key) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // Rows beyond the last are computed and thrown away.
      const int row = min(Row(half), problem.rows - 1);
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          if (!problem.Sees(row, first_key + Key(n, e))) s[n][e] = -INFINITY;
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
  __device__ void AccumulateValues(uint32_t values, int first_key) {
    const int lane = Lane();
    const int row = first_key + lane % 16;
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

  // Adds the non-finite values of a tile's keys to the rows that see them.
  // Their weight is positive, so that NaN and infinity stand for their
  // products.
  __device__ void AddNonFiniteValues(const uint8_t* values,
                                     const BlockProblem& problem, int tile,
                                     int first_key) {
#pragma unroll 1
    for (int key = first_key; key < first_key + Tile::kWarpKeys; ++key) {
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

// Whether the query can be read in pieces.
template <typename T>
__device__ bool HasQueryPieces(const BlockProblem& problem) {
  const TensorStrides& strides = problem.entry.query_strides;
  const auto base = reinterpret_cast<uintptr_t>(problem.entry.query);
  constexpr int kElements = kPieceBytes / sizeof(T);
  return strides.dim == 1 && base % kPieceBytes == 0 &&
         strides.token % kElements == 0 && strides.head % kElements == 0 &&
         problem.head_dim_qk % kElements == 0;
}

// Applies the part of the scale that is the query's to a word of elements.
template <typename T>
__device__ uint32_t AdjustQueryWord(ScoreScale::Query how, uint32_t word) {
  if (how == ScoreScale::kNegate) return word ^ Element<T>::kSignBits;
  // A word of all ones is NaN in every type.
  return how == ScoreScale::kZero ? Element<T>::NonFinite(word) : word;
}

// Reads the query rows of the block into `tile`, as operands, the sign of the
// scale included, as one of `threads` threads.
template <typename Tile>
__device__ void LoadQueryTile(const BlockProblem& problem, uint8_t* tile,
                              int thread, int threads) {
  using T = typename Tile::T;
  using Bits = typename Element<T>::Bits;
  constexpr int kPieces = Tile::kQueryRowBytes / kPieceBytes;
  const ScoreScale::Query how = problem.scale.query;
  // Rows beyond the last are zeros: their maxima do not move.
  const int used = problem.rows * kPieces;
  for (int i = used + thread; i < Tile::kRows * kPieces; i += threads) {
    reinterpret_cast<uint4*>(tile)[i] = make_uint4(0, 0, 0, 0);
  }
  if (HasQueryPieces<T>(problem)) {
    const int pieces = problem.head_dim_qk * 2 / kPieceBytes;
#pragma unroll 4
    for (int i = thread; i < used; i += threads) {
      const int row = i / kPieces;
      const int piece = i % kPieces;
      uint4 words = make_uint4(0, 0, 0, 0);
      if (piece < pieces) {
        words = reinterpret_cast<const uint4*>(
            problem.template QueryRow<Bits>(row))[piece];
      }
      words.x = AdjustQueryWord<T>(how, words.x);
      words.y = AdjustQueryWord<T>(how, words.y);
      words.z = AdjustQueryWord<T>(how, words.z);
      words.w = AdjustQueryWord<T>(how, words.w);
      *reinterpret_cast<uint4*>(
          tile + PieceOffset<Tile::kQueryRowBytes>(row, piece)) = words;
    }
    return;
  }
#pragma unroll 4
  for (int i = thread; i < problem.rows * Tile::kColumns; i += threads) {
    const int row = i / Tile::kColumns;
    const int column = i % Tile::kColumns;
    Bits bits = 0;
    if (column < problem.head_dim_qk) {
      bits = problem.template QueryRow<Bits>(
          row)[column * problem.entry.query_strides.dim];
    }
    *reinterpret_cast<Bits*>(
        tile +
        PieceOffset<Tile::kQueryRowBytes>(row, column * 2 / kPieceBytes) +
        column * 2 % kPieceBytes) =
        static_cast<Bits>(AdjustQueryWord<T>(how, bits));
  }
}

// Starts to copy the query rows of the block into `tile`, of a query that has
// pieces and that the scale does not change.
template <typename Tile>
__device__ void StartQueryTile(const BlockProblem& problem, uint8_t* tile,
                               int thread, int threads) {
#if __CUDA_ARCH__ >= 800
  using Bits = typename Element<typename Tile::T>::Bits;
  constexpr int kPieces = Tile::kQueryRowBytes / kPieceBytes;
  const int pieces = problem.head_dim_qk * 2 / kPieceBytes;
#pragma unroll 4
  for (int i = thread; i < Tile::kRows * kPieces; i += threads) {
    const int row = i / kPieces;
    const int piece = i % kPieces;
    const bool is_used = row < problem.rows && piece < pieces;
    const void* from = problem.entry.query;
    if (is_used) {
      from =
          reinterpret_cast<const uint4*>(problem.template QueryRow<Bits>(row)) +
          piece;
    }
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     SharedAddress(tile) +
                     PieceOffset<Tile::kQueryRowBytes>(row, piece)),
                 "l"(from), "r"(is_used ? kPieceBytes : 0)
                 : "memory");
  }
#endif
}

// Turns the first `rows` of a query tile of T into fp16, scaled by powers of
// two to about 1; `scales` undoes that.
template <typename Tile>
__device__ void NormalizeQueryTile(uint8_t* tile, float* scales, int rows,
                                   int warp, int warps) {
  using T = typename Tile::T;
  const int lane = threadIdx.x % 32;
  for (int row = warp; row < rows; row += warps) {
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
    const int exponent = largest > 0 ? min(max(ilogbf(largest), -126), 126) : 0;
    const float down = ldexpf(1.0f, -exponent);
    for (int column = lane; column < Tile::kColumns; column += 32) {
      *at(column) =
          Element<__half>::FromFloat(Element<T>::ToFloat(*at(column)) * down);
    }
    if (lane == 0) scales[row] = ldexpf(1.0f, exponent);
  }
}

// See IsolateNonFiniteValues in portable/streaming_kernel.cuh.
template <typename Tile>
__device__ void IsolateNonFinite(AttendWarp<Tile>& warp, uint8_t* values,
                                 const BlockProblem& problem, int tile,
                                 int pass) {
  const auto mark = [](uint32_t word) {
    if constexpr (Tile::kFloat8) {
      return Float8NanBytes(word);
    } else {
      return Element<typename Tile::T>::NonFinite(word);
    }
  };
  uint8_t* const rows = values + pass * Tile::kPassKeys * Tile::kRowBytes;
  uint32_t found = 0;
  portable::ForEachWord<false, Tile::kPassKeys, Tile::kRowBytes,
                        Tile::kRowBytes, Tile::kThreads>(
      rows, [&](uint32_t word) { found |= mark(word); });
  if (!AnyOfWarps<Tile>(found != 0)) return;
  warp.AddNonFiniteValues(values, problem, tile,
                          AttendWarp<Tile>::FirstKey(pass));
  SyncWarps<Tile>();
  portable::ForEachWord<true, Tile::kPassKeys, Tile::kRowBytes, Tile::kRowBytes,
                        Tile::kThreads>(
      rows, [&](uint32_t& word) { word &= ~mark(word); });
  SyncWarps<Tile>();
}

// Takes a tile in shared memory into the warp's rows. Calls `keys_done` when it
// has read the keys for the last time, and `await_values` before it reads the
// values.
template <typename Tile, typename KeysDone, typename AwaitValues>
__device__ void AttendTileOfKeys(AttendWarp<Tile>& warp, const uint8_t* query,
                                 uint8_t* keys, const BlockProblem& problem,
                                 int tile, bool needs_mask, KeysDone keys_done,
                                 AwaitValues await_values) {
  uint8_t* const values = keys + Tile::kTileBytes;
#pragma unroll 1
  for (int pass = 0; pass < Tile::kPasses; ++pass) {
    const int first_key = AttendWarp<Tile>::FirstKey(pass);
    warp.ComputeScores(query, SharedAddress(keys), first_key);
    if (pass == Tile::kPasses - 1) keys_done();
    if (needs_mask) {
      warp.MaskScores(problem, tile * Tile::kKeys + first_key);
    }
    warp.UpdateSoftmax(problem.scale.factor);
    if (pass == 0) await_values();
    if (needs_mask && problem.IsMixed()) {
      IsolateNonFinite<Tile>(warp, values, problem, tile, pass);
    }
    warp.AccumulateValues(SharedAddress(values), first_key);
  }
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

// Of rows that warps share.
template <typename Tile>
struct WarpStates {
  float maxima[Tile::kWarps][Tile::kRows];
  float sums[Tile::kWarps][Tile::kRows];
};

// Where they put an element of an accumulator: rows that are written together
// must not meet in a bank.
__device__ inline int MergeColumn(int row, int column) {
  return column ^ row % 4 * 8;
}

// All warps have the same rows: adds up what they have in `o`, in shared
// memory, [warp][row][column].
template <typename Tile>
__device__ void MergeWarps(AttendWarp<Tile>& warp, const BlockProblem& problem,
                           float* o, WarpStates<Tile>& states) {
  using Warp = AttendWarp<Tile>;
  constexpr int kWarps = Tile::kWarps;
  constexpr int kRows = Tile::kRows;
  constexpr int kColumns = Tile::kColumns;
  auto& maxima = states.maxima;
  auto& sums = states.sums;
  if (Warp::Lane() % 4 == 0) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      maxima[Warp::Warp()][Warp::Row(half)] = warp.state[half].max;
    }
  }
  SyncWarps<Tile>();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = Warp::Row(half);
    float max = maxima[0][row];
    for (int w = 1; w < kWarps; ++w) max = fmaxf(max, maxima[w][row]);
    const float weight = warp.state[half].Raise(max, problem.scale.factor);
    if (Warp::Lane() % 4 == 0) sums[Warp::Warp()][row] = warp.state[half].sum;
    if (row >= problem.rows) continue;
    float* to = o + (Warp::Warp() * kRows + row) * kColumns;
#pragma unroll
    for (int n = 0; n < Warp::kColumnTiles; ++n) {
      const float* const from = &warp.o[n][2 * half];
      if constexpr (Tile::kFloat8) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          to[MergeColumn(row, Warp::Column(n, e))] = from[e] * weight;
        }
      } else {
        *reinterpret_cast<float2*>(to + MergeColumn(row, Warp::Column(n, 0))) =
            make_float2(from[0] * weight, from[1] * weight);
      }
    }
  }
  SyncWarps<Tile>();
  const auto sum_of = [&](int row) {
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += sums[w][row];
    return sum;
  };
  for (int row = threadIdx.x; row < problem.rows; row += Tile::kThreads) {
    RowState state;
    state.sum = sum_of(row);
    for (int w = 0; w < kWarps; ++w) {
      state.max = fmaxf(state.max, maxima[w][row]);
    }
    StoreState(problem, row, state);
  }
  constexpr int kVectors = kColumns / 4;  // of a row
  const bool is_split = problem.entry.splits > 1;
  for (int i = threadIdx.x; i < problem.rows * kVectors; i += Tile::kThreads) {
    const int row = i / kVectors;
    const int column = i % kVectors * 4;
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float4 part = *reinterpret_cast<const float4*>(
          o + (w * kRows + row) * kColumns + MergeColumn(row, column));
      sum.x += part.x;
      sum.y += part.y;
      sum.z += part.z;
      sum.w += part.w;
    }
    if (is_split && column + 4 <= problem.head_dim_v) {
      const float scale = problem.value_scale;
      *reinterpret_cast<float4*>(problem.Partial(row) + column) = make_float4(
          sum.x * scale, sum.y * scale, sum.z * scale, sum.w * scale);
      continue;
    }
    const float row_sum = sum_of(row);
    const float values[] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      StoreColumn<typename Tile::T>(problem, row, column + c, values[c],
                                    row_sum);
    }
  }
}

}  // namespace attention::cuda::decode

#endif  // ATTENTION_KERNELS_CUDA_DECODE_ATTEND_WARP_CUH_
