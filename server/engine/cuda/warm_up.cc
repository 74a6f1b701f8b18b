#include "server/engine/cuda/warm_up.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"

namespace attention {
namespace {

// One query, one key, one head. `zeros` holds at least one token.
std::unique_ptr<AttentionWork> TinyWork(const HeadConfig& config,
                                        absl::string_view zeros) {
  auto work = std::make_unique<AttentionWork>();
  work->config = config;
  work->sequences.push_back(
      {.shape = {.query_length = 1, .key_length = 1, .scale = 1}});
  const size_t bytes =
      static_cast<size_t>(config.head_dim_qk * ElementBytes(config.data_type));
  work->query.fragments = {zeros.substr(0, bytes)};
  work->key.fragments = work->query.fragments;
  work->value.fragments = work->query.fragments;
  work->output_bytes = bytes;
  return work;
}

absl::Status Compute(BatchExecutor& executor, const HeadConfig& config,
                     absl::string_view zeros) {
  PreparedWork prepared;
  prepared.work = TinyWork(config, zeros);
  if (absl::Status status = executor.Prepare(prepared); !status.ok()) {
    return status;
  }
  const absl::Span<PreparedWork> works = absl::MakeSpan(&prepared, 1);
  if (absl::Status status = executor.Reserve(config, works); !status.ok()) {
    return status;
  }
  return executor.Compute(config, works, /*kv_batch=*/nullptr).status();
}

}  // namespace

absl::Status WarmUp(BatchExecutor& executor) {
  const std::vector<char> memory(kMaxHeadDim * sizeof(float));
  const absl::string_view zeros(memory.data(), memory.size());
  for (DataType type :
       {DataType::kFloat32, DataType::kFloat16, DataType::kBFloat16}) {
    for (int32_t head_dim : {64, 128}) {
      for (MaskKind mask : {MaskKind::kNone, MaskKind::kCausalBottomRight}) {
        const HeadConfig config = {.data_type = type,
                                   .head_dim_qk = head_dim,
                                   .head_dim_v = head_dim,
                                   .query_head_count = 1,
                                   .kv_head_count = 1,
                                   .mask = mask};
        if (absl::Status status = Compute(executor, config, zeros);
            !status.ok()) {
          return status;
        }
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace attention
