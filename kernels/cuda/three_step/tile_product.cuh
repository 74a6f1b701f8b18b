// The product of two tiles in fp32: A^T B, both kDepth deep in shared memory.
//
// 256 threads form a square of 16 x 16; each owns 8 rows (4 and 4, 64 apart)
// and 4 or 8 columns. The next tiles are fetched into registers while the
// current ones are multiplied.
#ifndef ATTENTION_KERNELS_CUDA_THREE_STEP_TILE_PRODUCT_CUH_
#define ATTENTION_KERNELS_CUDA_THREE_STEP_TILE_PRODUCT_CUH_

#include <cstdint>

#include "kernels/cuda/portable/element.cuh"
#include "kernels/cuda/three_step/slice.h"

namespace attention::cuda::three_step {

using portable::Element;

inline constexpr int kThreads = 256;
inline constexpr int kDepth = 8;
inline constexpr int kThreadRows = 8;

// [depth, width] floats. Rows are padded so that a warp that stores 4 rows of 8
// depths meets each bank once.
template <int kWidth>
using SharedTile = float[kDepth][kWidth + 4];

// Rows of a matrix that go into shared memory as columns: queries, keys and
// weights, which all lie with the depth as their fastest dimension (as a rule:
// any stride will do).
template <typename T>
struct RowOperand {
  using Bits = typename Element<T>::Bits;
  static constexpr int kRowStep = kThreads / kDepth;
  static constexpr int kCount = kTileRows / kRowStep;  // elements per thread
  static_assert(kTileRows == kTileKeys);

  const Bits* data;  // this thread's first element
  int64_t row_step;  // elements from one of the thread's rows to its next
  int64_t depth_stride;
  int rows;       // rows of the tile that exist, from the thread's first on
  int64_t depth;  // depth that exists, from the thread's on

  __device__ RowOperand(const void* base, int64_t row_stride,
                        int64_t depth_stride, int rows, int64_t depth)
      : data(static_cast<const Bits*>(base) + Row() * row_stride +
             Depth() * depth_stride),
        row_step(kRowStep * row_stride),
        depth_stride(depth_stride),
        rows(rows - Row()),
        depth(depth - Depth()) {}

  static __device__ int Row() { return threadIdx.x / kDepth; }
  static __device__ int Depth() { return threadIdx.x % kDepth; }

  // Rows and depths that do not exist read as zero: memory beside the tensor
  // may hold anything.
  __device__ void Fetch(int64_t first_depth, float (&values)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const bool exists = i * kRowStep < rows && first_depth < depth;
      values[i] = exists ? Element<T>::ToFloat(
                               data[i * row_step + first_depth * depth_stride])
                         : 0.0f;
    }
  }

  __device__ void Store(const float (&values)[kCount],
                        SharedTile<kTileRows>& tile) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      tile[Depth()][Row() + i * kRowStep] = values[i];
    }
  }
};

// Rows of a matrix that stay rows: values.
template <typename T>
struct ColumnOperand {
  using Bits = typename Element<T>::Bits;
  static constexpr int kDepthStep = kThreads / kTileColumns;
  static constexpr int kCount = kDepth / kDepthStep;

  const Bits* data;
  int64_t depth_stride;
  int64_t depth;
  bool column_exists;

  __device__ ColumnOperand(const void* base, int64_t depth_stride,
                           int64_t column_stride, int64_t depth, int columns)
      : data(static_cast<const Bits*>(base) + Column() * column_stride),
        depth_stride(depth_stride),
        depth(depth),
        column_exists(Column() < columns) {}

  static __device__ int Depth() { return threadIdx.x / kTileColumns; }
  static __device__ int Column() { return threadIdx.x % kTileColumns; }

  __device__ void Fetch(int64_t first_depth, float (&values)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int64_t row = first_depth + Depth() + i * kDepthStep;
      values[i] = column_exists && row < depth
                      ? Element<T>::ToFloat(data[row * depth_stride])
                      : 0.0f;
    }
  }

  __device__ void Store(const float (&values)[kCount],
                        SharedTile<kTileColumns>& tile) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      tile[Depth() + i * kDepthStep][Column()] = values[i];
    }
  }
};

// The rows (or columns) of a thread: 4 consecutive in each run of 64.
inline __device__ int ThreadRow(int r) {
  return r / 4 * 64 + threadIdx.x / 16 * 4 + r % 4;
}
inline __device__ int ThreadColumn(int c) {
  return c / 4 * 64 + threadIdx.x % 16 * 4 + c % 4;
}

// Which depths count for which rows, as a band: row r takes depth k iff
// lower <= k - r <= upper. A product with a weight of zero would do but for
// values that are NaN or infinite, which rows that do not see them must not.
struct DepthBand {
  int lower, upper;
};

// sum += A^T B. Applies `band` if kBanded.
template <bool kBanded, int kColumns, int kPitch>
__device__ void Accumulate(const SharedTile<kTileRows>& a,
                           const float (&b)[kDepth][kPitch], DepthBand band,
                           float (&sum)[kThreadRows][kColumns]) {
#pragma unroll 2
  for (int k = 0; k < kDepth; ++k) {
    float row[kThreadRows];
    float column[kColumns];
#pragma unroll
    for (int r = 0; r < kThreadRows; r += 4) {
      *reinterpret_cast<float4*>(row + r) =
          *reinterpret_cast<const float4*>(&a[k][ThreadRow(r)]);
    }
#pragma unroll
    for (int c = 0; c < kColumns; c += 4) {
      *reinterpret_cast<float4*>(column + c) =
          *reinterpret_cast<const float4*>(&b[k][ThreadColumn(c)]);
    }
#pragma unroll
    for (int r = 0; r < kThreadRows; ++r) {
      const int diagonal = k - ThreadRow(r);
      if (kBanded && (diagonal < band.lower || diagonal > band.upper)) continue;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        sum[r][c] = fmaf(row[r], column[c], sum[r][c]);
      }
    }
  }
}

}  // namespace attention::cuda::three_step

#endif  // ATTENTION_KERNELS_CUDA_THREE_STEP_TILE_PRODUCT_CUH_
