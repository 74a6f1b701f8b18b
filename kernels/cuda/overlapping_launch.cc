#include "kernels/cuda/overlapping_launch.h"

namespace attention::cuda {

cudaError_t LaunchOverlapping(const void* function, int64_t blocks, int threads,
                              int shared_bytes, cudaStream_t stream,
                              void** arguments) {
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t launch = {};
  launch.gridDim = dim3(static_cast<unsigned>(blocks));
  launch.blockDim = dim3(static_cast<unsigned>(threads));
  launch.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  launch.stream = stream;
  launch.attrs = &overlap;
  launch.numAttrs = 1;
  return cudaLaunchKernelExC(&launch, function, arguments);
}

}  // namespace attention::cuda
