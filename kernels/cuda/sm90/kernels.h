// The compiled sm_90 kernels. Each lives in a file of its own, so that they
// compile in parallel.
#ifndef ATTENTION_KERNELS_CUDA_SM90_KERNELS_H_
#define ATTENTION_KERNELS_CUDA_SM90_KERNELS_H_

#include "kernels/attention_params.h"
#include "kernels/cuda/sm90/work_list.h"

namespace attention::cuda::sm90 {

struct PrefillKernel {
  void (*function)(WorkList);
  int query_dims;  // the largest head dimensions
  int value_dims;
  int block_m;  // rows of a tile
  int block_n;  // keys of a step
  int query_box_rows;  // that one copy of the query moves
  int box_keys;        // whose keys, or values, one copy moves
  int threads;
  int shared_bytes;   // dynamic
  bool takes_chunks;  // of keys
};

// Named by type and head dimension of query and key (and of value, where it
// differs). Few is for few queries and for short causal sequences, Wide for many
// keys that all queries see.
extern const PrefillKernel kBFloat64, kBFloat64Few, kBFloat96, kBFloat128,
    kBFloat128Wide, kBFloat192x128, kBFloat192, kBFloat256;
extern const PrefillKernel kHalf64, kHalf64Few, kHalf96, kHalf128, kHalf128Wide,
    kHalf192x128, kHalf192, kHalf256;
// fp32, by precision and head dimension.
extern const PrefillKernel kTf32At64, kTf32At128, kIeeeAt64, kIeeeAt128;
extern const PrefillKernel kFloat8At64, kFloat8At128;

// The kernel of a sequence: the first whose dimensions suffice. Null if none do,
// and in a program without code for sm_90a. Kernels that give other bits depend on
// nothing that differs between the whole sequence and parts of it
// (cut_alignment.h).
const PrefillKernel* KernelFor(const HeadConfig& config,
                               const Sequence& sequence);

}  // namespace attention::cuda::sm90

#endif  // ATTENTION_KERNELS_CUDA_SM90_KERNELS_H_
