#include <algorithm>

#include "kernels/cuda/overlapping_launch.cuh"
#include "kernels/cuda/overlapping_launch.h"
#include "kernels/cuda/upload.h"

namespace attention::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPieceBytes = sizeof(uint4);

// Tensor maps are read by another path than ordinary loads.
__device__ void PublishTensorMaps() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
#endif
}

// Only its end waits for the kernels ahead, for the sake of those behind.
__global__ void __launch_bounds__(kThreads)
    UploadKernel(const uint4* from, uint4* to, int64_t pieces, uint4* cleared,
                 int64_t cleared_pieces) {
  LetNextKernelCome();
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  const int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (int64_t i = first; i < pieces; i += stride) to[i] = from[i];
  for (int64_t i = first; i < cleared_pieces; i += stride) {
    cleared[i] = make_uint4(0, 0, 0, 0);
  }
  PublishTensorMaps();
  WaitForPreviousKernel();
}

}  // namespace

cudaError_t Upload(const void* host, void* device, int64_t bytes,
                   const Cleared& cleared, cudaStream_t stream) {
  constexpr int64_t kMaxBlocks = 256;
  int64_t pieces = bytes / kPieceBytes;
  int64_t cleared_pieces = cleared.bytes / kPieceBytes;
  void* cleared_data = cleared.data;
  void* arguments[] = {&host, &device, &pieces, &cleared_data, &cleared_pieces};
  return LaunchOverlapping(
      reinterpret_cast<const void*>(UploadKernel),
      std::clamp<int64_t>((pieces + kThreads - 1) / kThreads, 1, kMaxBlocks),
      kThreads, 0, stream, arguments);
}

}  // namespace attention::cuda
