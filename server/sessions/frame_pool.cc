#include "server/sessions/frame_pool.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/error_reason.h"

namespace attention {

struct Slab {
  uint64_t number = 0;
  Block memory;
  std::vector<Frame> frames;
  // A heap, the first in memory on top: pages that are filled one after the
  // other tend to be neighbours, which move together.
  std::vector<Frame*> free;
  size_t idle_count = 0;

  bool is_empty() const { return free.size() == frames.size(); }
};

FramePool::FramePool(int64_t page_bytes, SlabMemory* memory)
    : stride_(PageStride(page_bytes)),
      memory_(*memory),
      slab_bytes_(memory->SlabBytesFor(stride_)),
      frames_per_slab_(static_cast<int64_t>(slab_bytes_) / stride_) {}

FramePool::~FramePool() { ReturnEmptySlabs(); }

int64_t FramePool::SlabsFor(int64_t count) const {
  const int64_t missing = count - free();
  return missing <= 0 ? 0 : (missing - 1) / frames_per_slab_ + 1;
}

int64_t FramePool::available() const {
  return free() + memory_.RoomFor(slab_bytes_) * frames_per_slab_;
}

absl::Status FramePool::CanReserve(int64_t count) const {
  const int64_t most = memory_.budget_bytes() / slab_bytes_ * frames_per_slab_;
  if (count > most) {
    return WithReason(absl::ResourceExhaustedError(absl::StrCat(
                          "this takes ", count, " pages of ", stride_,
                          " bytes; the sessions of a device can have ", most)),
                      error_reason::kRequestTooLarge);
  }
  if (SlabsFor(count) > memory_.RoomFor(slab_bytes_)) {
    return WithReason(absl::ResourceExhaustedError(absl::StrCat(
                          "this takes ", count, " pages of ", stride_,
                          " bytes, more than are free now: sessions have ",
                          memory_.used_bytes(), " of ", memory_.budget_bytes(),
                          " bytes on this device")),
                      error_reason::kCacheFull);
  }
  return absl::OkStatus();
}

absl::Status FramePool::Reserve(int64_t count) {
  absl::Status status = CanReserve(count);
  for (int64_t missing = SlabsFor(count); missing > 0 && status.ok();
       --missing) {
    status = Grow();
  }
  if (status.ok()) {
    reserved_ += count;
  } else {
    ReturnEmptySlabs();
  }
  return status;
}

absl::Status FramePool::Grow() {
  absl::StatusOr<Block> memory = memory_.Get(slab_bytes_);
  if (!memory.ok()) return memory.status();
  auto slab = std::make_unique<Slab>();
  slab->number = next_slab_number_++;
  slab->memory = *std::move(memory);
  slab->frames.resize(frames_per_slab_);
  slab->free.resize(frames_per_slab_);
  char* const begin = static_cast<char*>(slab->memory.data());
  for (int64_t i = 0; i < frames_per_slab_; ++i) {
    slab->frames[i] = {.data = begin + i * stride_, .slab = slab.get()};
    slab->free[i] = &slab->frames[i];
  }
  frame_count_ += frames_per_slab_;
  free_ += frames_per_slab_;
  ++empty_slab_count_;
  with_free_.emplace(slab->number, slab.get());
  slabs_.emplace(slab->number, std::move(slab));
  return absl::OkStatus();
}

Frame* FramePool::Take() {
  Slab* const slab = with_free_.begin()->second;
  if (slab->is_empty()) --empty_slab_count_;
  std::pop_heap(slab->free.begin(), slab->free.end(), std::greater<>());
  Frame* const frame = slab->free.back();
  slab->free.pop_back();
  if (slab->free.empty()) with_free_.erase(with_free_.begin());
  --free_;
  --reserved_;
  return frame;
}

void FramePool::Put(Frame* frame) {
  Slab* const slab = frame->slab;
  if (slab->free.empty()) with_free_.emplace(slab->number, slab);
  slab->free.push_back(frame);
  std::push_heap(slab->free.begin(), slab->free.end(), std::greater<>());
  if (slab->is_empty()) ++empty_slab_count_;
  ++free_;
}

bool FramePool::StartsSlab(const Frame* frame) {
  return frame == &frame->slab->frames.front();
}

void FramePool::SetIdle(Frame* frame, KvPage* page) {
  if (frame->idle_page != nullptr) --frame->slab->idle_count;
  if (page != nullptr) ++frame->slab->idle_count;
  frame->idle_page = page;
}

std::vector<KvPage*> FramePool::PagesToEmptySlab() const {
  const Slab* best = nullptr;
  for (const auto& [number, slab] : slabs_) {
    if (slab->idle_count + slab->free.size() == slab->frames.size() &&
        slab->idle_count > 0 &&
        static_cast<int64_t>(slab->free.size()) <= free() &&
        (best == nullptr || slab->idle_count < best->idle_count)) {
      best = slab.get();
    }
  }
  std::vector<KvPage*> pages;
  if (best == nullptr) return pages;
  for (const Frame& frame : best->frames) {
    if (frame.idle_page != nullptr) pages.push_back(frame.idle_page);
  }
  return pages;
}

void FramePool::ReturnEmptySlabs() {
  for (auto it = with_free_.end(); empty_slab_count_ > 0 &&
                                   it != with_free_.begin() &&
                                   free() >= frames_per_slab_;) {
    Slab* const slab = (--it)->second;
    if (!slab->is_empty()) continue;
    it = with_free_.erase(it);
    --empty_slab_count_;
    frame_count_ -= frames_per_slab_;
    free_ -= frames_per_slab_;
    memory_.Put(std::move(slab->memory));
    slabs_.erase(slab->number);
  }
}

}  // namespace attention
