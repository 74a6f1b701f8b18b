// What a launch of one sm_90 kernel is made of.
#ifndef ATTENTION_KERNELS_CUDA_SM90_SHAPE_H_
#define ATTENTION_KERNELS_CUDA_SM90_SHAPE_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/attention_params.h"
#include "kernels/cuda/cut_alignment.h"
#include "kernels/cuda/sm90/kernels.h"
#include "kernels/cuda/sm90/work_list.h"

namespace attention::cuda::sm90 {

// log2 of the query heads of one K/V head that are packed into rows.
inline int GroupShift(const HeadConfig& config) {
  // Rows of a warpgroup; e4m3: such that rows 8 apart have the same head.
  const unsigned max_group =
      config.data_type == DataType::kFloat8E4M3 ? 8 : 64;
  const unsigned group = config.query_head_count / config.kv_head_count;
  return std::has_single_bit(group) && group <= max_group
             ? std::countr_zero(group)
             : 0;
}

// Where tiles come from, before they are ordered.
struct Shape {
  const HeadConfig& config;
  const PrefillKernel& kernel;
  int shift;

  Shape(const HeadConfig& c, const PrefillKernel& k)
      : config(c), kernel(k), shift(GroupShift(c)) {}

  int64_t Heads() const { return config.query_head_count >> shift; }
  int64_t Rows(const Sequence& s) const { return s.query_length << shift; }
  int64_t RowBlocks(const Sequence& s) const {
    return (Rows(s) + kernel.block_m - 1) / kernel.block_m;
  }
  int64_t KeyBytes(const Sequence& s) const {  // of one K/V head
    return s.key_length * (config.head_dim_qk + config.head_dim_v) *
           ElementBytes(config.data_type);
  }
  // Heads whose keys and values stay in the L2 cache together.
  int64_t SectionHeads(const Sequence& s) const {
    const int64_t per_kv = Heads() / config.kv_head_count;
    const int64_t kv_heads = std::clamp<int64_t>(
        kSectionBytes / std::max<int64_t>(KeyBytes(s), 1), 1,
        config.kv_head_count);
    return kv_heads * per_kv;
  }
  int64_t Runs(const Sequence& s) const {
    const int64_t heads = SectionHeads(s);
    return RowBlocks(s) * ((Heads() + heads - 1) / heads) *
           std::max<int64_t>(ChunkCount(s), 1);
  }

  // Keys of a sequence with few queries are cut into chunks so that its tiles are
  // more; the more rows, the longer, since partial results are as many bytes as
  // rows. Where they are cut depends on no other sequence and no other head.
  int64_t ChunkSteps(const Sequence& s) const {
    constexpr int64_t kMinSteps = 4, kMaxStepsForRows = 8;
    const int64_t steps = (s.key_length + kernel.block_n - 1) / kernel.block_n;
    return std::max(
        std::clamp<int64_t>(Rows(s) / 8, kMinSteps, kMaxStepsForRows),
        (steps + kMaxChunks - 1) / kMaxChunks);
  }
  int64_t ChunkCount(const Sequence& s) const {  // 0: not cut
    if (!kernel.takes_chunks || s.query_length > kMaxChunkedQueries) return 0;
    const int64_t keys = ChunkSteps(s) * kernel.block_n;
    return s.key_length > keys ? (s.key_length + keys - 1) / keys : 0;
  }
  // Partial results of a sequence, and the bytes of one.
  int64_t Partials(const Sequence& s) const {
    return ChunkCount(s) * Heads() * Rows(s);
  }
  size_t PartialBytes() const {
    return (config.head_dim_v + 1) * sizeof(float);
  }

  static constexpr int64_t kSectionBytes = 24 << 20;
};

}  // namespace attention::cuda::sm90

#endif  // ATTENTION_KERNELS_CUDA_SM90_SHAPE_H_
