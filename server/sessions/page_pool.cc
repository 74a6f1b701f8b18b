#include "server/sessions/page_pool.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/error_reason.h"

namespace attention {

struct Slab {
  uint64_t number = 0;
  Block memory;
  std::vector<KvPage> pages;
  std::vector<KvPage*> free;  // the next one last

  bool is_empty() const { return free.size() == pages.size(); }
};

PagePool::PagePool(int64_t page_bytes, SlabMemory* memory)
    : stride_(PageStride(page_bytes)),
      memory_(*memory),
      slab_bytes_(memory->SlabBytesFor(stride_)),
      pages_per_slab_(static_cast<int64_t>(slab_bytes_) / stride_) {}

PagePool::~PagePool() { ReturnEmptySlabs(); }

int64_t PagePool::SlabsFor(int64_t count) const {
  const int64_t missing = count - (free_ - reserved_);
  return missing <= 0 ? 0 : (missing - 1) / pages_per_slab_ + 1;
}

absl::Status PagePool::CanReserve(int64_t count) const {
  const int64_t most = memory_.budget_bytes() / slab_bytes_ * pages_per_slab_;
  if (count > most) {
    return WithReason(absl::ResourceExhaustedError(absl::StrCat(
                          "this takes ", count, " pages of ", stride_,
                          " bytes; the sessions of a device can have ", most)),
                      error_reason::kRequestTooLarge);
  }
  if (!memory_.HasRoomFor(slab_bytes_, SlabsFor(count))) {
    return WithReason(absl::ResourceExhaustedError(absl::StrCat(
                          "this takes ", count, " pages of ", stride_,
                          " bytes, more than are free now: sessions have ",
                          memory_.used_bytes(), " of ", memory_.budget_bytes(),
                          " bytes on this device")),
                      error_reason::kCacheFull);
  }
  return absl::OkStatus();
}

absl::Status PagePool::Reserve(int64_t count) {
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

absl::Status PagePool::Grow() {
  absl::StatusOr<Block> memory = memory_.Get(slab_bytes_);
  if (!memory.ok()) return memory.status();
  auto slab = std::make_unique<Slab>();
  slab->number = next_slab_number_++;
  slab->memory = *std::move(memory);
  slab->pages.resize(pages_per_slab_);
  slab->free.resize(pages_per_slab_);
  char* const begin = static_cast<char*>(slab->memory.data());
  for (int64_t i = 0; i < pages_per_slab_; ++i) {
    slab->pages[i] = {.data = begin + i * stride_, .slab = slab.get()};
    slab->free[pages_per_slab_ - 1 - i] = &slab->pages[i];
  }
  page_count_ += pages_per_slab_;
  free_ += pages_per_slab_;
  ++empty_slab_count_;
  with_free_.emplace(slab->number, slab.get());
  slabs_.emplace(slab->number, std::move(slab));
  return absl::OkStatus();
}

KvPage* PagePool::Take() {
  Slab* const slab = with_free_.begin()->second;
  if (slab->is_empty()) --empty_slab_count_;
  KvPage* const page = slab->free.back();
  slab->free.pop_back();
  if (slab->free.empty()) with_free_.erase(with_free_.begin());
  --free_;
  --reserved_;
  page->reference_count = 1;
  return page;
}

void PagePool::Share(KvPage* page) {
  if (++page->reference_count == 2) ++shared_;
}

void PagePool::Release(KvPage* page, bool hold) {
  if (hold) {
    held_.push_back(page);
  } else {
    Drop(page);
  }
}

void PagePool::Drop(KvPage* page) {
  --page->reference_count;
  if (page->reference_count == 1) --shared_;
  if (page->reference_count == 0) Free(page);
}

void PagePool::Free(KvPage* page) {
  Slab* const slab = page->slab;
  if (slab->free.empty()) with_free_.emplace(slab->number, slab);
  slab->free.push_back(page);
  if (slab->is_empty()) ++empty_slab_count_;
  ++free_;
}

void PagePool::DropHeld() {
  for (KvPage* page : held_) Drop(page);
  held_.clear();
}

void PagePool::ReturnEmptySlabs() {
  for (auto it = with_free_.end(); empty_slab_count_ > 0 &&
                                   it != with_free_.begin() &&
                                   free_ - reserved_ >= pages_per_slab_;) {
    Slab* const slab = (--it)->second;
    if (!slab->is_empty()) continue;
    it = with_free_.erase(it);
    --empty_slab_count_;
    page_count_ -= pages_per_slab_;
    free_ -= pages_per_slab_;
    memory_.Put(std::move(slab->memory));
    slabs_.erase(slab->number);
  }
}

SessionUsage::Pages PagePool::counts() const {
  return {.used = page_count_ - free_,
          .shared = shared_,
          .reserved = reserved_,
          .free = free_ - reserved_};
}

}  // namespace attention
