// Prefill attention for compute capability 9.0: persistent blocks of one
// producer and some consumer warpgroups.
#ifndef ATTENTION_KERNELS_CUDA_SM90_PREFILL_KERNEL_CUH_
#define ATTENTION_KERNELS_CUDA_SM90_PREFILL_KERNEL_CUH_

#include "kernels/cuda/sm90/consumer.cuh"
#include "kernels/cuda/sm90/kernels.h"
#include "kernels/cuda/sm90/producer.cuh"

namespace attention::cuda::sm90 {

template <typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    PrefillKernelEntry(const __grid_constant__ WorkList list) {
  // Built for another architecture, the kernel is never chosen.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ uint8_t dynamic[];
  __shared__ PrefillShared<Tile> shared;
  if (threadIdx.x == 0) shared.Init();
  __syncthreads();
  LetNextKernelCome();
  const OperandMemory<Tile> memory{FirstPanel(dynamic)};
  if (threadIdx.x < 128) {
    GiveRegisters<Tile::kProducerRegisters>();
    switch (threadIdx.x / 32) {
      case 0:
        if (threadIdx.x == 0) LoadQueriesAndKeys(list, shared, memory);
        break;
      case 1:
        if (threadIdx.x == 32) LoadValues(list, shared, memory);
        break;
      case 2:
        if (threadIdx.x == 64) Schedule(list, shared);
        break;
      case 3:
        InspectValues(shared, memory);
        break;
    }
  } else {
    TakeRegisters<Tile::kConsumerRegisters>();
    Consumer<Tile>(list, shared, memory).Run();
  }
#endif
}

template <typename Tile>
constexpr PrefillKernel Describe() {
  return {PrefillKernelEntry<Tile>,
          Tile::kQueryDims,
          Tile::kValueDims,
          Tile::kBlockM,
          Tile::kBlockN,
          Tile::kBlockM,
          Tile::kBlockN,
          Tile::kThreads,
          Tile::kOperandBytes + kPanelAlignment,
          Tile::kTakesChunks};
}

}  // namespace attention::cuda::sm90

#endif  // ATTENTION_KERNELS_CUDA_SM90_PREFILL_KERNEL_CUH_
