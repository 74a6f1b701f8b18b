// The kernels of a paged launch, as the host sees them.
#ifndef ATTENTION_KERNELS_CUDA_DECODE_KERNELS_H_
#define ATTENTION_KERNELS_CUDA_DECODE_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/decode/page_geometry.h"
#include "kernels/cuda/decode/table.h"

namespace attention::cuda::decode {

// Computes the blocks of a table from a first one on, one each, or all of them
// with as many as fit on the device.
struct AttendKernel {
  // (HeadConfig, PageGeometry, AttendTable, then int64_t first_block or, if
  // blocks take turns, FirstEntries)
  const void* function;
  int columns;  // bound of both head dimensions
  int threads;
  int shared_bytes;              // dynamic
  int min_arch;                  // of the compiled code, e.g. 80
  int blocks_per_processor = 0;  // more than 0: those take turns
  bool is_exact = false;         // both head dimensions are `columns`
  bool merges = false;           // needs no MergeSplits
};

// On tensor cores, by type, pages, rows (few, many) and columns.
extern const AttendKernel kBFloatFew64Streamed, kBFloatFew128Streamed,
    kBFloatFew256Streamed, kBFloatFew64, kBFloatFew128, kBFloatFew256;
extern const AttendKernel kBFloatMany64Streamed, kBFloatMany128Streamed,
    kBFloatMany256Streamed, kBFloatMany64, kBFloatMany128, kBFloatMany256;
extern const AttendKernel kBFloatFloat8Few64Streamed,
    kBFloatFloat8Few128Streamed, kBFloatFloat8Few256Streamed,
    kBFloatFloat8Few64, kBFloatFloat8Few128, kBFloatFloat8Few256;
extern const AttendKernel kBFloatFloat8Many64Streamed,
    kBFloatFloat8Many128Streamed, kBFloatFloat8Many256Streamed,
    kBFloatFloat8Many64, kBFloatFloat8Many128, kBFloatFloat8Many256;
extern const AttendKernel kHalfFew64Streamed, kHalfFew128Streamed,
    kHalfFew256Streamed, kHalfFew64, kHalfFew128, kHalfFew256;
extern const AttendKernel kHalfMany64Streamed, kHalfMany128Streamed,
    kHalfMany256Streamed, kHalfMany64, kHalfMany128, kHalfMany256;
extern const AttendKernel kHalfFloat8Few64Streamed, kHalfFloat8Few128Streamed,
    kHalfFloat8Few256Streamed, kHalfFloat8Few64, kHalfFloat8Few128,
    kHalfFloat8Few256;
extern const AttendKernel kHalfFloat8Many64Streamed, kHalfFloat8Many128Streamed,
    kHalfFloat8Many256Streamed, kHalfFloat8Many64, kHalfFloat8Many128,
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
