#include "server/engine/cuda/cuda_slot.h"

#include <cstddef>
#include <utility>

#include "server/engine/batch_binding.h"
#include "server/engine/cuda/batch_memory.h"

namespace attention {

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
  return slot;
}

CudaSlot::~CudaSlot() {
  for (CudaRuntime::Event event : events_) {
    if (event != nullptr) shared_.runtime.DestroyEvent(event);
  }
  if (stream_ != nullptr) shared_.runtime.DestroyStream(stream_);
}

size_t CudaSlot::PrepareTogether(absl::Span<PreparedWork> works) {
  if (!EnterDevice().ok()) return 0;  // Prepare will say why
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
  if (!status.ok()) return status;
  status = PlaceTogether(absl::MakeSpan(&prepared, 1), shared_.pinned_pool,
                         shared_.device_pool);
  return status.ok() ? status : Classify(std::move(status));
}

absl::Status CudaSlot::Reserve(const HeadConfig& config,
                               absl::Span<PreparedWork> works) {
  BindSequences(works, sequences_);
  const CudaRuntime::ScratchBytes bytes =
      shared_.runtime.ScratchSize(Params(config));
  absl::StatusOr<Block> host = shared_.pinned_pool.Allocate(bytes.host_bytes);
  if (!host.ok()) return Classify(host.status());
  absl::StatusOr<Block> device =
      shared_.device_pool.Allocate(bytes.device_bytes);
  if (!device.ok()) return Classify(device.status());
  host_scratch_ = *std::move(host);
  device_scratch_ = *std::move(device);
  return absl::OkStatus();
}

absl::StatusOr<PassReport> CudaSlot::Compute(const HeadConfig& config,
                                             absl::Span<PreparedWork> works) {
  absl::Status status = Enqueue(config, works);
  // Also after an error: what has been enqueued still uses the blocks.
  absl::Status finished = shared_.runtime.Synchronize(stream_);
  if (status.ok()) status = std::move(finished);
  absl::StatusOr<PassReport> report =
      status.ok() ? Report(works) : absl::StatusOr<PassReport>(status);
  host_scratch_.Reset();
  device_scratch_.Reset();
  if (!report.ok()) return Classify(report.status());
  return report;
}

AttentionParams CudaSlot::Params(const HeadConfig& config) const {
  return {.config = config,
          .sequences = sequences_.data(),
          .sequence_count = static_cast<int64_t>(sequences_.size())};
}

absl::Status CudaSlot::Enqueue(const HeadConfig& config,
                               absl::Span<PreparedWork> works) {
  CudaRuntime& runtime = shared_.runtime;
  absl::Status status;
  auto mark = [&](Mark mark) {
    if (status.ok()) status = runtime.RecordEvent(events_[mark], stream_);
  };
  mark(kStart);
  if (status.ok()) status = input_copy_.Run(works, stream_);
  for (const PreparedWork& prepared : works) {
    if (status.ok() && prepared.work->has_padding) {
      status = ClearResults(prepared);
    }
  }
  mark(kCopiedIn);
  if (status.ok()) {
    status = runtime.Launch(
        Params(config),
        {.host = host_scratch_.data(), .device = device_scratch_.data()},
        stream_);
  }
  mark(kComputed);
  if (status.ok()) status = CopyOut(works);
  mark(kCopiedOut);
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
  // The runtime fills with bytes only, and -infinity is none: the result block
  // serves as the source of a copy first.
  void* const host = prepared.result.log_sum_exp.data();
  FillEmptyLogSumExp(host, work.log_sum_exp_bytes);
  return runtime.CopyToDevice(prepared.addresses.log_sum_exp, host,
                              work.log_sum_exp_bytes, stream_);
}

// One copy for all works whose results lie one after the other.
absl::Status CudaSlot::CopyOut(absl::Span<const PreparedWork> works) {
  for (size_t first = 0, end; first < works.size(); first = end) {
    size_t bytes = works[first].host_results.size();
    for (end = first + 1; end < works.size(); ++end) {
      if (!Follows(works[end].host_results, works[end - 1].host_results) ||
          !Follows(works[end].device_results, works[end - 1].device_results)) {
        break;
      }
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

absl::StatusOr<PassReport> CudaSlot::Report(
    absl::Span<const PreparedWork> works) {
  PassReport report;
  const std::pair<absl::Duration*, Mark> phases[] = {
      {&report.copy_in, kStart},
      {&report.compute, kCopiedIn},
      {&report.copy_out, kComputed}};
  for (auto [duration, from] : phases) {
    absl::StatusOr<absl::Duration> elapsed =
        shared_.runtime.ElapsedTime(events_[from], events_[from + 1]);
    if (!elapsed.ok()) return elapsed.status();
    *duration = *elapsed;
  }
  for (const PreparedWork& prepared : works) {
    report.copied_in_bytes += prepared.work->input_bytes();
    report.copied_out_bytes += prepared.work->result_bytes();
  }
  return report;
}

// Before any allocation, which would otherwise set up the first GPU.
absl::Status CudaSlot::EnterDevice() {
  if (absl::Status status = shared_.health(); !status.ok()) return status;
  absl::Status status = shared_.runtime.SetDevice(shared_.device);
  return status.ok() ? status : Classify(std::move(status));
}

absl::Status CudaSlot::Classify(absl::Status status) {
  const absl::Status device = shared_.runtime.CheckDevice(stream_);
  return device.ok() ? status : shared_.fail_device(status);
}

}  // namespace attention
