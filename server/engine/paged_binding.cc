#include "server/engine/paged_binding.h"

#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/cost.h"
#include "server/engine/estimated_sequence.h"

namespace attention {
namespace {

// Keeps the memory of its vectors.
void Clear(KvView& view) {
  KvView cleared;
  cleared.pages = std::move(view.pages);
  cleared.copies = std::move(view.copies);
  cleared.pages.clear();
  cleared.copies.clear();
  view = std::move(cleared);
}

PagedSequence Bind(const Sequence& from, int64_t append_length,
                   const KvView& view) {
  return {.query = from.query,
          .output = from.output,
          .log_sum_exp = from.log_sum_exp,
          .query_strides = from.query_strides,
          .output_strides = from.output_strides,
          .log_sum_exp_token_stride = from.log_sum_exp_token_stride,
          .log_sum_exp_head_stride = from.log_sum_exp_head_stride,
          .query_length = from.query_length,
          .new_key = from.key,
          .new_value = from.value,
          .new_key_strides = from.key_strides,
          .new_value_strides = from.value_strides,
          .append_length = append_length,
          .pages = view.pages.data(),
          .key_length = view.key_length,
          .key_begin = view.key_begin,
          .key_end = view.key_end,
          .scale = from.scale,
          .window_left = view.window_left,
          .window_right = from.window_right,
          .sink_tokens = view.sink_tokens,
          .key_scales = view.key_scales,
          .value_scales = view.value_scales};
}

}  // namespace

PagedParams PagedBinding::Estimate(absl::Span<const PreparedWork> works) {
  sequences_.clear();
  copies_.clear();
  for (const PreparedWork& prepared : works) {
    const AttentionWork& work = *prepared.work;
    for (size_t i = 0; i < work.sequences.size(); ++i) {
      sequences_.push_back(
          EstimatedSequence(work.sequences[i], work.kv_steps[i]));
    }
  }
  return Params(works.front().work->paged_config());
}

void PagedBinding::Start(absl::Span<PreparedWork> works) {
  works_ = works;
  next_work_ = 0;
  size_t step_count = 0;
  for (const PreparedWork& prepared : works) {
    step_count += prepared.work->kv_steps.size();
  }
  // Sequences point into views, which must not move then.
  if (views_.size() < step_count) views_.resize(step_count);
}

PagedParams PagedBinding::BeginLaunch(KvBatch& batch) {
  sequences_.clear();
  copies_.clear();
  to_clear_.clear();
  while (has_more()) {
    PreparedWork& prepared = works_[next_work_];
    if (prepared.status.ok()) {
      const bool is_first = prepared.result.sequence_statuses.empty();
      const bool is_complete = BeginSteps(prepared, batch);
      if (is_first && (!is_complete || HasFailedSteps(prepared))) {
        to_clear_.push_back(&prepared);
      }
      if (!is_complete) break;
    }
    ++next_work_;
  }
  return Params(works_.front().work->paged_config());
}

bool PagedBinding::BeginSteps(PreparedWork& prepared, KvBatch& batch) {
  const AttentionWork& work = *prepared.work;
  auto& statuses = prepared.result.sequence_statuses;
  auto& key_lengths = prepared.result.sequence_key_lengths;
  statuses.reserve(work.kv_steps.size());
  key_lengths.reserve(work.kv_steps.size());
  while (statuses.size() < work.kv_steps.size()) {
    const size_t i = statuses.size();
    const KvStep& step = work.kv_steps[i];
    KvView& view = views_[sequences_.size()];
    Clear(view);
    absl::Status status = batch.Begin(step, view);
    if (view.waits_for_launch) return false;
    statuses.push_back(std::move(status));
    key_lengths.push_back(statuses.back().ok() ? view.key_length : 0);
    if (!statuses.back().ok()) continue;
    sequences_.push_back(Bind(BindSequence(work, i, prepared.addresses),
                              step.append_length, view));
    copies_.insert(copies_.end(), view.copies.begin(), view.copies.end());
  }
  return true;
}

PagedParams PagedBinding::Params(const PagedConfig& config) {
  config_ = config;
  return {.config = config,
          .sequences = sequences_.data(),
          .sequence_count = static_cast<int64_t>(sequences_.size()),
          .copies = copies_.data(),
          .copy_count = static_cast<int64_t>(copies_.size())};
}

void PagedBinding::AddCost(PassReport& report) const {
  for (const PagedSequence& sequence : sequences_) {
    report.flops += PagedFlops(config_, sequence);
    report.resident_bytes += PagedBytes(config_, sequence);
  }
}

}  // namespace attention
