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
// requests do, the helpers take them from the transport: answers per second
// stay the same and the slowest answers get slower.
constexpr size_t kMinBytesForHelp = size_t{16} << 20;

// Large enough that the cost of starting a copy does not matter.
constexpr size_t kMinSendBytes = size_t{1} << 20;

InputRanges WholeInputs(const AttentionWork& work) {
  return {ByteRange{0, work.query.size_bytes()},
          ByteRange{0, work.key.size_bytes()},
          ByteRange{0, work.value.size_bytes()}};
}

}  // namespace

absl::Status InputCopy::Run(absl::Span<PreparedWork> works,
                            CudaRuntime::Stream stream) {
  Clear();
  for (PreparedWork& work : works) {
    PlanInputs(work, WholeInputs(*work.work));
    last_task_.push_back(tasks_.size());
  }
  EndStage();
  return Execute(works, stream, [](size_t) { return absl::OkStatus(); });
}

absl::Status InputCopy::RunInStages(
    PreparedWork& work, absl::Span<const InputRanges> stages,
    CudaRuntime::Stream stream,
    absl::FunctionRef<absl::Status(size_t stage)> enqueued) {
  Clear();
  for (const InputRanges& ranges : stages) {
    PlanInputs(work, ranges);
    EndStage();
  }
  last_task_.push_back(tasks_.size());
  return Execute(absl::MakeSpan(&work, 1), stream, enqueued);
}

absl::Status InputCopy::Execute(
    absl::Span<PreparedWork> works, CudaRuntime::Stream stream,
    absl::FunctionRef<absl::Status(size_t stage)> enqueued) {
  absl::Status status = SendStages(0, stream, enqueued);
  size_t released = 0;
  const int task_count = static_cast<int>(tasks_.size());
  auto gather = [this](int task) { Gather(tasks_[task]); };
  auto send = [&](int finished) {
    if (status.ok()) status = SendStages(finished, stream, enqueued);
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

void InputCopy::Clear() {
  direct_.clear();
  pieces_.clear();
  tasks_.clear();
  stages_.clear();
  last_task_.clear();
  task_bytes_ = total_bytes_ = 0;
  sent_direct_ = sent_pieces_ = sent_bytes_ = sent_stages_ = 0;
}

void InputCopy::PlanInputs(PreparedWork& work, const InputRanges& ranges) {
  const WorkLayout layout(*work.work);
  PlanPayload(work.work->query, layout.query, ranges[0], work);
  PlanPayload(work.work->key, layout.key, ranges[1], work);
  PlanPayload(work.work->value, layout.value, ranges[2], work);
}

void InputCopy::EndStage() {
  stages_.push_back(
      {.end_direct = direct_.size(), .end_piece = pieces_.size()});
}

void InputCopy::PlanPayload(const Payload& payload, const TensorPlace& place,
                            const ByteRange& range, PreparedWork& work) {
  if (range.size() == 0) return;
  const size_t offset = place.offset + range.begin;
  if (place.route != Route::kStaged) {
    const bool is_pinned = place.route == Route::kPinned;
    direct_.push_back(
        {.work = &work,
         .source = payload.source.get(),
         .pinned = is_pinned
                       ? static_cast<char*>(place.direct.address) + range.begin
                       : nullptr,
         .device = static_cast<char*>(work.device_inputs.data()) + offset,
         .bytes = range.size()});
    return;
  }
  char* to = static_cast<char*>(work.staging.data()) + offset;
  if (payload.source != nullptr) {
    PlanPiece({.work = &work,
               .source = payload.source.get(),
               .from = nullptr,
               .source_offset = range.begin,
               .to = to,
               .bytes = range.size()});
  }
  size_t begin = 0;  // of the fragment, in the payload
  for (absl::string_view fragment : payload.fragments) {
    const size_t first = std::max(begin, range.begin);
    const size_t end = std::min(begin + fragment.size(), range.end);
    if (first < end) {
      PlanPiece({.work = &work,
                 .source = nullptr,
                 .from = fragment.data() + (first - begin),
                 .source_offset = 0,
                 .to = to + (first - range.begin),
                 .bytes = end - first});
    }
    begin += fragment.size();
  }
}

// Cuts the piece where tasks are full.
void InputCopy::PlanPiece(Piece piece) {
  while (piece.bytes > 0) {
    if (tasks_.empty() || task_bytes_ == kTaskBytes) {
      tasks_.push_back({.first_piece = pieces_.size()});
      task_bytes_ = 0;
    }
    Piece& part = pieces_.emplace_back(piece);
    part.bytes = std::min(piece.bytes, kTaskBytes - task_bytes_);
    task_bytes_ += part.bytes;
    total_bytes_ += part.bytes;
    tasks_.back().end_piece = pieces_.size();
    tasks_.back().end_bytes = total_bytes_;
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

// What is complete and worth a copy.
absl::Status InputCopy::SendStages(
    size_t gathered_tasks, CudaRuntime::Stream stream,
    absl::FunctionRef<absl::Status(size_t stage)> enqueued) {
  const Task none = {.first_piece = 0};
  const Task& last = gathered_tasks > 0 ? tasks_[gathered_tasks - 1] : none;
  for (; sent_stages_ < stages_.size(); ++sent_stages_) {
    const Stage& stage = stages_[sent_stages_];
    absl::Status status = SendDirect(stage.end_direct, stream);
    if (!status.ok()) return status;
    const bool is_complete = last.end_piece >= stage.end_piece;
    if (!is_complete && last.end_bytes - sent_bytes_ < kMinSendBytes) break;
    status = SendPieces(std::min(last.end_piece, stage.end_piece), stream);
    if (!is_complete || !status.ok()) return status;
    status = enqueued(sent_stages_);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status InputCopy::SendDirect(size_t end, CudaRuntime::Stream stream) {
  for (; sent_direct_ < end; ++sent_direct_) {
    const Direct& direct = direct_[sent_direct_];
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

// One copy for all pieces that lie one after the other, but for what tensors
// are apart to be aligned, in memory that they share on both sides.
absl::Status InputCopy::SendPieces(size_t end, CudaRuntime::Stream stream) {
  const auto device_address = [](const Piece& piece) {
    return static_cast<char*>(piece.work->device_inputs.data()) +
           (piece.to - static_cast<char*>(piece.work->staging.data()));
  };
  while (sent_pieces_ < end) {
    const Piece& first = pieces_[sent_pieces_];
    char* const device = device_address(first);
    size_t bytes = 0;
    const auto follows = [&](const Piece& piece) {
      const PreparedWork& work = *piece.work;
      if (piece.work != first.work &&
          (!work.staging.SharesMemoryWith(first.work->staging) ||
           !work.device_inputs.SharesMemoryWith(first.work->device_inputs))) {
        return false;
      }
      const ptrdiff_t offset = piece.to - first.to;
      return offset == device_address(piece) - device &&
             offset >= static_cast<ptrdiff_t>(bytes) &&
             offset < static_cast<ptrdiff_t>(bytes + kTensorAlignment);
    };
    do {
      const Piece& piece = pieces_[sent_pieces_++];
      bytes = static_cast<size_t>(piece.to - first.to) + piece.bytes;
      sent_bytes_ += piece.bytes;
    } while (sent_pieces_ < end && follows(pieces_[sent_pieces_]));
    if (absl::Status status =
            runtime_.CopyToDevice(device, first.to, bytes, stream);
        !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace attention
