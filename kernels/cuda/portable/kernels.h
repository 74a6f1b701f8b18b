// The compiled streaming kernels. Each lives in a file of its own, so that they
// compile in parallel.
#ifndef ATTENTION_KERNELS_CUDA_PORTABLE_KERNELS_H_
#define ATTENTION_KERNELS_CUDA_PORTABLE_KERNELS_H_

#include <cstdint>

#include "kernels/attention_params.h"
#include "kernels/cuda/sequence_table.h"

namespace attention::cuda::portable {

struct StreamingKernel {
  void (*function)(HeadConfig, SequenceTable, int64_t first_block);
  int columns;  // the largest head dimension
  int block_m;  // query rows of a thread block
  int threads;
  int shared_bytes;  // dynamic
  int min_arch;      // 75 for sm_75: what the code must at least be built for
};

// Named by type and largest head dimension. The small ones fit devices with
// little shared memory per block (64 KiB on sm_75, 99 KiB on sm_86 and 89).
extern const StreamingKernel kHalf64, kHalf96, kHalf128, kHalf192, kHalf256;
extern const StreamingKernel kHalf64Small, kHalf128Small, kHalf256Small;
extern const StreamingKernel kBFloat64, kBFloat96, kBFloat128, kBFloat192,
    kBFloat256;
extern const StreamingKernel kBFloat256Small;
extern const StreamingKernel kTf32At64, kTf32At128, kTf32At256;
extern const StreamingKernel kTf32At128Small, kTf32At256Small;
extern const StreamingKernel kFma64, kFma128, kFma256;
extern const StreamingKernel kFma64Small, kFma128Small, kFma256Small;
extern const StreamingKernel kFmaBFloat64, kFmaBFloat128, kFmaBFloat256;

}  // namespace attention::cuda::portable

#endif  // ATTENTION_KERNELS_CUDA_PORTABLE_KERNELS_H_
