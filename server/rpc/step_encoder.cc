#include "server/rpc/step_encoder.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "grpcpp/support/slice.h"
#include "server/rpc/message_arena.h"
#include "server/rpc/response_parts.h"
#include "server/rpc/status_translation.h"

namespace attention {
namespace {

// Decode's answers and those of its stream have the same fields, but for the tag.
using Response = v1::StreamDecodeResponse;

// Metadata, and a header and the bytes of each tensor.
using Slices = absl::InlinedVector<grpc::Slice, 5>;

void AppendHeader(int field, size_t size, Slices& slices) {
  const PayloadHeader header(field, size);
  slices.emplace_back(header.data(), header.size());
}

void AppendTensor(int field, Block block,
                  const std::shared_ptr<void>& keep_alive, Slices& slices) {
  if (block.size() == 0) return;
  const size_t size = block.size();
  AppendHeader(field, size, slices);
  slices.push_back(SliceOf(std::make_shared<const SharedBlock>(
                               SharedBlock{keep_alive, std::move(block)}),
                           0, size));
}

const absl::Status& StatusOf(const StepsPlan::Item& item, WorkResults results) {
  if (!item.status.ok()) return item.status;
  const absl::StatusOr<WorkResult>& result = results[item.work];
  return result.ok() ? result->sequence_statuses[item.sequence]
                     : result.status();
}

absl::Duration TimeOf(const WorkResult& result) {
  return result.queue_duration + result.copy_in_duration +
         result.compute_duration + result.copy_out_duration;
}

void SetSlowestTimings(WorkResults results, Response& response) {
  const WorkResult* slowest = nullptr;
  for (const absl::StatusOr<WorkResult>& result : results) {
    if (result.ok() &&
        (slowest == nullptr || TimeOf(*slowest) < TimeOf(*result))) {
      slowest = &*result;
    }
  }
  if (slowest != nullptr) SetTimings(*slowest, *response.mutable_timings());
}

// What stands for the results of steps that no device has seen, 64 KiB at a time.
// Never destroyed: the transport may refer to it until the process ends.
using Filler = std::vector<float>;

const Filler& MakeFiller(float value) {
  constexpr size_t kFloats = size_t{1} << 14;
  return *new Filler(kFloats, value);
}

const Filler& NoOutput() {
  static const Filler& filler = MakeFiller(0);
  return filler;
}

const Filler& NoLogSumExp() {
  static const Filler& filler =
      MakeFiller(-std::numeric_limits<float>::infinity());
  return filler;
}

void AppendFiller(const Filler& filler, size_t size, Slices& slices) {
  while (size > 0) {
    const size_t part = std::min(size, filler.size() * sizeof(float));
    slices.emplace_back(filler.data(), part, grpc::Slice::STATIC_SLICE);
    size -= part;
  }
}

// One tensor of all items, out of the blocks of their works: items that follow
// each other there are one slice.
class TensorGatherer {
 public:
  TensorGatherer(const StepsPlan& plan, int64_t token_bytes,
                 Block WorkResult::*block, WorkResults results,
                 const std::shared_ptr<void>& keep_alive)
      : plan_(plan), token_bytes_(token_bytes) {
    for (absl::StatusOr<WorkResult>& result : results) {
      blocks_.push_back(result.ok() ? std::make_shared<const SharedBlock>(
                                          SharedBlock{keep_alive,
                                                      std::move((*result).*block)})
                                    : nullptr);
    }
    offsets_.resize(blocks_.size());
  }

  void Append(int field, const Filler& filler, Slices& slices) {
    size_t size = 0;
    for (const StepsPlan::Item& item : plan_.items) size += SizeOf(item);
    AppendHeader(field, size, slices);
    for (const StepsPlan::Item& item : plan_.items) {
      const int block = BlockOf(item);
      if (block != run_block_) EndRun(filler, slices);
      run_block_ = block;
      run_size_ += SizeOf(item);
    }
    EndRun(filler, slices);
  }

 private:
  size_t SizeOf(const StepsPlan::Item& item) const {
    return item.token_count * token_bytes_;
  }

  // -1: it has none.
  int BlockOf(const StepsPlan::Item& item) const {
    return item.status.ok() && blocks_[item.work] != nullptr ? item.work : -1;
  }

  void EndRun(const Filler& filler, Slices& slices) {
    if (run_size_ > 0 && run_block_ < 0) {
      AppendFiller(filler, run_size_, slices);
    } else if (run_size_ > 0) {
      slices.push_back(
          SliceOf(blocks_[run_block_], offsets_[run_block_], run_size_));
      offsets_[run_block_] += run_size_;
    }
    run_size_ = 0;
  }

  const StepsPlan& plan_;
  const int64_t token_bytes_;
  absl::InlinedVector<std::shared_ptr<const SharedBlock>, 1> blocks_;
  absl::InlinedVector<size_t, 1> offsets_;  // up to where each is in the message
  int run_block_ = -1;
  size_t run_size_ = 0;
};

}  // namespace

absl::Status CommonError(const StepsPlan& plan, bool has_items,
                         WorkResults results) {
  if (!has_items) return StatusOf(plan.items.front(), results);
  const auto failed = [](const auto& result) { return !result.ok(); };
  return !results.empty() && std::all_of(results.begin(), results.end(), failed)
             ? results.front().status()
             : absl::OkStatus();
}

grpc::ByteBuffer EncodeAppendResponse(const WorkResult& result) {
  MessageArena arena;
  auto& response = arena.Create<v1::AppendKeysValuesResponse>();
  response.set_token_count(result.sequence_key_lengths.front());
  SetTimings(result, *response.mutable_timings());
  const grpc::Slice slice = Serialize(response);
  return grpc::ByteBuffer(&slice, 1);
}

grpc::ByteBuffer EncodeAttendResponse(WorkResult result,
                                      std::shared_ptr<void> keep_alive) {
  MessageArena arena;
  auto& response = arena.Create<v1::AttendSessionResponse>();
  SetTimings(result, *response.mutable_timings());
  Slices slices = {Serialize(response)};
  AppendTensor(v1::AttendSessionResponse::kOutputFieldNumber,
               std::move(result.output), keep_alive, slices);
  AppendTensor(v1::AttendSessionResponse::kLogSumExpFieldNumber,
               std::move(result.log_sum_exp), keep_alive, slices);
  return grpc::ByteBuffer(slices.data(), slices.size());
}

grpc::ByteBuffer EncodeDecodeResponse(const StepsPlan& plan,
                                      WorkResults results,
                                      std::optional<int64_t> tag,
                                      RetryDelays retry_delay_of,
                                      std::shared_ptr<void> keep_alive) {
  MessageArena arena;
  Response& response = arena.Create<Response>();
  if (tag.has_value()) response.set_tag(*tag);
  bool has_output = false;
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const absl::Status& status = StatusOf(plan.items[i], results);
    if (status.ok()) {
      has_output = true;
      continue;
    }
    v1::ItemError& error = *response.add_item_errors();
    error.set_item_index(static_cast<int32_t>(i));
    SetStepError(status, retry_delay_of(status), *error.mutable_error());
  }
  SetSlowestTimings(results, response);
  Slices slices = {Serialize(response)};
  if (has_output) {
    TensorGatherer(plan, plan.output_token_bytes, &WorkResult::output, results,
                   keep_alive)
        .Append(Response::kOutputFieldNumber, NoOutput(), slices);
  }
  if (has_output && plan.log_sum_exp_token_bytes > 0) {
    TensorGatherer(plan, plan.log_sum_exp_token_bytes, &WorkResult::log_sum_exp,
                   results, keep_alive)
        .Append(Response::kLogSumExpFieldNumber,
                NoLogSumExp(), slices);
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

}  // namespace attention
