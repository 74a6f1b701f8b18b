#include "server/engine/cuda/warm_up.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/paged_params.h"
#include "server/engine/kv_batch.h"
#include "server/engine/kv_cache.h"

namespace attention {
namespace {

constexpr HeadConfig OneHead(DataType type, int32_t head_dim, MaskKind mask) {
  return {.data_type = type,
          .head_dim_qk = head_dim,
          .head_dim_v = head_dim,
          .query_head_count = 1,
          .kv_head_count = 1,
          .mask = mask};
}

// `tokens` queries and keys, one head. `zeros` holds as many tokens.
std::unique_ptr<AttentionWork> TinyWork(const HeadConfig& config,
                                        int64_t tokens,
                                        absl::string_view zeros) {
  const TensorStrides strides = {.token = config.head_dim_qk};
  auto work = std::make_unique<AttentionWork>();
  work->config = config;
  work->sequences.push_back({.shape = {.query_strides = strides,
                                       .key_strides = strides,
                                       .value_strides = strides,
                                       .output_strides = strides,
                                       .query_length = tokens,
                                       .key_length = tokens,
                                       .scale = 1}});
  const size_t bytes = static_cast<size_t>(tokens * config.head_dim_qk *
                                           ElementBytes(config.data_type));
  work->query.fragments = {zeros.substr(0, bytes)};
  work->key.fragments = work->query.fragments;
  work->value.fragments = work->query.fragments;
  work->output_bytes = static_cast<size_t>(
      tokens * config.head_dim_v * ElementBytes(OutputType(config.data_type)));
  return work;
}

absl::Status Compute(BatchExecutor& executor,
                     std::unique_ptr<AttentionWork> work, KvBatch* kv_batch) {
  PreparedWork prepared;
  prepared.work = std::move(work);
  if (absl::Status status = executor.Prepare(prepared); !status.ok()) {
    return status;
  }
  const HeadConfig config = prepared.work->config;
  const absl::Span<PreparedWork> works = absl::MakeSpan(&prepared, 1);
  if (absl::Status status = executor.Reserve(config, works); !status.ok()) {
    return status;
  }
  return executor.Compute(config, works, kv_batch).status();
}

// A layer of one page, which each batch fills anew.
class OnePage final : public KvCache {
 public:
  explicit OnePage(void* page) : page_(page) {}

  void BeginBatch(uint64_t) override {}
  absl::Status Begin(uint64_t, const KvStep& step, KvView& view) override {
    view.pages = {page_};
    view.key_length = view.key_end = step.append_length;
    view.key_scales = view.value_scales = &scale_;
    return absl::OkStatus();
  }
  void AllBegun(uint64_t) override {}
  void EndBatch(uint64_t, bool) override {}

 private:
  void* const page_;
  const float scale_ = 1;
};

absl::Status ComputeResident(BatchExecutor& executor, const PagedConfig& config,
                             int64_t tokens, absl::string_view zeros,
                             MemoryPool& page_pool) {
  absl::StatusOr<Block> page =
      page_pool.Allocate(static_cast<size_t>(PageBytes(config)));
  if (!page.ok()) return page.status();
  OnePage cache(page->data());
  KvBatch batch(cache, 0);
  std::unique_ptr<AttentionWork> work = TinyWork(config.heads, tokens, zeros);
  work->kv_data_type = config.kv_data_type;
  work->page_tokens = config.page_tokens;
  work->kv_steps.push_back({.layer = nullptr, .append_length = tokens});
  return Compute(executor, std::move(work), &batch);
}

}  // namespace

absl::Status WarmUp(BatchExecutor& executor, MemoryPool& page_pool) {
  constexpr int64_t kManyTokens = 64;
  const std::vector<char> memory(kManyTokens * kMaxHeadDim * sizeof(float));
  const absl::string_view zeros(memory.data(), memory.size());
  for (DataType type : {DataType::kFloat32, DataType::kFloat16,
                        DataType::kBFloat16, DataType::kFloat8E4M3}) {
    for (int32_t head_dim : {64, 128}) {
      absl::Status status;
      for (MaskKind mask : {MaskKind::kNone, MaskKind::kCausalBottomRight}) {
        status.Update(Compute(executor,
                              TinyWork(OneHead(type, head_dim, mask), 1, zeros),
                              /*kv_batch=*/nullptr));
      }
      if (!status.ok()) return status;
      if (type == DataType::kFloat8E4M3) continue;  // not resident
      for (KvDataType kv_type : {KvDataType::kSame, KvDataType::kFloat8E4M3}) {
        for (int64_t tokens : {int64_t{1}, kManyTokens}) {
          status.Update(ComputeResident(
              executor,
              {.heads = OneHead(type, head_dim, MaskKind::kCausalBottomRight),
               .kv_data_type = kv_type,
               .page_tokens = static_cast<int32_t>(kManyTokens)},
              tokens, zeros, page_pool));
        }
      }
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace attention
