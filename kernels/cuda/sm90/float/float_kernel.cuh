// Prefill attention in fp32 for compute capability 9.0: persistent blocks of
// one producer and two consumer warpgroups.
#ifndef ATTENTION_KERNELS_CUDA_SM90_FLOAT_FLOAT_KERNEL_CUH_
#define ATTENTION_KERNELS_CUDA_SM90_FLOAT_FLOAT_KERNEL_CUH_

#include "kernels/cuda/sm90/float/float_consumer.cuh"
#include "kernels/cuda/sm90/float/float_producer.cuh"
#include "kernels/cuda/sm90/kernels.h"

namespace attention::cuda::sm90 {

template <typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    FloatKernelEntry(const __grid_constant__ WorkList list) {
  // Built for another architecture, the kernel is never chosen.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ uint8_t dynamic[];
  __shared__ FloatShared<Tile> shared;
  if (threadIdx.x == 0) shared.Init();
  __syncthreads();
  LetNextKernelCome();
  WaitForPreviousKernel();
  const FloatMemory<Tile> memory{FirstPanel(dynamic)};
  if (threadIdx.x < 128) {
    GiveRegisters<Tile::kProducerRegisters>();
    const int warp = threadIdx.x / 32;
    if (warp < Tile::kPreparers) {
      Preparer<Tile>(shared, memory, warp).Run();
    } else if (threadIdx.x % 32 == 0) {
      ScheduleAndLoad(list, shared, memory);
    }
  } else {
    TakeRegisters<Tile::kConsumerRegisters>();
    FloatConsumer<Tile>(list, shared, memory).Run();
  }
#endif
}

template <typename Tile>
constexpr PrefillKernel DescribeFloat() {
  return {FloatKernelEntry<Tile>, Tile::kQueryDims,
          Tile::kValueDims,       Tile::kBlockM,
          Tile::kBlockN,          Tile::kBoxRows,
          Tile::kBoxRows,         Tile::kThreads,
          Tile::kSharedBytes + kPanelAlignment,
          /*takes_chunks=*/false};
}

}  // namespace attention::cuda::sm90

#endif  // ATTENTION_KERNELS_CUDA_SM90_FLOAT_FLOAT_KERNEL_CUH_
