// What a kernel that LaunchOverlapping launches has to say. Programmatic
// dependent launch exists since sm_90.
#ifndef ATTENTION_KERNELS_CUDA_OVERLAPPING_LAUNCH_CUH_
#define ATTENTION_KERNELS_CUDA_OVERLAPPING_LAUNCH_CUH_

namespace attention::cuda {

inline __device__ void WaitForPreviousKernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
inline __device__ void LetNextKernelCome() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace attention::cuda

#endif  // ATTENTION_KERNELS_CUDA_OVERLAPPING_LAUNCH_CUH_
