#include "server/sessions/page_pool.h"

#include <algorithm>
#include <utility>

namespace attention {

PagePool::PagePool(int64_t page_bytes, SlabMemory* memory, SlabMemory* spill,
                   std::vector<PageMove>* moves)
    : frames_(page_bytes, memory),
      host_frames_(spill == nullptr
                       ? nullptr
                       : std::make_unique<FramePool>(page_bytes, spill)),
      moves_(*moves) {}

KvPage* PagePool::Take() {
  if (unused_.empty()) unused_.push_back(&pages_.emplace_back());
  KvPage* const page = unused_.back();
  unused_.pop_back();
  *page = {.frame = frames_.Take(), .reference_count = 1, .active_count = 1};
  return page;
}

void PagePool::Share(KvPage* page, bool is_active) {
  if (++page->reference_count == 2) ++shared_;
  if (is_active) ++page->active_count;
}

void PagePool::Release(KvPage* page, bool is_active, bool hold) {
  if (hold) {
    held_.push_back({page, is_active});
  } else {
    Drop(page, is_active);
  }
}

void PagePool::DropHeld() {
  for (const Held& held : held_) Drop(held.page, held.is_active);
  held_.clear();
}

void PagePool::Drop(KvPage* page, bool is_active) {
  --page->reference_count;
  if (page->reference_count == 1) --shared_;
  if (page->reference_count > 0) {
    if (is_active) Deactivate(page);
    return;
  }
  if (page->is_spilled()) {
    PutHostFrame(page->host_frame);
  } else {
    if (!is_active) SetIdle(page, false);
    frames_.Put(page->frame);
  }
  unused_.push_back(page);
}

void PagePool::Deactivate(KvPage* page) {
  if (--page->active_count == 0 && !page->is_spilled()) SetIdle(page, true);
}

void PagePool::Activate(KvPage* page) {
  if (++page->active_count == 1 && !page->is_spilled()) SetIdle(page, false);
}

void PagePool::SetIdle(KvPage* page, bool is_idle) {
  if (is_idle) {
    page->idle_place = idle_.insert(idle_.end(), page);
  } else {
    idle_.erase(page->idle_place);
  }
  FramePool::SetIdle(page->frame, is_idle ? page : nullptr);
}

int64_t PagePool::HostRoom() const {
  const int64_t room = host_frames_->available() - (has_spare_ ? 0 : 1);
  return std::max<int64_t>(room, 0);
}

bool PagePool::ReserveOnHost(int64_t count) {
  if (!host_frames_->Reserve(count + (has_spare_ ? 0 : 1)).ok()) return false;
  has_spare_ = true;
  return true;
}

bool PagePool::MakeRoom(int64_t count, int64_t restored) {
  const int64_t missing = count - frames_.available();
  const int64_t spilled = std::min(missing, HostRoom());
  if (missing <= 0 || missing > idle_count() || missing - spilled > restored ||
      !ReserveOnHost(spilled)) {
    return false;
  }
  for (int64_t i = 0; i < spilled; ++i) frames_.Put(Spill(idle_.front()));
  const int64_t exchanges = missing - spilled;
  if (!frames_.Reserve(count - exchanges).ok()) return false;
  exchanges_ = exchanges;
  return true;
}

int64_t PagePool::EmptySlab() {
  const std::vector<KvPage*> pages = frames_.PagesToEmptySlab();
  const int64_t count = static_cast<int64_t>(pages.size());
  if (count == 0 || count > HostRoom() || !ReserveOnHost(count)) return 0;
  for (KvPage* page : pages) frames_.Put(Spill(page));
  frames_.ReturnEmptySlabs();
  return count;
}

Frame* PagePool::Spill(KvPage* page) {
  SetIdle(page, false);
  page->host_frame = host_frames_->Take();
  AddMove(page->frame, page->host_frame, /*to_host=*/true);
  return std::exchange(page->frame, nullptr);
}

void PagePool::Restore(KvPage* page) {
  const bool exchanges = exchanges_ > 0;
  page->frame = exchanges ? Spill(idle_.front()) : frames_.Take();
  AddMove(page->host_frame, page->frame, /*to_host=*/false);
  PutHostFrame(std::exchange(page->host_frame, nullptr));
  if (!exchanges) return;
  --exchanges_;
  host_frames_->Reserve(1).IgnoreError();  // the one that was just put back
}

void PagePool::PutHostFrame(Frame* frame) {
  host_frames_->Put(frame);
  if (host_frames_->used() > 0) return;
  host_frames_->Unreserve(1);
  has_spare_ = false;
}

void PagePool::AddMove(const Frame* from, const Frame* to, bool to_host) {
  const size_t bytes = static_cast<size_t>(page_bytes());
  if (!moves_.empty() && !FramePool::StartsSlab(from) &&
      !FramePool::StartsSlab(to)) {
    PageMove& last = moves_.back();
    if (last.to_host == to_host &&
        static_cast<const char*>(last.from) + last.bytes == from->data &&
        static_cast<char*>(last.to) + last.bytes == to->data) {
      last.bytes += bytes;
      return;
    }
  }
  moves_.push_back(
      {.from = from->data, .to = to->data, .bytes = bytes, .to_host = to_host});
}

void PagePool::ReturnEmptySlabs() {
  frames_.ReturnEmptySlabs();
  if (host_frames_ != nullptr) host_frames_->ReturnEmptySlabs();
}

SessionUsage::Pages PagePool::counts() const {
  return {.used = frames_.used(),
          .shared = shared_,
          .reserved = frames_.reserved(),
          .free = frames_.free(),
          .spilled = host_frames_ == nullptr ? 0 : host_frames_->used()};
}

}  // namespace attention
