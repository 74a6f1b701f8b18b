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

// The keys or the values of a sequence that lie in pages; see TensorTokens.
template <DataType kType>
struct PagedTokens {
  static constexpr DataType kStored = kType;

  TokenRun<kType> Run(int64_t kv_head, KeyRange tokens) const {
    const int64_t count = rows.RunLength(tokens.begin, tokens.end);
    const int64_t end = tokens.begin + count;
    const bool another_page = end % rows.page_tokens == 0 && end < key_length &&
                              pages[end / rows.page_tokens] != nullptr;
    return {RowOf(tokens.begin, kv_head),
            rows.row_bytes / static_cast<int64_t>(sizeof(Storage<kType>)),
            count, another_page ? RowOf(end, kv_head) : nullptr};
  }
  int64_t dim_stride() const { return 1; }
  float Scale(int64_t kv_head) const {
    return kType == DataType::kFloat8E4M3 ? scales[kv_head] : 1.0f;
  }

  const Storage<kType>* RowOf(int64_t token, int64_t kv_head) const {
    return reinterpret_cast<const Storage<kType>*>(
        rows.Row(pages, token, kv_head));
  }

  PageRows rows;
  void* const* pages;
  int64_t key_length;
  const float* scales;  // kFloat8E4M3 only
  int64_t dim;
};

template <DataType kType, DataType kStored>
void ComputeStoredBlock(const PagedConfig& config, const PagedSequence& s,
                        const Block& block, float* scratch, float* partials) {
  const HeadConfig& heads = config.heads;
  const PagedTokens<kStored> keys = {PageRows::Keys(config), s.pages,
                                     s.key_length, s.key_scales,
                                     heads.head_dim_qk};
  const PagedTokens<kStored> values = {PageRows::Values(config), s.pages,
                                       s.key_length, s.value_scales,
                                       heads.head_dim_v};
  ComputeBlockOf<kType>(heads, block, MakeSinkMask(heads.mask, s), keys, values,
                        scratch, partials);
}

template <DataType kType>
void ComputePagedBlockOf(const PagedConfig& config,
                         const PagedSequence& sequence, const Block& block,
                         float* scratch, float* partials) {
  if (config.kv_data_type == KvDataType::kFloat8E4M3) {
    ComputeStoredBlock<kType, DataType::kFloat8E4M3>(config, sequence, block,
                                                     scratch, partials);
  } else {
    ComputeStoredBlock<kType, kType>(config, sequence, block, scratch,
                                     partials);
  }
}

void ComputePagedBlock(const PagedConfig& config, const PagedSequence& sequence,
                       const Block& block, float* scratch, float* partials) {
  WithDataType(config.heads.data_type, [&]<DataType kType>() HWY_ATTR {
    ComputePagedBlockOf<kType>(config, sequence, block, scratch, partials);
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
