#include "kernels/cpu/paged.h"

#include <cstdint>
#include <new>
#include <vector>

#include "kernels/cpu/block_loop.h"
#include "kernels/cpu/page_layout.h"
#include "kernels/cpu/page_writes.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/paged.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
//
#include "kernels/cpu/streaming-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attention::cpu {
namespace HWY_NAMESPACE {
namespace {

// Keys and values that lie in pages. `kElements` are queries' and outputs',
// `kStored` the pages'.
template <DataType kElements, DataType kStored>
class PageSource {
 public:
  static constexpr DataType kType = kElements;

  PageSource(const PagedConfig& config, const PagedSequence& sequence)
      : config_(config.heads),
        sequence_(sequence),
        keys_(PageRows::Keys(config)),
        values_(PageRows::Values(config)) {}

  float KeyScale(int64_t kv_head) const {
    return kStored == kFloat8E4M3 ? sequence_.key_scales[kv_head] : 1.0f;
  }
  float ValueScale(int64_t kv_head) const {
    return kStored == kFloat8E4M3 ? sequence_.value_scales[kv_head] : 1.0f;
  }

  TokenTile Keys(int64_t kv_head, KeyRange tokens, int64_t padded,
                 bool in_place, float* scratch) const {
    return Load(keys_, kv_head, tokens, config_.head_dim_qk, padded, in_place,
                scratch);
  }
  TokenTile Values(int64_t kv_head, KeyRange tokens, int64_t padded,
                   bool in_place, float* scratch) const {
    return Load(values_, kv_head, tokens, config_.head_dim_v, padded, in_place,
                scratch);
  }

 private:
  TokenTile Load(const PageRows& rows, int64_t kv_head, KeyRange tokens,
                 int64_t dim, int64_t padded, bool in_place,
                 float* scratch) const {
    const int64_t row_elements = rows.row_bytes / sizeof(Storage<kStored>);
    const int64_t stride = padded + kLanes;
    int64_t run;
    for (int64_t token = tokens.begin; token < tokens.end; token += run) {
      run = rows.RunLength(token, tokens.end);
      const auto* from = reinterpret_cast<const Storage<kStored>*>(
          rows.Row(sequence_.pages, token, kv_head));
      if constexpr (kStored == DataType::kFloat32) {
        if (in_place && padded == dim && run == tokens.end - tokens.begin) {
          return {from, row_elements};
        }
      }
      float* to = scratch + (token - tokens.begin) * stride;
      for (int64_t i = 0; i < run; ++i) {
        LoadRow<kStored>(from + i * row_elements, 1, dim, padded,
                         to + i * stride);
      }
    }
    return {scratch, stride};
  }

  const HeadConfig& config_;
  const PagedSequence& sequence_;
  const PageRows keys_;
  const PageRows values_;
};

template <DataType kType>
void ComputePagedBlockOf(const PagedConfig& config,
                         const PagedSequence& sequence, const Block& block,
                         float* scratch, float* partials) {
  const SinkMask mask = MakeSinkMask(config.heads.mask, sequence);
  if (config.kv_data_type == KvDataType::kFloat8E4M3) {
    ComputeBlockOf(config.heads, block, mask,
                   PageSource<kType, kFloat8E4M3>(config, sequence), scratch,
                   partials);
  } else {
    ComputeBlockOf(config.heads, block, mask,
                   PageSource<kType, kType>(config, sequence), scratch,
                   partials);
  }
}

void ComputePagedBlock(const PagedConfig& config, const PagedSequence& sequence,
                       const Block& block, float* scratch, float* partials) {
  switch (config.heads.data_type) {
    case DataType::kFloat32:
      return ComputePagedBlockOf<DataType::kFloat32>(config, sequence, block,
                                                     scratch, partials);
    case DataType::kFloat16:
      return ComputePagedBlockOf<DataType::kFloat16>(config, sequence, block,
                                                     scratch, partials);
    case DataType::kBFloat16:
      return ComputePagedBlockOf<DataType::kBFloat16>(config, sequence, block,
                                                      scratch, partials);
  }
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
HWY_EXPORT(ComputePagedBlock);
HWY_EXPORT(MergeRow);

// All but the keys and values.
Sequence QuerySide(const PagedSequence& s) {
  Sequence q;
  q.query = s.query;
  q.output = s.output;
  q.log_sum_exp = s.log_sum_exp;
  q.query_strides = s.query_strides;
  q.output_strides = s.output_strides;
  q.log_sum_exp_token_stride = s.log_sum_exp_token_stride;
  q.log_sum_exp_head_stride = s.log_sum_exp_head_stride;
  q.query_length = s.query_length;
  q.key_length = s.key_length;
  q.scale = s.scale;
  return q;
}

void Attend(const PagedParams& params, ThreadPool& pool) {
  const HeadConfig& config = params.config.heads;
  const auto compute_block = HWY_DYNAMIC_DISPATCH(ComputePagedBlock);
  std::vector<Sequence> queries;
  queries.reserve(params.sequence_count);
  for (int64_t i = 0; i < params.sequence_count; ++i) {
    queries.push_back(QuerySide(params.sequences[i]));
  }
  const auto paged = [&](const Sequence& s) -> const PagedSequence& {
    return params.sequences[&s - queries.data()];
  };
  RunBlockLoop({config, queries.data(), params.sequence_count},
               {.mask_of =
                    [&](const Sequence& s) {
                      return MakeSinkMask(config.mask, paged(s));
                    },
                .rows_per_block = HWY_DYNAMIC_DISPATCH(BlockRows)(),
                .scratch_floats = HWY_DYNAMIC_DISPATCH(ScratchFloats)(config),
                .compute =
                    [&](const Block& block, float* scratch, float* partials) {
                      compute_block(params.config, paged(*block.sequence),
                                    block, scratch, partials);
                    },
                .merge_row = HWY_DYNAMIC_DISPATCH(MergeRow)},
               pool);
}

}  // namespace

absl::Status ComputePaged(const PagedParams& params, ThreadPool& pool) {
  if (params.config.heads.query_head_count == 0) return absl::OkStatus();
  // Memory is taken between parallel loops only, on this thread.
  try {
    CopyPages(params, pool);
    AppendToPages(params, pool);
    Attend(params, pool);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        "no memory for the scratch space of the computation");
  }
  return absl::OkStatus();
}

}  // namespace attention::cpu
#endif  // HWY_ONCE
