// The worker of streaming_kernel.cuh on tensor cores: each warp owns whole
// rows, so that the weights P never leave its registers.
#ifndef ATTENTION_KERNELS_CUDA_PORTABLE_TENSOR_CORE_CUH_
#define ATTENTION_KERNELS_CUDA_PORTABLE_TENSOR_CORE_CUH_

#include "kernels/cuda/portable/mma.cuh"
#include "kernels/cuda/portable/problem.cuh"

namespace attention::cuda::portable {

// kColumns bounds both head dimensions. Two row tiles per warp halve the
// shared-memory reads of K and V per product, where registers allow it.
template <typename T, int kColumns_, int kWarps, int kRowTiles_, int kBlockN_,
          int kMinBlocks_>
struct TensorCoreTile {
  using Type = T;
  using SharedType = T;
  static constexpr int kColumns = kColumns_;
  static constexpr int kRowTiles = kRowTiles_;
  static constexpr int kBlockN = kBlockN_;
  static constexpr int kMinBlocks = kMinBlocks_;  // per multiprocessor
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kBlockM = kWarps * kRowTiles * 16;
  static constexpr int kWidthBytes = kColumns * sizeof(T);
  // 16 bytes of padding spread 8 consecutive rows over all banks.
  static constexpr int kRowBytes = kWidthBytes + 16;
  static constexpr int kSharedBytes = (kBlockM + 2 * kBlockN) * kRowBytes;
  // Two row tiles do not fit the registers that sm_75's smaller steps need.
  static constexpr int kMinArch = kRowTiles > 1 ? 800 : MatrixUnit<T>::kMinArch;
};

// One fused multiply-add per weight is off by the rounding of base * factor,
// 2^-24 of it: up to this magnitude, nothing beside the rounding of weights to
// the operand type.
inline constexpr float kSmallOffset = 1024.0f;

inline __device__ float FastExp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// One warp's share of the block.
template <typename Tile_>
struct TensorCoreWarp {
  using Tile = Tile_;
  using T = typename Tile::Type;
  using Unit = MatrixUnit<T>;
  using Problem = BlockProblem<T, Tile::kBlockM, Tile::kBlockN>;
  static constexpr int kRowTiles = Tile::kRowTiles;
  static constexpr int kKeyTiles = Tile::kBlockN / 8;
  static constexpr int kColumnTiles = Tile::kColumns / 8;
  static constexpr int kRowBytes = Tile::kRowBytes;

  float o[kRowTiles][kColumnTiles][4] = {};
  float s[kRowTiles][kKeyTiles][4];
  RowState state[kRowTiles][2];

  static __device__ int Lane() { return threadIdx.x % 32; }
  static __device__ int FirstRow() { return threadIdx.x / 32 * kRowTiles * 16; }
  // The row, within the block, of accumulator elements 2 * half + {0, 1}.
  static __device__ int Row(int row_tile, int half) {
    return FirstRow() + row_tile * 16 + half * 8 + Lane() / 4;
  }
  static __device__ int Column(int tile, int element) {
    return tile * 8 + Lane() % 4 * 2 + element % 2;
  }

  template <int kRows, typename View>
  static __device__ void Load(uint8_t* tile, const View& view,
                              int64_t first_token, int rows) {
    LoadTile<kRows, Tile::kColumns, kRowBytes, Tile::kThreads>(
        tile, view, first_token, rows);
  }

  // S = Q K^T
  __device__ void ComputeScores(const uint8_t* query_tile,
                                const uint8_t* key_tile) {
    constexpr int kSteps = Tile::kWidthBytes / kStepBytes;
    const int lane = Lane();
    const uint32_t query = SharedAddress(query_tile) +
                           (FirstRow() + lane % 16) * kRowBytes +
                           lane / 16 * 16;
    const uint32_t key = SharedAddress(key_tile) +
                         (lane % 8 + lane / 16 * 8) * kRowBytes +
                         lane / 8 % 2 * 16;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) s[r][n][e] = 0.0f;
      }
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        LoadMatrices(a[r], query + r * 16 * kRowBytes + step * kStepBytes);
#pragma unroll
        for (int i = 0; i < 4; ++i) a[r][i] = Unit::Round(a[r][i]);
      }
#pragma unroll
      for (int pair = 0; pair < kKeyTiles / 2; ++pair) {
        uint32_t b[4];
        LoadMatrices(b, key + pair * 16 * kRowBytes + step * kStepBytes);
#pragma unroll
        for (int i = 0; i < 4; ++i) b[i] = Unit::Round(b[i]);
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          Unit::Multiply(s[r][2 * pair], a[r], b[0], b[1]);
          Unit::Multiply(s[r][2 * pair + 1], a[r], b[2], b[3]);
        }
      }
    }
  }

  __device__ void MaskScores(const Problem& problem, int64_t tile) {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto visible = problem.VisibleColumns(Row(r, half), tile);
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            const int column = Column(n, e);
            if (column < visible.begin || column >= visible.end) {
              s[r][n][e] = -INFINITY;
            }
          }
        }
      }
    }
  }

  // Turns scores into weights relative to the new maxima and rescales what was
  // accumulated. Each thread sums its own columns only; see Finish.
  __device__ void UpdateSoftmax(float factor) {
    bool large = false;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float max = s[r][0][2 * half];
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) {
          max = fmaxf(max, fmaxf(s[r][n][2 * half], s[r][n][2 * half + 1]));
        }
        max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 1));
        max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 2));
        const float rescale = state[r][half].Raise(max, factor);
#pragma unroll
        for (int n = 0; n < kColumnTiles; ++n) {
          o[r][n][2 * half] *= rescale;
          o[r][n][2 * half + 1] *= rescale;
        }
        large |= !(fabsf(state[r][half].Base() * factor) <= kSmallOffset);
      }
    }
    const bool subtract_first = __any_sync(0xffffffffu, large);
    if (subtract_first) {
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) s[r][n][e] -= state[r][e / 2].Base();
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        RowState& row = state[r][half];
        const float offset = subtract_first ? 0.0f : row.Base() * factor;
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            s[r][n][e] = FastExp2(fmaf(s[r][n][e], factor, -offset));
            row.sum += s[r][n][e];
          }
        }
      }
    }
  }

  // O += P V
  __device__ void AccumulateValues(const uint8_t* value_tile) {
    constexpr int kSteps = Tile::kBlockN * sizeof(T) / kStepBytes;
    const uint32_t value = SharedAddress(value_tile);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) Unit::WeightStep(a[r], s[r], step);
#pragma unroll
      for (int pair = 0; pair < kColumnTiles / 2; ++pair) {
        uint32_t b[4];
        Unit::template ValueStep<kRowBytes>(b, value, step, pair);
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          Unit::Multiply(o[r][2 * pair], a[r], b[0], b[1]);
          Unit::Multiply(o[r][2 * pair + 1], a[r], b[2], b[3]);
        }
      }
    }
  }

  // Adds the non-finite values of `tile` to the rows that see them. Their
  // weight is positive, so that NaN and infinity stand for their products.
  __device__ void AddNonFiniteValues(const uint8_t* value,
                                     const Problem& problem, int64_t tile) {
    using Bits = typename Element<T>::Bits;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto visible = problem.VisibleColumns(Row(r, half), tile);
#pragma unroll 1
        for (int key = visible.begin; key < visible.end; ++key) {
          const auto* row =
              reinterpret_cast<const Bits*>(value + key * kRowBytes);
#pragma unroll
          for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
            for (int e = 2 * half; e < 2 * half + 2; ++e) {
              const float v = Element<T>::ToFloat(row[Column(n, e)]);
              if (!isfinite(v)) o[r][n][e] += v;
            }
          }
        }
      }
    }
  }

  // output = O / l, staged through the warp's rows of the query tile.
  __device__ void Finish(uint8_t* staging, const Problem& problem) {
    using Bits = typename Element<T>::Bits;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        RowState& row = state[r][half];
        row.sum += __shfl_xor_sync(0xffffffffu, row.sum, 1);
        row.sum += __shfl_xor_sync(0xffffffffu, row.sum, 2);
        if (Lane() % 4 == 0) {
          problem.StoreLogSumExp(Row(r, half),
                                 row.LogSumExp(problem.scale.factor));
        }
        const float inverse = 1.0f / row.sum;
        auto* target =
            reinterpret_cast<Bits*>(staging + Row(r, half) * kRowBytes);
#pragma unroll
        for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            const float value = row.sum == 0 ? 0.0f : o[r][n][e] * inverse;
            target[Column(n, e)] = Element<T>::FromFloat(value);
          }
        }
      }
    }
    __syncwarp();
    const int rows = min(problem.rows - FirstRow(), kRowTiles * 16);
    StoreWarpTile<kRowBytes>(staging + FirstRow() * kRowBytes, problem.output,
                             problem.first_query + FirstRow(), rows);
  }
};

}  // namespace attention::cuda::portable

#endif  // ATTENTION_KERNELS_CUDA_PORTABLE_TENSOR_CORE_CUH_
