#include "server/sessions/layer_pages.h"

#include <algorithm>

namespace attention {

int64_t LayerShape::PromiseFor(int64_t length, bool tail_is_shared) const {
  const int64_t missing = PagesFor(reserved_tokens) - PagesFor(length);
  const bool needs_copy =
      tail_is_shared && length % page_tokens != 0 && length < reserved_tokens;
  return std::max<int64_t>(missing, 0) + (needs_copy ? 1 : 0);
}

KeyRange LayerShape::SeenAt(int64_t position) const {
  if (window_left == kUnlimitedWindow) return {0, position};
  const int64_t window = std::max<int64_t>(window_left, 1);
  return {window < position ? position - window : 0, position};
}

bool LayerPages::Has(KeyRange keys) const {
  return keys.begin >= keys.end ||
         keys.begin >= hole_end_ * shape_.page_tokens ||
         keys.end <= hole_begin_ * shape_.page_tokens ||
         hole_begin_ == hole_end_;
}

bool LayerPages::IsSharedAt(int64_t position) const {
  if (position == 0) return false;
  const KvPage* page = pages_[shape_.PagesFor(position) - 1];
  return page != nullptr && page->is_shared();
}

void LayerPages::Deactivate() {
  for (KvPage* page : pages_) {
    if (page != nullptr) pool_.Deactivate(page);
  }
  page_data_.clear();
  is_active_ = false;
}

int64_t LayerPages::Activate() {
  is_active_ = true;
  int64_t spilled = 0;
  for (KvPage* page : pages_) {
    if (page == nullptr) continue;
    pool_.Activate(page);
    if (page->is_spilled()) ++spilled;
  }
  return spilled;
}

void LayerPages::Restore() {
  page_data_.resize(pages_.size());
  for (size_t p = 0; p < pages_.size(); ++p) {
    KvPage* const page = pages_[p];
    if (page == nullptr) continue;
    if (page->is_spilled()) pool_.Restore(page);
    page_data_[p] = page->frame->data;
  }
}

int64_t LayerPages::MissingFor(int64_t count) const {
  const int64_t page_count = static_cast<int64_t>(pages_.size());
  const int64_t needed =
      shape_.PagesFor(length_ + count) - page_count + (MustCopyTail() ? 1 : 0);
  return std::max<int64_t>(needed - promised_, 0);
}

void LayerPages::Append(int64_t count, std::vector<PageCopy>& copies,
                        bool hold) {
  if (MustCopyTail()) {
    KvPage* const copy = TakePage();
    copies.push_back({.from = page_data_.back(), .to = copy->frame->data});
    Release(pages_.back(), hold);
    pages_.back() = copy;
    page_data_.back() = copy->frame->data;
  }
  length_ += count;
  while (static_cast<int64_t>(pages_.size()) < shape_.PagesFor(length_)) {
    pages_.push_back(TakePage());
    page_data_.push_back(pages_.back()->frame->data);
  }
  // There may be a page too many, when those who shared the last one are gone.
  const int64_t promise = shape_.PromiseFor(length_, /*tail_is_shared=*/false);
  pool_.frames().Unreserve(promised_ - promise);
  promised_ = promise;
}

KvPage* LayerPages::TakePage() {
  --promised_;
  return pool_.Take();
}

KeyRange LayerPages::PagesToFree(int64_t position) const {
  return {std::max(shape_.PagesFor(shape_.sink_tokens), hole_end_),
          position / shape_.page_tokens};
}

int64_t LayerPages::TokensFreedBefore(int64_t position) const {
  const KeyRange pages = PagesToFree(position);
  return std::max<int64_t>(pages.end - pages.begin, 0) * shape_.page_tokens;
}

void LayerPages::FreeBefore(int64_t position, bool hold) {
  const KeyRange pages = PagesToFree(position);
  if (pages.begin >= pages.end) return;
  for (int64_t p = pages.begin; p < pages.end; ++p) {
    Release(pages_[p], hold);
    pages_[p] = nullptr;
    page_data_[p] = nullptr;
  }
  if (hole_begin_ == hole_end_) hole_begin_ = pages.begin;
  hole_end_ = pages.end;
}

int64_t LayerPages::OwnPagesFrom(int64_t position) const {
  int64_t count = 0;
  for (size_t p = shape_.PagesFor(position); p < pages_.size(); ++p) {
    if (pages_[p] != nullptr && !pages_[p]->is_shared()) ++count;
  }
  return count;
}

void LayerPages::Cut(int64_t position) {
  const int64_t page_count = shape_.PagesFor(position);
  for (size_t p = page_count; p < pages_.size(); ++p) {
    Release(pages_[p], /*hold=*/false);
  }
  pages_.resize(page_count);
  if (is_active_) page_data_.resize(page_count);
  length_ = position;
  hole_end_ = std::min(hole_end_, page_count);
  hole_begin_ = std::min(hole_begin_, hole_end_);
}

void LayerPages::ShareFrom(const LayerPages& origin, int64_t position) {
  const int64_t page_count = shape_.PagesFor(position);
  pages_.assign(origin.pages_.begin(), origin.pages_.begin() + page_count);
  is_active_ = origin.is_active_;
  if (is_active_) {
    page_data_.assign(origin.page_data_.begin(),
                      origin.page_data_.begin() + page_count);
  }
  for (KvPage* page : pages_) {
    if (page != nullptr) pool_.Share(page, is_active_);
  }
  length_ = position;
  hole_end_ = std::min(origin.hole_end_, page_count);
  hole_begin_ = std::min(origin.hole_begin_, hole_end_);
}

void LayerPages::Clear(bool hold) {
  for (KvPage* page : pages_) Release(page, hold);
  pages_ = {};
  page_data_ = {};
  length_ = hole_begin_ = hole_end_ = 0;
  pool_.frames().Unreserve(promised_);
  promised_ = 0;
}

}  // namespace attention
