// Prefill attention of e4m3 tensors for compute capability 9.0: persistent
// blocks of one producer and two consumer warpgroups.
#ifndef ATTENTION_KERNELS_CUDA_SM90_FLOAT8_FLOAT8_KERNEL_CUH_
#define ATTENTION_KERNELS_CUDA_SM90_FLOAT8_FLOAT8_KERNEL_CUH_

#include "kernels/cuda/sm90/float8/float8_consumer.cuh"
#include "kernels/cuda/sm90/float8/float8_producer.cuh"
#include "kernels/cuda/sm90/kernels.h"

namespace attention::cuda::sm90 {

template <typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    Float8KernelEntry(const __grid_constant__ WorkList list) {
  // Built for another architecture, the kernel is never chosen.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ uint8_t dynamic[];
  __shared__ Float8Shared<Tile> shared;
  if (threadIdx.x == 0) shared.Init();
  __syncthreads();
  LetNextKernelCome();
  WaitForPreviousKernel();
  const Float8Memory<Tile> memory{FirstPanel(dynamic)};
  if (threadIdx.x < 128) {
    GiveRegisters<Tile::kProducerRegisters>();
    const int warp = threadIdx.x / 32;
    if (warp < Tile::kBoxes) {
      Transposer<Tile>(shared, memory, warp).Run();
    } else if (threadIdx.x % 32 == 0) {
      ScheduleAndLoad(list, shared, memory);
    }
  } else {
    TakeRegisters<Tile::kConsumerRegisters>();
    Float8Consumer<Tile>(list, shared, memory).Run();
  }
#endif
}

template <typename Tile>
constexpr PrefillKernel DescribeFloat8() {
  return {Float8KernelEntry<Tile>, Tile::kQueryDims,
          Tile::kValueDims,        Tile::kBlockM,
          Tile::kBlockN,           Tile::kBlockM,
          Tile::kBoxKeys,          Tile::kThreads,
          Tile::kSharedBytes + kPanelAlignment,
          Tile::kTakesChunks};
}

}  // namespace attention::cuda::sm90

#endif  // ATTENTION_KERNELS_CUDA_SM90_FLOAT8_FLOAT8_KERNEL_CUH_
