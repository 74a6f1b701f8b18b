#include "server/engine/cuda/cuda_slot.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "server/engine/batch_binding.h"

namespace attention {
namespace {

constexpr size_t kTensorAlignment = 256;

// While one chunk crosses the bus, the next is gathered. Large enough that the
// cost of starting a copy does not matter, and a multiple of kTensorAlignment,
// so that no tensor begins beyond the end of a chunk.
constexpr size_t kCopyChunkBytes = size_t{4} << 20;

// Places tensors one after the other in a block.
class Layout {
 public:
  size_t Add(size_t bytes) {
    const size_t offset = end_;
    end_ +=
        (bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
    return offset;
  }
  size_t bytes() const { return end_; }

 private:
  size_t end_ = 0;
};

// The block of one work on the device; the inputs lie in the staging block as
// they do here.
struct WorkLayout {
  explicit WorkLayout(const AttentionWork& work) {
    Layout layout;
    query = layout.Add(work.query.size_bytes());
    key = layout.Add(work.key.size_bytes());
    value = layout.Add(work.value.size_bytes());
    input_bytes = layout.bytes();
    output = layout.Add(work.output_bytes);
    log_sum_exp = layout.Add(work.log_sum_exp_bytes);
    weights = layout.Add(work.weights_bytes);
    total_bytes = layout.bytes();
  }

  size_t query, key, value, output, log_sum_exp, weights;
  size_t input_bytes, total_bytes;
};

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
  return slot;
}

CudaSlot::~CudaSlot() {
  for (CudaRuntime::Event event : events_) {
    if (event != nullptr) shared_.runtime.DestroyEvent(event);
  }
  if (stream_ != nullptr) shared_.runtime.DestroyStream(stream_);
}

absl::Status CudaSlot::Prepare(PreparedWork& prepared) {
  if (absl::Status status = shared_.health(); !status.ok()) return status;
  // Before any allocation, which would otherwise set up the first GPU.
  if (absl::Status status = shared_.runtime.SetDevice(shared_.device);
      !status.ok()) {
    return Classify(std::move(status));
  }
  const AttentionWork& work = *prepared.work;
  const WorkLayout layout(work);
  absl::StatusOr<WorkResult> result = AllocateResult(work, shared_.pinned_pool);
  if (!result.ok()) return Classify(result.status());
  absl::StatusOr<Block> staging =
      shared_.pinned_pool.Allocate(layout.input_bytes);
  if (!staging.ok()) return Classify(staging.status());
  absl::StatusOr<Block> device =
      shared_.device_pool.Allocate(layout.total_bytes);
  if (!device.ok()) return Classify(device.status());

  prepared.result = *std::move(result);
  prepared.staging = *std::move(staging);
  prepared.device = *std::move(device);
  char* const base = static_cast<char*>(prepared.device.data());
  auto address = [base](size_t bytes, size_t offset) {
    return bytes == 0 ? nullptr : base + offset;
  };
  prepared.addresses = {.query = address(work.query.size_bytes(), layout.query),
                        .key = address(work.key.size_bytes(), layout.key),
                        .value = address(work.value.size_bytes(), layout.value),
                        .output = address(work.output_bytes, layout.output),
                        .log_sum_exp = reinterpret_cast<float*>(address(
                            work.log_sum_exp_bytes, layout.log_sum_exp)),
                        .weights = address(work.weights_bytes, layout.weights)};
  return absl::OkStatus();
}

absl::Status CudaSlot::Reserve(const HeadConfig& config,
                               absl::Span<PreparedWork> works) {
  sequences_ = BindSequences(works);
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
  for (PreparedWork& prepared : works) {
    if (status.ok()) status = CopyIn(prepared);
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
  for (const PreparedWork& prepared : works) {
    if (status.ok()) status = CopyOut(prepared);
  }
  mark(kCopiedOut);
  return status;
}

// Gathers the payloads into the staging block and sends it in chunks, each as
// soon as it is complete.
absl::Status CudaSlot::CopyIn(PreparedWork& prepared) {
  AttentionWork& work = *prepared.work;
  const WorkLayout layout(work);
  char* const staging = static_cast<char*>(prepared.staging.data());
  char* const device = static_cast<char*>(prepared.device.data());
  size_t sent = 0;
  auto send_up_to = [&](size_t end) {
    if (end == sent) return absl::OkStatus();
    const size_t from = std::exchange(sent, end);
    return shared_.runtime.CopyToDevice(device + from, staging + from,
                                        end - from, stream_);
  };
  const std::pair<const Payload*, size_t> inputs[] = {
      {&work.query, layout.query},
      {&work.key, layout.key},
      {&work.value, layout.value}};
  size_t filled = 0;
  // Takes `bytes` in pieces that end where chunks do; `fill` gets each piece.
  auto in_chunks = [&](size_t bytes, auto fill) {
    for (size_t done = 0; done < bytes;) {
      const size_t size =
          std::min(bytes - done, sent + kCopyChunkBytes - filled);
      fill(done, absl::MakeSpan(staging + filled, size));
      done += size;
      filled += size;
      if (filled < sent + kCopyChunkBytes) continue;
      if (absl::Status status = send_up_to(filled); !status.ok()) return status;
    }
    return absl::OkStatus();
  };
  for (auto [payload, offset] : inputs) {
    filled = offset;
    absl::Status status;
    if (payload->source != nullptr) {
      // The batch goes on after an error, which is this work's alone.
      status = in_chunks(
          payload->size_bytes(), [&](size_t from, absl::Span<char> to) {
            if (!prepared.status.ok()) return;
            prepared.status = payload->source->Read(from, to);
          });
    }
    for (absl::string_view fragment : payload->fragments) {
      if (!status.ok()) break;
      status = in_chunks(fragment.size(), [&](size_t from, absl::Span<char> to) {
        std::memcpy(to.data(), fragment.data() + from, to.size());
      });
    }
    if (!status.ok()) return status;
  }
  work.payload_owner.reset();
  return send_up_to(filled);
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

absl::Status CudaSlot::CopyOut(const PreparedWork& prepared) {
  const std::pair<const Block*, const void*> results[] = {
      {&prepared.result.output, prepared.addresses.output},
      {&prepared.result.log_sum_exp, prepared.addresses.log_sum_exp},
      {&prepared.result.weights, prepared.addresses.weights}};
  for (auto [block, device] : results) {
    if (block->size() == 0) continue;
    if (absl::Status status = shared_.runtime.CopyToHost(
            block->data(), device, block->size(), stream_);
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

absl::Status CudaSlot::Classify(absl::Status status) {
  const absl::Status device = shared_.runtime.CheckDevice(stream_);
  return device.ok() ? status : shared_.fail_device(status);
}

}  // namespace attention
