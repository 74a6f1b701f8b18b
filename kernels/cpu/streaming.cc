#include "kernels/cpu/streaming.h"

#include <cstdint>

#include "kernels/cpu/block_loop.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/streaming.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
//
#include "kernels/cpu/streaming-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attention::cpu {
namespace HWY_NAMESPACE {
namespace {

template <DataType kType>
void ComputeTensorBlock(const HeadConfig& config, const Block& block,
                        float* scratch, float* partials) {
  const Sequence& s = *block.sequence;
  ComputeBlockOf<kType>(config, block, MakeSinkMask(config.mask, s),
                        KeysOf<kType>(config, s), ValuesOf<kType>(config, s),
                        scratch, partials);
}

void ComputeBlock(const HeadConfig& config, const Block& block, float* scratch,
                  float* partials) {
  if (config.data_type == DataType::kFloat8E4M3) {
    ComputeTensorBlock<DataType::kFloat8E4M3>(config, block, scratch, partials);
    return;
  }
  WithDataType(config.data_type, [&]<DataType kType>() HWY_ATTR {
    ComputeTensorBlock<kType>(config, block, scratch, partials);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace attention::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attention::cpu {
namespace {

HWY_EXPORT(ScratchFloats);
HWY_EXPORT(BlockRows);
HWY_EXPORT(ComputeBlock);
HWY_EXPORT(MergeRow);

}  // namespace

void ComputeStreaming(const AttentionParams& params, ThreadPool& pool) {
  const HeadConfig& config = params.config;
  const auto compute_block = HWY_DYNAMIC_DISPATCH(ComputeBlock);
  RunBlockLoop(
      params,
      {.mask_of =
           [&](const Sequence& s) { return MakeSinkMask(config.mask, s); },
       .rows_per_block = HWY_DYNAMIC_DISPATCH(BlockRows)(),
       .scratch_floats = HWY_DYNAMIC_DISPATCH(ScratchFloats)(config),
       .compute =
           [&](const Block& block, float* scratch, float* partials) {
             compute_block(config, block, scratch, partials);
           },
       .merge_row = HWY_DYNAMIC_DISPATCH(MergeRow)},
      pool);
}

}  // namespace attention::cpu
#endif  // HWY_ONCE
