#include "server/engine/cuda/device_upload.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "server/engine/payload.h"

namespace attention {
namespace {

// Uploads that copy at the same time. One alone fills its connection; several
// share the bus.
constexpr size_t kLaneCount = 4;
constexpr size_t kLaneBytes = size_t{4} << 20;
// While one piece crosses the bus the next one is gathered.
constexpr size_t kPieceBytes = size_t{512} << 10;

// A tensor in the memory of a GPU.
class DeviceTensor final : public PayloadSource {
 public:
  DeviceTensor(void* address, size_t size, int device)
      : memory_{.kind = DirectMemory::Kind::kDevice,
                .address = address,
                .device = device},
        size_(size) {}

  size_t size_bytes() const override { return size_; }
  absl::Status Read(size_t, absl::Span<char>) const override {
    return absl::InternalError(
        "a tensor in a GPU's memory came to a processor");
  }
  DirectMemory direct_memory() const override { return memory_; }

 private:
  const DirectMemory memory_;
  const size_t size_;
};

}  // namespace

class UploadLanes::Upload final : public InputUpload {
 public:
  Upload(UploadLanes* lanes, InputBlocks blocks)
      : lanes_(*lanes), blocks_(std::move(blocks)) {}

  absl::Status Write(InputTensor tensor, size_t offset,
                     absl::Span<const absl::string_view> fragments) override {
    const Block& block = blocks_[static_cast<size_t>(tensor)];
    return lanes_.Copy(fragments, static_cast<char*>(block.data()) + offset);
  }

  absl::Status Provide(AttentionWork& work) override {
    Payload* const payloads[] = {&work.query, &work.key, &work.value};
    for (size_t i = 0; i < blocks_.size(); ++i) {
      *payloads[i] = Payload();
      if (blocks_[i].size() == 0) continue;
      payloads[i]->source = std::make_shared<const DeviceTensor>(
          blocks_[i].data(), blocks_[i].size(), lanes_.shared_.device);
    }
    work.required_device = lanes_.shared_.device;
    return absl::OkStatus();
  }

 private:
  UploadLanes& lanes_;
  const InputBlocks blocks_;
};

UploadLanes::~UploadLanes() {
  absl::MutexLock lock(&mutex_);
  for (const auto& lane : lanes_) {
    if (lane->stream != nullptr) shared_.runtime.DestroyStream(lane->stream);
  }
}

absl::StatusOr<std::unique_ptr<InputUpload>> UploadLanes::Reserve(
    const InputSizes& sizes) {
  if (absl::Status s = EnterDevice(); !s.ok()) return s;
  {
    absl::MutexLock lock(&mutex_);
    if (absl::Status s = MakeLanes(); !s.ok()) return s;
  }
  absl::StatusOr<InputBlocks> blocks =
      AllocateInputs(sizes, shared_.device_pool);
  if (!blocks.ok()) return blocks.status();
  return std::make_unique<Upload>(this, *std::move(blocks));
}

absl::Status UploadLanes::EnterDevice() {
  if (absl::Status s = shared_.health(); !s.ok()) return s;
  return shared_.runtime.SetDevice(shared_.device);
}

absl::Status UploadLanes::MakeLanes() {
  while (lanes_.size() < kLaneCount) {
    auto lane = std::make_unique<Lane>();
    absl::StatusOr<Block> pinned = shared_.pinned_pool.Allocate(kLaneBytes);
    if (!pinned.ok()) return pinned.status();
    lane->pinned = *std::move(pinned);
    absl::StatusOr<CudaRuntime::Stream> stream = shared_.runtime.CreateStream();
    if (!stream.ok()) return stream.status();
    lane->stream = *stream;
    free_.push_back(lane.get());
    lanes_.push_back(std::move(lane));
  }
  return absl::OkStatus();
}

absl::Status UploadLanes::Copy(absl::Span<const absl::string_view> fragments,
                               char* to) {
  if (absl::Status s = EnterDevice(); !s.ok()) return s;
  Lane* lane;
  {
    absl::MutexLock lock(&mutex_,
                         absl::Condition(this, &UploadLanes::HasFreeLane));
    lane = free_.back();
    free_.pop_back();
  }
  absl::Status status = CopyOn(*lane, fragments, to);
  // Also after an error: what has been enqueued still uses the memory.
  absl::Status finished = shared_.runtime.Synchronize(lane->stream);
  if (status.ok()) status = std::move(finished);
  if (!status.ok()) status = shared_.Classify(std::move(status), lane->stream);
  absl::MutexLock lock(&mutex_);
  free_.push_back(lane);
  return status;
}

absl::Status UploadLanes::CopyOn(const Lane& lane,
                                 absl::Span<const absl::string_view> fragments,
                                 char* to) {
  char* const base = static_cast<char*>(lane.pinned.data());
  size_t filled = 0;  // of the lane's memory
  size_t sent = 0;
  const auto send = [&]() -> absl::Status {
    if (sent == filled) return absl::OkStatus();
    absl::Status status = shared_.runtime.CopyToDevice(
        to, base + sent, filled - sent, lane.stream);
    to += filled - sent;
    sent = filled;
    return status;
  };
  for (absl::string_view fragment : fragments) {
    while (!fragment.empty()) {
      const size_t bytes =
          std::min(fragment.size(), kPieceBytes - (filled - sent));
      std::memcpy(base + filled, fragment.data(), bytes);
      fragment.remove_prefix(bytes);
      filled += bytes;
      if (filled - sent < kPieceBytes) continue;
      if (absl::Status s = send(); !s.ok()) return s;
      if (filled < kLaneBytes) continue;
      // A chunk larger than recommended.
      absl::Status s = shared_.runtime.Synchronize(lane.stream);
      if (!s.ok()) return s;
      filled = sent = 0;
    }
  }
  return send();
}

}  // namespace attention
