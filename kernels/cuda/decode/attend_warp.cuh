// What the warps of both tensor-core kernels do with a tile of keys once it is
// in shared memory.
#ifndef ATTENTION_KERNELS_CUDA_DECODE_ATTEND_WARP_CUH_
#define ATTENTION_KERNELS_CUDA_DECODE_ATTEND_WARP_CUH_

#include <cstdint>

#include "kernels/cuda/decode/attend_tile.cuh"
#include "kernels/cuda/decode/block_problem.cuh"
#include "kernels/cuda/float8.cuh"
#include "kernels/cuda/portable/mma.cuh"
#include "kernels/cuda/portable/tensor_core.cuh"

namespace attention::cuda::decode {

using portable::Element;
using portable::MatrixUnit;
using portable::RowState;
using portable::SharedAddress;

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

}  // namespace attention::cuda::decode

#endif  // ATTENTION_KERNELS_CUDA_DECODE_ATTEND_WARP_CUH_
