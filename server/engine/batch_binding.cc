#include "server/engine/batch_binding.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/cost.h"
#include "kernels/validation.h"

namespace attention {
namespace {

absl::Status ValidateSteps(const PreparedWork& prepared,
                           std::vector<Sequence>& sequences) {
  const std::vector<KvStep>& steps = prepared.work->kv_steps;
  if (steps.size() != sequences.size()) {
    return absl::InternalError(absl::StrCat(sequences.size(), " sequences have ",
                                            steps.size(), " steps"));
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    Sequence& sequence = sequences[i];
    sequence.key_length = steps[i].append_length;
    if (sequence.key_length > 0 &&
        (sequence.key == nullptr || sequence.value == nullptr)) {
      return absl::InvalidArgumentError(
          "keys and values to append must not be null");
    }
  }
  return ValidatePagedConfig(prepared.work->paged_config());
}

const float* OrNull(const std::vector<float>& scales) {
  return scales.empty() ? nullptr : scales.data();
}

}  // namespace

Sequence BindSequence(const AttentionWork& work, size_t index,
                      const WorkAddresses& base) {
  const WorkSequence& from = work.sequences[index];
  const DataType type = work.config.data_type;
  const int64_t input_bytes = ElementBytes(type);
  const int64_t output_bytes = ElementBytes(OutputType(type));
  Sequence to = from.shape;
  to.query = Advance(base.query, from.query_offset, input_bytes);
  to.key = Advance(base.key, from.key_offset, input_bytes);
  to.value = Advance(base.value, from.value_offset, input_bytes);
  to.output = Advance(base.output, from.output_offset, output_bytes);
  to.log_sum_exp = Advance(base.log_sum_exp, from.log_sum_exp_offset,
                           static_cast<int64_t>(sizeof(float)));
  to.weights = Advance(base.weights, from.weights_offset, output_bytes);
  to.query_scales = OrNull(work.scales.query);
  to.key_scales = OrNull(work.scales.key);
  to.value_scales = OrNull(work.scales.value);
  return to;
}

absl::Status ReserveHostResults(AttentionWork& work, MemoryPool& pool) {
  ReservedResults reserved;
  for (size_t bytes :
       {work.output_bytes, work.log_sum_exp_bytes, work.weights_bytes}) {
    absl::StatusOr<Block> block = pool.Allocate(bytes);
    if (!block.ok()) return block.status();
    reserved.push_back(*std::move(block));
  }
  work.reserved_results = std::move(reserved);
  return absl::OkStatus();
}

absl::StatusOr<WorkResult> AllocateResult(AttentionWork& work,
                                          MemoryPool& pool) {
  if (work.reserved_results.empty()) {
    absl::Status status = ReserveHostResults(work, pool);
    if (!status.ok()) return status;
  }
  WorkResult result;
  result.output = std::move(work.reserved_results[0]);
  result.log_sum_exp = std::move(work.reserved_results[1]);
  result.weights = std::move(work.reserved_results[2]);
  work.reserved_results.clear();
  return result;
}

void BindSequences(absl::Span<const PreparedWork> works,
                   std::vector<Sequence>& sequences) {
  sequences.clear();
  for (const PreparedWork& prepared : works) {
    const AttentionWork& work = *prepared.work;
    for (size_t i = 0; i < work.sequences.size(); ++i) {
      sequences.push_back(BindSequence(work, i, prepared.addresses));
    }
  }
}

absl::Status ValidateWork(const PreparedWork& prepared,
                          std::vector<Sequence>& sequences) {
  BindSequences(absl::MakeConstSpan(&prepared, 1), sequences);
  if (prepared.work->is_resident()) {
    absl::Status status = ValidateSteps(prepared, sequences);
    if (!status.ok()) return status;
  }
  return ValidateParams(
      {.config = prepared.work->config,
       .sequences = sequences.data(),
       .sequence_count = static_cast<int64_t>(sequences.size())});
}

double TotalFlops(const AttentionWork& work) {
  double flops = 0;
  for (const WorkSequence& sequence : work.sequences) {
    flops += AttentionFlops(work.config, sequence.shape);
  }
  return flops;
}

const void* InPlace(const Payload& payload, size_t element_bytes) {
  if (payload.fragments.size() != 1) return nullptr;
  const char* data = payload.fragments.front().data();
  return reinterpret_cast<uintptr_t>(data) % element_bytes == 0 ? data
                                                                : nullptr;
}

absl::Status Gather(const Payload& payload, void* destination) {
  char* to = static_cast<char*>(destination);
  if (payload.source != nullptr) {
    return payload.source->Read(0, {to, payload.size_bytes()});
  }
  for (absl::string_view fragment : payload.fragments) {
    if (fragment.empty()) continue;
    std::memcpy(to, fragment.data(), fragment.size());
    to += fragment.size();
  }
  return absl::OkStatus();
}

bool HasFailedSteps(const PreparedWork& prepared) {
  const auto& statuses = prepared.result.sequence_statuses;
  return std::any_of(statuses.begin(), statuses.end(),
                     [](const absl::Status& s) { return !s.ok(); });
}

void FillEmptyLogSumExp(void* log_sum_exp, size_t bytes) {
  std::fill_n(static_cast<float*>(log_sum_exp), bytes / sizeof(float),
              -std::numeric_limits<float>::infinity());
}

}  // namespace attention
