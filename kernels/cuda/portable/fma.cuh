// The worker of streaming_kernel.cuh with plain fp32 multiply-adds: the IEEE
// path, and every type where the device lacks the matrix instruction.
//
// Threads form 16 groups of 8: a
// group owns kRows query rows (16 apart), and within it a thread owns kKeys
// score columns (8 apart) and an eighth of the output columns. A group lies in
// one warp, so that the weights are exchanged through shared memory private to
// the warp, kWeightKeys at a time.
#ifndef ATTENTION_KERNELS_CUDA_PORTABLE_FMA_CUH_
#define ATTENTION_KERNELS_CUDA_PORTABLE_FMA_CUH_

#include <type_traits>

#include "kernels/cuda/portable/problem.cuh"

namespace attention::cuda::portable {

template <typename T, int kColumns_, int kRows_, int kKeys_, int kMinBlocks_>
struct FmaTile {
  using Type = T;
  using SharedType = float;
  static constexpr int kColumns = kColumns_;      // bounds both head dimensions
  static constexpr int kRows = kRows_;            // per thread
  static constexpr int kKeys = kKeys_;            // per thread
  static constexpr int kMinBlocks = kMinBlocks_;  // per multiprocessor
  static constexpr int kGroups = 16;
  static constexpr int kGroupThreads = 8;
  static constexpr int kThreads = kGroups * kGroupThreads;
  static constexpr int kBlockM = kGroups * kRows;
  static constexpr int kBlockN = kGroupThreads * kKeys;
  static constexpr int kWidthBytes = kColumns * sizeof(float);
  // 16 bytes of padding spread 8 consecutive rows over all banks.
  static constexpr int kRowBytes = kWidthBytes + 16;
  static constexpr int kWeightPasses = kKeys > 4 ? 2 : 1;
  static constexpr int kWeightKeys = kBlockN / kWeightPasses;
  static constexpr int kWeightRowBytes = kWeightKeys * sizeof(float) + 16;
  static constexpr int kSharedBytes =
      (kBlockM + 2 * kBlockN) * kRowBytes + kBlockM * kWeightRowBytes;
  static constexpr int kMinArch = 750;
};

inline __device__ float4 LoadFloat4(const uint8_t* shared) {
  return *reinterpret_cast<const float4*>(shared);
}

// One thread's share of the block.
template <typename Tile_>
struct FmaThread {
  using Tile = Tile_;
  using T = typename Tile::Type;
  using Problem = BlockProblem<T, Tile::kBlockM, Tile::kBlockN>;
  static constexpr int kRows = Tile::kRows;
  static constexpr int kKeys = Tile::kKeys;
  static constexpr int kVectors = Tile::kColumns / (4 * Tile::kGroupThreads);
  static constexpr int kRowBytes = Tile::kRowBytes;
  static constexpr int kPassKeys = kKeys / Tile::kWeightPasses;

  float o[kRows][kVectors][4] = {};
  float s[kRows][kKeys];
  RowState state[kRows];

  static __device__ int Row(int r) {
    return r * Tile::kGroups + threadIdx.x / Tile::kGroupThreads;
  }
  static __device__ int Key(int k) {
    return k * Tile::kGroupThreads + threadIdx.x % Tile::kGroupThreads;
  }
  static __device__ int Column(int vector) {
    return (vector * Tile::kGroupThreads + threadIdx.x % Tile::kGroupThreads) *
           4;
  }

  template <int kTileRows, typename View>
  static __device__ void Load(uint8_t* tile, const View& view,
                              int64_t first_token, int rows) {
    if constexpr (std::is_same_v<T, float>) {
      LoadTile<kTileRows, Tile::kColumns, kRowBytes, Tile::kThreads>(
          tile, view, first_token, rows);
    } else {
      LoadTileAsFloat<kTileRows, Tile::kColumns, kRowBytes, Tile::kThreads, T>(
          tile, view, first_token, rows);
    }
  }

  // S = Q K^T
  __device__ void ComputeScores(const uint8_t* query, const uint8_t* key) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int k = 0; k < kKeys; ++k) s[r][k] = 0.0f;
    }
    query += Row(0) * kRowBytes;
    key += Key(0) * kRowBytes;
#pragma unroll 2
    for (int offset = 0; offset < Tile::kWidthBytes; offset += sizeof(float4)) {
      float4 q[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        q[r] = LoadFloat4(query + r * Tile::kGroups * kRowBytes + offset);
      }
#pragma unroll
      for (int k = 0; k < kKeys; ++k) {
        const float4 column =
            LoadFloat4(key + k * Tile::kGroupThreads * kRowBytes + offset);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          s[r][k] = fmaf(q[r].x, column.x, s[r][k]);
          s[r][k] = fmaf(q[r].y, column.y, s[r][k]);
          s[r][k] = fmaf(q[r].z, column.z, s[r][k]);
          s[r][k] = fmaf(q[r].w, column.w, s[r][k]);
        }
      }
    }
  }

  __device__ void MaskScores(const Problem& problem, int64_t tile) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const auto visible = problem.VisibleColumns(Row(r), tile);
#pragma unroll
      for (int k = 0; k < kKeys; ++k) {
        if (Key(k) < visible.begin || Key(k) >= visible.end)
          s[r][k] = -INFINITY;
      }
    }
  }

  // Turns scores into weights relative to the new maxima and rescales what was
  // accumulated. Each thread sums its own keys only; see Finish.
  __device__ void UpdateSoftmax(float factor) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float max = s[r][0];
#pragma unroll
      for (int k = 1; k < kKeys; ++k) max = fmaxf(max, s[r][k]);
#pragma unroll
      for (int lane = 1; lane < Tile::kGroupThreads; lane *= 2) {
        max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, lane));
      }
      const float rescale = state[r].Raise(max, factor);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
#pragma unroll
        for (int e = 0; e < 4; ++e) o[r][v][e] *= rescale;
      }
#pragma unroll
      for (int k = 0; k < kKeys; ++k) {
        s[r][k] = exp2f((s[r][k] - state[r].Base()) * factor);
        state[r].sum += s[r][k];
      }
    }
  }

  // O += P V
  __device__ void AccumulateValues(uint8_t* value) {
    constexpr int kWeightRowBytes = Tile::kWeightRowBytes;
    uint8_t* weights =
        value + Tile::kBlockN * kRowBytes;  // behind the value tile
    weights += Row(0) * kWeightRowBytes;
    value += Column(0) * sizeof(float);
#pragma unroll
    for (int pass = 0; pass < Tile::kWeightPasses; ++pass) {
      __syncwarp();  // nobody reads the previous weights any more
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int k = 0; k < kPassKeys; ++k) {
          *reinterpret_cast<float*>(
              weights + r * Tile::kGroups * kWeightRowBytes +
              Key(k) * sizeof(float)) = s[r][pass * kPassKeys + k];
        }
      }
      __syncwarp();
#pragma unroll 1
      for (int key = 0; key < Tile::kWeightKeys; key += 4) {
        float p[kRows][4];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const float4 row =
              LoadFloat4(weights + r * Tile::kGroups * kWeightRowBytes +
                         key * sizeof(float));
          p[r][0] = row.x, p[r][1] = row.y, p[r][2] = row.z, p[r][3] = row.w;
        }
        const uint8_t* row =
            value + (pass * Tile::kWeightKeys + key) * kRowBytes;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int v = 0; v < kVectors; ++v) {
            const float4 column = LoadFloat4(
                row + i * kRowBytes + v * Tile::kGroupThreads * sizeof(float4));
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
              o[r][v][0] = fmaf(p[r][i], column.x, o[r][v][0]);
              o[r][v][1] = fmaf(p[r][i], column.y, o[r][v][1]);
              o[r][v][2] = fmaf(p[r][i], column.z, o[r][v][2]);
              o[r][v][3] = fmaf(p[r][i], column.w, o[r][v][3]);
            }
          }
        }
      }
    }
  }

  // Adds the non-finite values of `tile` to the rows that see them. Their
  // weight is positive, so that NaN and infinity stand for their products.
  __device__ void AddNonFiniteValues(const uint8_t* value,
                                     const Problem& problem, int64_t tile) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const auto visible = problem.VisibleColumns(Row(r), tile);
#pragma unroll 1
      for (int key = visible.begin; key < visible.end; ++key) {
        const auto* row =
            reinterpret_cast<const float*>(value + key * kRowBytes);
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const float x = row[Column(v) + e];
            if (!isfinite(x)) o[r][v][e] += x;
          }
        }
      }
    }
  }

  // output = O / l
  __device__ void Finish(uint8_t* /*staging*/, const Problem& problem) {
    using Bits = typename Element<T>::Bits;
    const HeadView<Bits> view = problem.output;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      RowState& row = state[r];
#pragma unroll
      for (int lane = 1; lane < Tile::kGroupThreads; lane *= 2) {
        row.sum += __shfl_xor_sync(0xffffffffu, row.sum, lane);
      }
      if (Row(r) >= problem.rows) continue;
      if (threadIdx.x % Tile::kGroupThreads == 0) {
        problem.StoreLogSumExp(Row(r), row.LogSumExp(problem.scale.factor));
      }
      Bits* target =
          view.data + (problem.first_query + Row(r)) * view.token_stride;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        Bits elements[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          elements[e] =
              Element<T>::FromFloat(row.sum == 0 ? 0.0f : o[r][v][e] / row.sum);
        }
        if constexpr (sizeof(elements) == kVectorBytes) {
          if (view.vectorizable && Column(v) + 4 <= view.dims) {
            *reinterpret_cast<uint4*>(target + Column(v)) =
                make_uint4(elements[0], elements[1], elements[2], elements[3]);
            continue;
          }
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (Column(v) + e < view.dims) {
            target[(Column(v) + e) * view.dim_stride] = elements[e];
          }
        }
      }
    }
  }
};

}  // namespace attention::cuda::portable

#endif  // ATTENTION_KERNELS_CUDA_PORTABLE_FMA_CUH_
