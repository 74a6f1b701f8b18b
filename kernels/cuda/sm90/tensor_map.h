// Tensor maps: how tensor copies find a box in a strided tensor.
#ifndef ATTENTION_KERNELS_CUDA_SM90_TENSOR_MAP_H_
#define ATTENTION_KERNELS_CUDA_SM90_TENSOR_MAP_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/attention_params.h"

namespace attention::cuda::sm90 {

// One dimension: its size, the distance of neighbours in elements, and how many
// of it a box has. The first dimension is contiguous.
struct MapDimension {
  int64_t size;
  int64_t stride;
  int32_t box;
};

// Whether tensor copies can address the tensor: 16-byte aligned rows, and
// neighbours that do not share memory. Dimensions of size 1 have no neighbours.
bool CanBeMapped(const void* data, const TensorStrides& strides,
                 int64_t tokens, int64_t heads, DataType data_type);

// Fills *map for `count` dimensions, 3 or 4, of a tensor that CanBeMapped. With
// kTf32, copies round fp32 elements to that.
cudaError_t MakeTensorMap(DataType data_type, Precision precision,
                          const void* data,
                          const MapDimension* dimensions, int count,
                          CUtensorMap* map);

// As MakeTensorMap, for a tensor that differs from the one of `like` in its
// address alone; takes a quarter of the time.
cudaError_t MakeTensorMapLike(const CUtensorMap& like, const void* data,
                              CUtensorMap* map);

}  // namespace attention::cuda::sm90

#endif  // ATTENTION_KERNELS_CUDA_SM90_TENSOR_MAP_H_
