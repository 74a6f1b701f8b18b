#include "kernels/cuda/sm90/tensor_map.h"

#include <cudaTypedefs.h>

namespace attention::cuda::sm90 {
namespace {

constexpr int64_t kAlignment = 16;                   // bytes
constexpr int64_t kStrideLimit = int64_t{1} << 40;   // bytes

bool IsLegalStride(int64_t stride, int64_t size, int64_t element) {
  if (size <= 1) return true;
  return stride > 0 && stride < kStrideLimit / element &&
         stride * element % kAlignment == 0;
}

// From the driver, which must not be linked: programs start without one.
template <typename Function>
Function FindInDriver(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result;
  constexpr unsigned kVersion = 12000;
  if (cudaGetDriverEntryPointByVersion(name, &function, kVersion,
                                       cudaEnableDefault,
                                       &result) != cudaSuccess ||
      result != cudaDriverEntryPointSuccess) {
    return nullptr;
  }
  return reinterpret_cast<Function>(function);
}

CUtensorMapDataType MapType(DataType data_type, Precision precision) {
  switch (data_type) {
    case DataType::kFloat16:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case DataType::kBFloat16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DataType::kFloat8E4M3:
      return CU_TENSOR_MAP_DATA_TYPE_UINT8;
    case DataType::kFloat32:
      break;
  }
  return precision == Precision::kTf32 ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32
                                       : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
}

}  // namespace

bool CanBeMapped(const void* data, const TensorStrides& strides,
                 int64_t tokens, int64_t heads, DataType data_type) {
  const int64_t element = ElementBytes(data_type);
  return strides.dim == 1 &&
         reinterpret_cast<uintptr_t>(data) % kAlignment == 0 &&
         IsLegalStride(strides.token, tokens, element) &&
         IsLegalStride(strides.head, heads, element);
}

cudaError_t MakeTensorMap(DataType data_type, Precision precision,
                          const void* data,
                          const MapDimension* dimensions, int count,
                          CUtensorMap* map) {
  static const auto encode =
      FindInDriver<PFN_cuTensorMapEncodeTiled_v12000>("cuTensorMapEncodeTiled");
  if (encode == nullptr) return cudaErrorNotSupported;
  constexpr int kMaxDimensions = 4;
  cuuint64_t sizes[kMaxDimensions];
  cuuint64_t strides[kMaxDimensions - 1];
  cuuint32_t boxes[kMaxDimensions];
  cuuint32_t steps[kMaxDimensions];
  for (int i = 0; i < count; ++i) {
    const MapDimension& dimension = dimensions[i];
    sizes[i] = dimension.size;
    boxes[i] = dimension.box;
    steps[i] = 1;
    if (i == 0) continue;
    // The stride of a dimension of size 1 may be anything, but not here.
    strides[i - 1] = dimension.size == 1
                         ? kAlignment
                         : dimension.stride * ElementBytes(data_type);
  }
  const CUresult result =
      encode(map, MapType(data_type, precision), count,
             const_cast<void*>(data), sizes, strides, boxes, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t MakeTensorMapLike(const CUtensorMap& like, const void* data,
                              CUtensorMap* map) {
  static const auto replace = FindInDriver<PFN_cuTensorMapReplaceAddress_v12000>(
      "cuTensorMapReplaceAddress");
  if (replace == nullptr) return cudaErrorNotSupported;
  *map = like;
  const CUresult result = replace(map, const_cast<void*>(data));
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace attention::cuda::sm90
