#include "server/engine/cuda/cuda_driver.h"

#include <cuda.h>

namespace attention {
namespace {

// The interface's version that the declarations of cuda.h here belong to.
constexpr unsigned kVersion = 12000;

template <typename Function>
Function* Find(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
  const cudaError_t error = cudaGetDriverEntryPointByVersion(
      name, &function, kVersion, cudaEnableDefault, &result);
#else
  const cudaError_t error =
      cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &result);
#endif
  return error == cudaSuccess && result == cudaDriverEntryPointSuccess
             ? reinterpret_cast<Function*>(function)
             : nullptr;
}

// Of what can go wrong here, what callers tell apart.
cudaError_t ToRuntime(CUresult result) {
  switch (result) {
    case CUDA_SUCCESS:
      return cudaSuccess;
    case CUDA_ERROR_INVALID_VALUE:
      return cudaErrorInvalidValue;
    case CUDA_ERROR_ILLEGAL_ADDRESS:
      return cudaErrorIllegalAddress;
    default:
      return cudaErrorUnknown;
  }
}

}  // namespace

cudaError_t FillWords(void* device, uint32_t value, size_t count,
                      cudaStream_t stream) {
  static auto* const fill =
      Find<CUresult(CUdeviceptr, unsigned, size_t, CUstream)>(
          "cuMemsetD32Async");
  if (fill == nullptr) return cudaErrorNotSupported;
  return ToRuntime(
      fill(reinterpret_cast<CUdeviceptr>(device), value, count, stream));
}

cudaError_t BytesToEnd(const void* device, size_t* bytes) {
  static auto* const find = Find<CUresult(CUdeviceptr*, size_t*, CUdeviceptr)>(
      "cuMemGetAddressRange");
  if (find == nullptr) return cudaErrorNotSupported;
  const auto address = reinterpret_cast<CUdeviceptr>(device);
  CUdeviceptr base = 0;
  size_t size = 0;
  const CUresult result = find(&base, &size, address);
  if (result == CUDA_SUCCESS) *bytes = base + size - address;
  return ToRuntime(result);
}

}  // namespace attention
