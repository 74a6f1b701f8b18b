// The kernels of a paged launch, as the host sees them.
#ifndef ATTENTION_KERNELS_CUDA_DECODE_KERNELS_H_
#define ATTENTION_KERNELS_CUDA_DECODE_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/decode/table.h"

namespace attention::cuda::decode {

// Computes the blocks of a table from `first_block` on.
struct AttendKernel {
  void (*function)(HeadConfig config, PageGeometry geometry, AttendTable table,
                   int64_t first_block);
  int columns;  // bound of both head dimensions
  int threads;
  int shared_bytes;  // dynamic
  int min_arch;      // of the compiled code, e.g. 80
};

// By what the pages hold, then rows (few, many), from the first that fits.
extern const AttendKernel kBFloatFew64, kBFloatFew128, kBFloatFew256;
extern const AttendKernel kBFloatMany64, kBFloatMany128, kBFloatMany256;
extern const AttendKernel kHalfFew64, kHalfFew128, kHalfFew256;
extern const AttendKernel kHalfMany64, kHalfMany128, kHalfMany256;
extern const AttendKernel kBFloatFloat8Few64, kBFloatFloat8Few128,
    kBFloatFloat8Few256;
extern const AttendKernel kBFloatFloat8Many64, kBFloatFloat8Many128,
    kBFloatFloat8Many256;
extern const AttendKernel kHalfFloat8Few64, kHalfFloat8Few128,
    kHalfFloat8Few256;
extern const AttendKernel kHalfFloat8Many64, kHalfFloat8Many128,
    kHalfFloat8Many256;
// Any number of rows, any type, on any device, without tensor cores.
extern const AttendKernel kFmaFloat, kFmaFloatFloat8;
extern const AttendKernel kFmaHalf, kFmaHalfFloat8;
extern const AttendKernel kFmaBFloat, kFmaBFloatFloat8;

// Enqueue what their names say; nothing to do is fine.
cudaError_t CopyPages(const PagedConfig& config, const LaunchTables& tables,
                      cudaStream_t stream);
cudaError_t AppendRows(const PagedConfig& config, const LaunchTables& tables,
                       cudaStream_t stream);
// Merges the partial results of a table's split sequences.
cudaError_t MergeSplits(const PagedConfig& config, const AttendTable& table,
                        cudaStream_t stream);

}  // namespace attention::cuda::decode

#endif  // ATTENTION_KERNELS_CUDA_DECODE_KERNELS_H_
