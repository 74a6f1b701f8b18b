// Choosing a kernel that the current device can run.
#ifndef ATTENTION_KERNELS_CUDA_KERNEL_CHOICE_H_
#define ATTENTION_KERNELS_CUDA_KERNEL_CHOICE_H_

#include <cuda_runtime_api.h>

#include <initializer_list>
#include <limits>

namespace attention::cuda {

// Bounds on what a kernel may ask of the device, beside the device's own: so a
// large device can stand in for a small one.
struct DeviceLimits {
  int architecture = std::numeric_limits<int>::max();  // 75 for sm_75
  int shared_bytes = std::numeric_limits<int>::max();  // per thread block

  friend bool operator==(const DeviceLimits&, const DeviceLimits&) = default;
};

// What a kernel asks for. `min_arch`, 75 for sm_75, is what its code must at
// least be built for.
struct KernelNeeds {
  const void* function;
  int min_arch;
  int shared_bytes;  // dynamic
};

// Whether the current device, within `limits`, can run the kernel as it was
// built for it; if so, readies it for launches there.
cudaError_t Prepare(const KernelNeeds& needs, const DeviceLimits& limits,
                    bool* can_run);

// The first of the candidates for which fits(kernel) holds and which can be
// run, ready for launches. cudaErrorNotSupported when there is none. `Kernel`
// has the members of KernelNeeds; `function` may be of any function type.
template <typename Kernel, typename Fits>
cudaError_t FindKernel(std::initializer_list<const Kernel*> candidates,
                       const Fits& fits, const DeviceLimits& limits,
                       const Kernel** found) {
  for (const Kernel* kernel : candidates) {
    if (!fits(*kernel)) continue;
    const KernelNeeds needs = {reinterpret_cast<const void*>(kernel->function),
                               kernel->min_arch, kernel->shared_bytes};
    bool can_run = false;
    if (const cudaError_t error = Prepare(needs, limits, &can_run);
        error != cudaSuccess) {
      return error;
    }
    if (!can_run) continue;
    *found = kernel;
    return cudaSuccess;
  }
  return cudaErrorNotSupported;
}

// An attribute of the current device.
cudaError_t GetAttribute(cudaDeviceAttr attribute, int* value);

}  // namespace attention::cuda

#endif  // ATTENTION_KERNELS_CUDA_KERNEL_CHOICE_H_
