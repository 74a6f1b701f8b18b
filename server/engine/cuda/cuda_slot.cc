// Works without resident keys and values, and what both kinds have in common;
// see cuda_slot_resident.cc for the others.
#include "server/engine/cuda/cuda_slot.h"

#include <bit>
#include <cstddef>
#include <limits>
#include <tuple>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "server/engine/batch_binding.h"
#include "server/engine/cuda/batch_memory.h"

namespace attention {
namespace {

// Scratch memory of resident batches beyond what estimates ask for: the page
// table of one sequence that has got a hundred thousand pages more than that.
constexpr size_t kPagedScratchReserve = size_t{1} << 20;
constexpr size_t kMaxRoundedScratch = size_t{64} << 20;

// Batches differ in size all the time, and a cached block serves one class of
// sizes only.
size_t PagedScratchToReserve(size_t estimate) {
  const size_t bytes = estimate + estimate / 8 + kPagedScratchReserve;
  return bytes <= kMaxRoundedScratch ? std::bit_ceil(bytes) : bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaSlot>> CudaSlot::Create(
    const Shared* shared) {
  auto slot = std::unique_ptr<CudaSlot>(new CudaSlot(shared));
  CudaRuntime& runtime = shared->runtime;
  if (absl::Status status = runtime.SetDevice(shared->device); !status.ok()) {
    return status;
  }
  absl::StatusOr<CudaRuntime::Stream> stream = runtime.CreateStream();
  if (!stream.ok()) return stream.status();
  slot->stream_ = *stream;
  for (CudaRuntime::Event& event : slot->events_) {
    absl::StatusOr<CudaRuntime::Event> created = runtime.CreateEvent();
    if (!created.ok()) return created.status();
    event = *created;
  }
  auto pipeline = PartPipeline::Create(&runtime);
  if (!pipeline.ok()) return pipeline.status();
  slot->part_pipeline_ = *std::move(pipeline);
  return slot;
}

CudaSlot::~CudaSlot() {
  for (CudaRuntime::Event event : events_) {
    if (event != nullptr) shared_.runtime.DestroyEvent(event);
  }
  if (stream_ != nullptr) shared_.runtime.DestroyStream(stream_);
}

size_t CudaSlot::PrepareTogether(absl::Span<PreparedWork> works) {
  // Prepare will say why.
  if (!EnterDevice().ok()) return 0;
  for (const PreparedWork& prepared : works) {
    if (!CheckDevice(*prepared.work, shared_.device).ok()) return 0;
  }
  for (size_t count = CountToPlaceTogether(works); count > 1; count /= 2) {
    const absl::Status status = PlaceTogether(
        works.first(count), shared_.pinned_pool, shared_.device_pool);
    if (status.ok()) return count;
    if (!absl::IsResourceExhausted(status)) break;
  }
  return 0;
}

absl::Status CudaSlot::Prepare(PreparedWork& prepared) {
  absl::Status status = EnterDevice();
  if (status.ok()) status = CheckDevice(*prepared.work, shared_.device);
  if (!status.ok()) return status;
  status = PlaceTogether(absl::MakeSpan(&prepared, 1), shared_.pinned_pool,
                         shared_.device_pool);
  return status.ok() ? status : Classify(std::move(status));
}

absl::Status CudaSlot::Reserve(const HeadConfig& config,
                               absl::Span<PreparedWork> works) {
  parts_ = {};
  CudaRuntime::ScratchBytes bytes;
  if (works.front().work->is_resident()) {
    bytes = shared_.runtime.PagedScratchSize(paged_binding_.Estimate(works));
    for (size_t* size : {&bytes.host_bytes, &bytes.device_bytes}) {
      *size = PagedScratchToReserve(*size);
    }
  } else {
    BindSequences(works, sequences_);
    // Beside another batch the copies overlap that one's computation, and whole
    // works use the device better.
    if (works.size() == 1 && shared_.computing_slots == 0) {
      parts_ = CutIntoParts(works.front());
    }
    bytes = ScratchSize(config);
  }
  absl::Status status = ReserveScratch(bytes);
  return status.ok() ? status : Classify(std::move(status));
}

absl::Status CudaSlot::ReserveScratch(const CudaRuntime::ScratchBytes& bytes) {
  const std::tuple<Block*, MemoryPool*, size_t> needs[] = {
      {&host_scratch_, &shared_.pinned_pool, bytes.host_bytes},
      {&device_scratch_, &shared_.device_pool, bytes.device_bytes}};
  for (auto [scratch, pool, needed] : needs) {
    if (scratch->size() >= needed) continue;
    absl::StatusOr<Block> block = pool->Allocate(needed);
    if (!block.ok()) return block.status();
    *scratch = *std::move(block);
  }
  return absl::OkStatus();
}

absl::StatusOr<PassReport> CudaSlot::Compute(const HeadConfig& config,
                                             absl::Span<PreparedWork> works,
                                             KvBatch* kv_batch) {
  ++shared_.computing_slots;
  const auto leave = absl::MakeCleanup([this] { --shared_.computing_slots; });
  PassReport report = PlanMarks(works);
  absl::Status status = parts_.parts.empty()
                            ? Enqueue(config, works, kv_batch, report)
                            : EnqueueParts(works.front());
  // Also after an error: what has been enqueued still uses the blocks.
  if (!status.ok()) part_pipeline_->Synchronize();
  absl::Status finished = shared_.runtime.Synchronize(stream_);
  if (status.ok()) status = std::move(finished);
  if (status.ok()) status = MeasurePhases(report);
  host_scratch_.Reset();
  device_scratch_.Reset();
  if (!status.ok()) return Classify(std::move(status));
  return report;
}

AttentionParams CudaSlot::Params(const HeadConfig& config) const {
  return {.config = config,
          .sequences = sequences_.data(),
          .sequence_count = static_cast<int64_t>(sequences_.size())};
}

absl::Status CudaSlot::RecordMark(Mark mark) {
  if (!has_marks_) return absl::OkStatus();
  return shared_.runtime.RecordEvent(events_[mark], stream_);
}

// Those of parts are under way together, one after the other in memory.
CudaRuntime::ScratchBytes CudaSlot::ScratchSize(
    const HeadConfig& config) const {
  if (parts_.parts.empty()) return shared_.runtime.ScratchSize(Params(config));
  CudaRuntime::ScratchBytes sum;
  for (const WorkPart& part : parts_.parts) {
    const auto bytes = shared_.runtime.ScratchSize(parts_.Params(part));
    sum.host_bytes += AlignTensor(bytes.host_bytes);
    sum.device_bytes += AlignTensor(bytes.device_bytes);
  }
  return sum;
}

absl::Status CudaSlot::Enqueue(const HeadConfig& config,
                               absl::Span<PreparedWork> works,
                               KvBatch* kv_batch, PassReport& report) {
  absl::Status status = RecordMark(kStart);
  if (status.ok()) status = input_copy_.Run(works, stream_);
  for (const PreparedWork& prepared : works) {
    if (status.ok() && prepared.work->has_padding) {
      status = ClearResults(prepared);
    }
  }
  if (status.ok() && copied_in_ != kStart) status = RecordMark(copied_in_);
  if (!status.ok()) return status;
  if (kv_batch != nullptr) {
    status = EnqueueResident(works, *kv_batch, report);
  } else {
    status = shared_.runtime.Launch(Params(config), Scratch(), stream_);
    if (status.ok()) status = RecordMark(kComputed);
  }
  if (status.ok()) status = CopyOut(works);
  if (status.ok() && copied_out_ != kComputed) status = RecordMark(copied_out_);
  return status;
}

// Time until the first part can begin counts as copying in, from the end of the
// last part's computation on as copying out, and what is in between as
// computation, whatever else happens meanwhile.
absl::Status CudaSlot::EnqueueParts(PreparedWork& prepared) {
  CudaRuntime& runtime = shared_.runtime;
  const WorkLayout layout(*prepared.work);
  const auto host = [&](const TensorPlace& place) {
    return place.route == Route::kPinned
               ? static_cast<char*>(place.direct.address)
               : static_cast<char*>(prepared.host_results.data()) +
                     place.offset;
  };
  std::vector<InputRanges> stages;
  for (const WorkPart& part : parts_.parts) stages.push_back(part.inputs);

  absl::Status status = RecordMark(kStart);
  if (status.ok() && prepared.work->has_padding) {
    status = ClearResults(prepared);
  }
  CudaRuntime::Scratch scratch = Scratch();
  const auto compute = [&](size_t i) {
    const WorkPart& part = parts_.parts[i];
    const AttentionParams params = parts_.Params(part);
    absl::Status status;
    if (i == 0 && copied_in_ != kStart) status = RecordMark(copied_in_);
    if (status.ok()) {
      status = part_pipeline_->Enqueue(
          params, scratch,
          {.host = host(layout.output) + part.output.begin,
           .device = static_cast<const char*>(prepared.addresses.output) +
                     part.output.begin,
           .bytes = part.output.size()},
          stream_);
    }
    const auto bytes = runtime.ScratchSize(params);
    scratch.host =
        static_cast<char*>(scratch.host) + AlignTensor(bytes.host_bytes);
    scratch.device =
        static_cast<char*>(scratch.device) + AlignTensor(bytes.device_bytes);
    return status;
  };
  if (status.ok()) {
    status = input_copy_.RunInStages(prepared, stages, stream_, compute);
  }
  if (status.ok()) status = part_pipeline_->AwaitComputed(stream_);
  if (status.ok()) status = RecordMark(kComputed);
  if (status.ok()) status = part_pipeline_->AwaitCopiedOut(stream_);
  const TensorPlace& log_sum_exp = layout.log_sum_exp;
  if (status.ok() && log_sum_exp.bytes > 0 &&
      log_sum_exp.route != Route::kInPlace) {
    status =
        runtime.CopyToHost(host(log_sum_exp), prepared.addresses.log_sum_exp,
                           log_sum_exp.bytes, stream_);
  }
  if (status.ok()) status = RecordMark(kCopiedOut);
  return status;
}

absl::Status CudaSlot::ClearResults(const PreparedWork& prepared) {
  const AttentionWork& work = *prepared.work;
  CudaRuntime& runtime = shared_.runtime;
  const std::pair<void*, size_t> zeroed[] = {
      {prepared.addresses.output, work.output_bytes},
      {prepared.addresses.weights, work.weights_bytes}};
  for (auto [data, bytes] : zeroed) {
    if (bytes == 0) continue;
    if (absl::Status status = runtime.ClearDevice(data, bytes, stream_);
        !status.ok()) {
      return status;
    }
  }
  if (work.log_sum_exp_bytes == 0) return absl::OkStatus();
  return runtime.FillDevice(prepared.addresses.log_sum_exp,
                            -std::numeric_limits<float>::infinity(),
                            work.log_sum_exp_bytes / sizeof(float), stream_);
}

absl::Status CudaSlot::CopyOut(absl::Span<const PreparedWork> works) {
  absl::Status status = CopyOutStaged(works);
  for (const PreparedWork& prepared : works) {
    const WorkLayout layout(*prepared.work);
    const std::pair<const TensorPlace*, const void*> results[] = {
        {&layout.output, prepared.addresses.output},
        {&layout.log_sum_exp, prepared.addresses.log_sum_exp},
        {&layout.weights, prepared.addresses.weights}};
    for (auto [place, device] : results) {
      if (!status.ok() || place->route != Route::kPinned) continue;
      status = shared_.runtime.CopyToHost(place->direct.address, device,
                                          place->bytes, stream_);
    }
  }
  return status;
}

// One copy for all works whose results lie one after the other.
absl::Status CudaSlot::CopyOutStaged(absl::Span<const PreparedWork> works) {
  for (size_t first = 0, end; first < works.size(); first = end) {
    size_t bytes = works[first].host_results.size();
    for (end = first + 1; end < works.size(); ++end) {
      if (!StagedResultsFollow(works[end], works[end - 1])) break;
      bytes += works[end].host_results.size();
    }
    if (bytes == 0) continue;
    if (absl::Status status = shared_.runtime.CopyToHost(
            works[first].host_results.data(),
            works[first].device_results.data(), bytes, stream_);
        !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

// Counts the bytes that will move. Marks cost a small batch a good part of its
// time: there are none around what does not happen.
PassReport CudaSlot::PlanMarks(absl::Span<const PreparedWork> works) {
  PassReport report;
  bool clears = false;
  for (const PreparedWork& prepared : works) {
    clears |= prepared.work->has_padding;
    const WorkLayout layout(*prepared.work);
    for (const TensorPlace* place : layout.inputs()) {
      if (place->route != Route::kInPlace) {
        report.copied_in_bytes += place->bytes;
      }
    }
    for (const TensorPlace* place : layout.results()) {
      if (place->route != Route::kInPlace) {
        report.copied_out_bytes += place->bytes;
      }
    }
  }
  copied_in_ = report.copied_in_bytes > 0 || clears ? kCopiedIn : kStart;
  compute_start_ = copied_in_;
  copied_out_ = report.copied_out_bytes > 0 ? kCopiedOut : kComputed;
  has_marks_ = copied_in_ != kStart || copied_out_ != kComputed ||
               works.front().work->is_resident();
  compute_begin_ = std::chrono::steady_clock::now();
  return report;
}

absl::Status CudaSlot::MeasurePhases(PassReport& report) {
  if (!has_marks_) {
    report.compute =
        absl::FromChrono(std::chrono::steady_clock::now() - compute_begin_);
    return absl::OkStatus();
  }
  const std::tuple<absl::Duration*, Mark, Mark> phases[] = {
      {&report.copy_in, kStart, copied_in_},
      {&report.compute, compute_start_, kComputed},
      {&report.copy_out, kComputed, copied_out_}};
  for (auto [duration, from, to] : phases) {
    if (from == to) continue;
    absl::StatusOr<absl::Duration> elapsed =
        shared_.runtime.ElapsedTime(events_[from], events_[to]);
    if (!elapsed.ok()) return elapsed.status();
    *duration = *elapsed;
  }
  return absl::OkStatus();
}

// Before any allocation, which would otherwise set up the first GPU.
absl::Status CudaSlot::EnterDevice() {
  if (absl::Status status = shared_.health(); !status.ok()) return status;
  absl::Status status = shared_.runtime.SetDevice(shared_.device);
  return status.ok() ? status : Classify(std::move(status));
}

absl::Status CudaSlot::Shared::Classify(absl::Status status,
                                        CudaRuntime::Stream stream) const {
  const absl::Status device_status = runtime.CheckDevice(stream);
  return device_status.ok() ? status : fail_device(status);
}

}  // namespace attention
