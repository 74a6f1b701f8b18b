// Moves tiles of token rows between global and shared memory.
//
// A tile is kRows rows of kColumns elements, kRowBytes apart in shared memory.
// Rows and columns outside the tensor read as zeros, so that memory beside a
// tensor never takes part in a product (0 * NaN is NaN).
#ifndef ATTENTION_KERNELS_CUDA_PORTABLE_TILE_IO_CUH_
#define ATTENTION_KERNELS_CUDA_PORTABLE_TILE_IO_CUH_

#include <bit>
#include <cstdint>

#include "kernels/cuda/portable/element.cuh"

namespace attention::cuda::portable {

inline constexpr int kVectorBytes = 16;

// One head of a query, key, value or output tensor.
template <typename Bits>
struct HeadView {
  Bits* data;  // token 0, dim 0
  int64_t token_stride;
  int64_t dim_stride;
  int dims;           // 1...kMaxHeadDim
  bool vectorizable;  // see SequenceEntry
};

inline __device__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Copies `bytes` (0...16) and fills up to 16 with zeros. Asynchronous on sm_80
// and later: complete after AsyncWait and a barrier.
template <typename Bits>
__device__ void CopyVector(uint8_t* shared, const Bits* global, int bytes) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                   SharedAddress(shared)),
               "l"(global), "r"(bytes)
               : "memory");
#else
  uint4 vector = make_uint4(0, 0, 0, 0);
  if (bytes == kVectorBytes) {
    vector = *reinterpret_cast<const uint4*>(global);
  } else {
    Bits elements[kVectorBytes / sizeof(Bits)];
#pragma unroll
    for (int e = 0; e < kVectorBytes / sizeof(Bits); ++e) {
      elements[e] = e * sizeof(Bits) < bytes ? global[e] : Bits{0};
    }
    memcpy(&vector, elements, sizeof(vector));
  }
  *reinterpret_cast<uint4*>(shared) = vector;
#endif
}

// Waits for this thread's copies.
inline __device__ void AsyncWait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Loads tokens [first_token, first_token + rows) of `view` with all threads of
// the block; 0 < rows <= kRows.
template <int kRows, int kColumns, int kRowBytes, int kThreads, typename Bits>
__device__ void LoadTile(uint8_t* tile, HeadView<const Bits> view,
                         int64_t first_token, int rows) {
  constexpr int kVector = kVectorBytes / sizeof(Bits);
  constexpr int kChunks = kColumns / kVector;
  constexpr int kLanes = std::bit_ceil(static_cast<unsigned>(kChunks));
  constexpr int kStep = kThreads / kLanes;
  static_assert(kColumns % kVector == 0 && kRows % kStep == 0);

  const int column = threadIdx.x % kLanes * kVector;
  const int first_row = threadIdx.x / kLanes;
  if (column >= kColumns) return;
  tile += first_row * kRowBytes + column * sizeof(Bits);
  const int dims = min(max(view.dims - column, 0), kVector);
  const Bits* source = view.data +
                       (first_token + first_row) * view.token_stride +
                       column * view.dim_stride;
  const int64_t step = kStep * view.token_stride;

  if (view.vectorizable) {
#pragma unroll
    for (int i = 0; i < kRows / kStep; ++i) {
      const bool inside = first_row + i * kStep < rows && dims > 0;
      CopyVector(tile + i * kStep * kRowBytes,
                 inside ? source + i * step : view.data,
                 inside ? dims * static_cast<int>(sizeof(Bits)) : 0);
    }
    return;
  }
#pragma unroll 1
  for (int i = 0; i < kRows / kStep; ++i) {
    const bool inside = first_row + i * kStep < rows;
    Bits elements[kVector];
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      elements[e] =
          inside && e < dims ? source[i * step + e * view.dim_stride] : Bits{0};
    }
    memcpy(tile + i * kStep * kRowBytes, elements, kVectorBytes);
  }
}

// The same for 16-bit elements into a tile of floats.
template <int kRows, int kColumns, int kRowBytes, int kThreads, typename T>
__device__ void LoadTileAsFloat(uint8_t* tile,
                                HeadView<const typename Element<T>::Bits> view,
                                int64_t first_token, int rows) {
  constexpr int kVector = kVectorBytes / sizeof(float);
  constexpr int kLanes = kColumns / kVector;
  constexpr int kStep = kThreads / kLanes;
  static_assert(kThreads % kLanes == 0 && kRows % kStep == 0);

  const int column = threadIdx.x % kLanes * kVector;
#pragma unroll 1
  for (int row = threadIdx.x / kLanes; row < kRows; row += kStep) {
    const auto* source = view.data + (first_token + row) * view.token_stride;
    float elements[kVector];
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      elements[e] =
          row < rows && column + e < view.dims
              ? Element<T>::ToFloat(source[(column + e) * view.dim_stride])
              : 0.0f;
    }
    memcpy(tile + row * kRowBytes + column * sizeof(float), elements,
           kVectorBytes);
  }
}

// Stores the `rows` rows of `tile`, which this warp wrote itself, to tokens
// first_token and up.
template <int kRowBytes, typename Bits>
__device__ void StoreWarpTile(const uint8_t* tile, HeadView<Bits> view,
                              int64_t first_token, int rows) {
  constexpr int kVector = kVectorBytes / sizeof(Bits);
  const int lane = threadIdx.x % 32;
  if (view.vectorizable && view.dims % kVector == 0) {
    const int chunks = view.dims / kVector;
    for (int i = lane; i < rows * chunks; i += 32) {
      const int row = i / chunks;
      const int column = i % chunks * kVector;
      *reinterpret_cast<uint4*>(
          view.data + (first_token + row) * view.token_stride + column) =
          *reinterpret_cast<const uint4*>(tile + row * kRowBytes +
                                          column * sizeof(Bits));
    }
    return;
  }
  for (int row = 0; row < rows; ++row) {
    const auto* source = reinterpret_cast<const Bits*>(tile + row * kRowBytes);
    Bits* target = view.data + (first_token + row) * view.token_stride;
    for (int column = lane; column < view.dims; column += 32) {
      target[column * view.dim_stride] = source[column];
    }
  }
}

// Calls function(word) on every 32-bit word of a tile, shared out among the
// block's threads in vectors; the padding of rows is not visited. Changes to
// the word are kept if kWrite.
template <bool kWrite, int kRows, int kWidthBytes, int kRowBytes, int kThreads,
          typename Function>
__device__ void ForEachWord(uint8_t* tile, Function function) {
  constexpr int kVectors = kWidthBytes / kVectorBytes;
#pragma unroll 2
  for (int i = threadIdx.x; i < kRows * kVectors; i += kThreads) {
    auto* address = reinterpret_cast<uint4*>(tile + i / kVectors * kRowBytes +
                                             i % kVectors * kVectorBytes);
    uint4 vector = *address;
    function(vector.x);
    function(vector.y);
    function(vector.z);
    function(vector.w);
    if constexpr (kWrite) *address = vector;
  }
}

}  // namespace attention::cuda::portable

#endif  // ATTENTION_KERNELS_CUDA_PORTABLE_TILE_IO_CUH_
