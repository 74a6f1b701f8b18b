// Marks functions that both host and device code call.
#ifndef ATTENTION_KERNELS_HOST_DEVICE_H_
#define ATTENTION_KERNELS_HOST_DEVICE_H_

#if defined(__CUDACC__)
#define ATTENTION_HOST_DEVICE __host__ __device__
#else
#define ATTENTION_HOST_DEVICE
#endif

#endif  // ATTENTION_KERNELS_HOST_DEVICE_H_
