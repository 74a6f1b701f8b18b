#include "kernels/cuda/kernel_choice.h"

#include <algorithm>

namespace attention::cuda {

cudaError_t GetAttribute(cudaDeviceAttr attribute, int* value) {
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  return cudaDeviceGetAttribute(value, attribute, device);
}

cudaError_t Prepare(const KernelNeeds& needs, const DeviceLimits& limits,
                    bool* can_run) {
  int shared_limit = 0;
  cudaError_t error =
      GetAttribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, &shared_limit);
  if (error != cudaSuccess) return error;
  cudaFuncAttributes attributes;
  error = cudaFuncGetAttributes(&attributes, needs.function);
  if (error != cudaSuccess) return error;
  const int shared =
      static_cast<int>(attributes.sharedSizeBytes) + needs.shared_bytes;
  *can_run =
      needs.min_arch <= std::min(attributes.ptxVersion, limits.architecture) &&
      shared <= std::min(shared_limit, limits.shared_bytes);
  if (!*can_run) return cudaSuccess;
  return cudaFuncSetAttribute(needs.function,
                              cudaFuncAttributeMaxDynamicSharedMemorySize,
                              needs.shared_bytes);
}

}  // namespace attention::cuda
