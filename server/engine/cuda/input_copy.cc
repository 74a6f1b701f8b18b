#include "server/engine/cuda/input_copy.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace attention {
namespace {

// Tens of microseconds of copying: far above the cost of handing it out.
constexpr size_t kTaskBytes = size_t{256} << 10;

// Below, one thread gathers alone. With help batches of a few megabytes are
// copied sooner too, but when many callers keep all processors busy, as small
// requests do, the helpers take them from the transport: answers per second stay
// the same and the slowest answers get slower.
constexpr size_t kMinBytesForHelp = size_t{16} << 20;

// Large enough that the cost of starting a copy does not matter.
constexpr size_t kMinSendBytes = size_t{1} << 20;

}  // namespace

absl::Status InputCopy::Run(absl::Span<PreparedWork> works,
                            CudaRuntime::Stream stream) {
  Plan(works);
  absl::Status status = SendDirect(stream);
  size_t released = 0;
  const int task_count = static_cast<int>(tasks_.size());
  auto gather = [this](int task) { Gather(tasks_[task]); };
  auto send = [&](int finished) {
    const size_t ready = tasks_[finished - 1].end;
    if (status.ok() &&
        (finished == task_count || ready - sent_ >= kMinSendBytes)) {
      status = SendUpTo(ready, stream);
    }
    for (; released < works.size() &&
           last_task_[released] <= static_cast<size_t>(finished);
         ++released) {
      works[released].work->payload_owner.reset();
    }
  };
  if (total_bytes_ >= kMinBytesForHelp && threads_.helper_count() > 0) {
    threads_.Run(task_count, gather, send);
  } else {
    for (int task = 0; task < task_count; ++task) {
      gather(task);
      send(task + 1);
    }
  }
  for (; released < works.size(); ++released) {  // without any payload
    works[released].work->payload_owner.reset();
  }
  return status;
}

void InputCopy::Plan(absl::Span<PreparedWork> works) {
  direct_.clear();
  pieces_.clear();
  tasks_.clear();
  extents_.clear();
  last_task_.clear();
  task_bytes_ = total_bytes_ = sent_ = sending_ = 0;
  const PreparedWork* previous = nullptr;
  for (PreparedWork& prepared : works) {
    const Block& staging = prepared.staging;
    if (staging.size() > 0) {
      if (previous == nullptr || !StagedInputsFollow(prepared, *previous)) {
        const size_t begin = extents_.empty() ? 0 : extents_.back().end;
        extents_.push_back(
            {.host = static_cast<char*>(staging.data()),
             .device = static_cast<char*>(prepared.device_inputs.data()),
             .begin = begin,
             .end = begin});
      }
      extents_.back().end += staging.size();
      previous = &prepared;
    }
    const AttentionWork& work = *prepared.work;
    const WorkLayout layout(work);
    PlanPayload(work.query, layout.query, prepared);
    PlanPayload(work.key, layout.key, prepared);
    PlanPayload(work.value, layout.value, prepared);
    last_task_.push_back(tasks_.size());
  }
}

void InputCopy::PlanPayload(const Payload& payload, const TensorPlace& place,
                            PreparedWork& work) {
  if (place.route != Route::kStaged) {
    const bool is_pinned = place.route == Route::kPinned;
    direct_.push_back(
        {.work = &work,
         .source = payload.source.get(),
         .pinned = is_pinned ? place.direct.address : nullptr,
         .device = static_cast<char*>(work.device_inputs.data()) + place.offset,
         .bytes = place.bytes});
    return;
  }
  char* to = static_cast<char*>(work.staging.data()) + place.offset;
  if (payload.source != nullptr) {
    PlanPiece({.work = &work,
               .source = payload.source.get(),
               .from = nullptr,
               .source_offset = 0,
               .to = to,
               .bytes = payload.size_bytes()});
  }
  for (absl::string_view fragment : payload.fragments) {
    PlanPiece({.work = &work,
               .source = nullptr,
               .from = fragment.data(),
               .source_offset = 0,
               .to = to,
               .bytes = fragment.size()});
    to += fragment.size();
  }
}

// Cuts the piece where tasks are full.
void InputCopy::PlanPiece(Piece piece) {
  if (piece.bytes == 0) return;
  const Extent& extent = extents_.back();
  total_bytes_ += piece.bytes;
  while (piece.bytes > 0) {
    if (tasks_.empty() || task_bytes_ == kTaskBytes) {
      tasks_.push_back({.first_piece = pieces_.size()});
      task_bytes_ = 0;
    }
    Piece& part = pieces_.emplace_back(piece);
    part.bytes = std::min(piece.bytes, kTaskBytes - task_bytes_);
    task_bytes_ += part.bytes;
    tasks_.back().end_piece = pieces_.size();
    tasks_.back().end =
        extent.begin + static_cast<size_t>(part.to + part.bytes - extent.host);
    if (piece.source != nullptr) {
      piece.source_offset += part.bytes;
    } else {
      piece.from += part.bytes;
    }
    piece.to += part.bytes;
    piece.bytes -= part.bytes;
  }
}

void InputCopy::Gather(const Task& task) {
  for (size_t i = task.first_piece; i < task.end_piece; ++i) {
    const Piece& piece = pieces_[i];
    if (piece.source == nullptr) {
      std::memcpy(piece.to, piece.from, piece.bytes);
      continue;
    }
    absl::Status status = piece.source->Read(
        piece.source_offset, absl::MakeSpan(piece.to, piece.bytes));
    if (status.ok()) continue;
    absl::MutexLock lock(&source_mutex_);
    piece.work->status.Update(std::move(status));
  }
}

absl::Status InputCopy::SendDirect(CudaRuntime::Stream stream) {
  for (const Direct& direct : direct_) {
    absl::Status status = direct.source->CheckDirect();
    if (!status.ok()) {
      direct.work->status.Update(std::move(status));
      continue;
    }
    if (direct.pinned == nullptr) continue;
    status = runtime_.CopyToDevice(direct.device, direct.pinned, direct.bytes,
                                   stream);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status InputCopy::SendUpTo(size_t end, CudaRuntime::Stream stream) {
  while (sent_ < end) {
    const Extent& extent = extents_[sending_];
    const size_t offset = sent_ - extent.begin;
    const size_t bytes = std::min(end, extent.end) - sent_;
    if (absl::Status status = runtime_.CopyToDevice(
            extent.device + offset, extent.host + offset, bytes, stream);
        !status.ok()) {
      return status;
    }
    sent_ += bytes;
    if (sent_ == extent.end) ++sending_;
  }
  return absl::OkStatus();
}

}  // namespace attention
