#include "tests/support/fake_kv_cache.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace attention::test {

FakeKvCache::~FakeKvCache() {
  absl::MutexLock lock(&mutex_);
  EXPECT_TRUE(in_flight_.empty()) << "batches have not ended";
  EXPECT_EQ(ended_.size(), all_begun_);
}

std::shared_ptr<KvLayer> FakeKvCache::MakeLayer() {
  return std::make_shared<Layer>();
}

std::shared_ptr<KvLayer> FakeKvCache::Fork(
    const std::shared_ptr<KvLayer>& layer) {
  absl::MutexLock lock(&mutex_);
  return std::make_shared<Layer>(Of(layer));
}

int64_t FakeKvCache::Length(const std::shared_ptr<KvLayer>& layer) const {
  absl::MutexLock lock(&mutex_);
  return Of(layer).length;
}

bool FakeKvCache::IsLost(const std::shared_ptr<KvLayer>& layer) const {
  absl::MutexLock lock(&mutex_);
  return Of(layer).is_lost;
}

std::vector<std::pair<uint64_t, bool>> FakeKvCache::ended() const {
  absl::MutexLock lock(&mutex_);
  return ended_;
}

void FakeKvCache::BeginBatch(uint64_t number) {
  const auto is_next = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return all_begun_ >= number;
  };
  absl::MutexLock lock(&mutex_, absl::Condition(&is_next));
  EXPECT_EQ(all_begun_, number) << "begun twice";
  EXPECT_FALSE(has_begun_) << "begun twice";
  has_begun_ = true;
  in_flight_[number];
}

absl::Status FakeKvCache::Begin(uint64_t number, const KvStep& step,
                                KvView& view) {
  absl::MutexLock lock(&mutex_);
  EXPECT_TRUE(has_begun_ && all_begun_ == number) << "not its turn";
  EXPECT_TRUE(view.pages.empty() && view.copies.empty());
  Layer& layer = Of(step.layer);
  if (layer.is_lost) return absl::AbortedError("the session was lost");
  const int64_t position = step.expected_position.value_or(layer.length);
  if (position < layer.length) return absl::AlreadyExistsError("taken");
  if (position > layer.length) return absl::OutOfRangeError("a gap");
  const int64_t length = layer.length + step.append_length;
  const KeyRange range = step.key_range.value_or(KeyRange{0, length});
  if (range.end > length) return absl::OutOfRangeError("beyond the layer");
  absl::Status status = Append(layer, step.append_length, view);
  if (!status.ok()) return status;
  for (const auto& page : layer.pages) view.pages.push_back(page->data());
  view.key_length = layer.length;
  view.key_begin = range.begin;
  view.key_end = range.end;
  if (step.append_length > 0) in_flight_[number].insert(step.layer);
  return status;
}

// What is shared is copied before it is appended to.
absl::Status FakeKvCache::Append(Layer& layer, int64_t tokens, KvView& view) {
  if (tokens == 0) return absl::OkStatus();
  std::vector<std::shared_ptr<Block>> pages = layer.pages;
  const size_t first = static_cast<size_t>(layer.length / config_.page_tokens);
  const size_t count =
      static_cast<size_t>(PagesFor(config_, layer.length + tokens));
  for (size_t i = first; i < count; ++i) {
    const bool is_new = i >= pages.size();
    // Here and in the layer.
    if (!is_new && pages[i].use_count() == 2) continue;
    absl::StatusOr<Block> block =
        pool_.Allocate(static_cast<size_t>(PageBytes(config_)));
    if (!block.ok()) return block.status();
    auto page = std::make_shared<Block>(*std::move(block));
    if (is_new) {
      pages.push_back(std::move(page));
    } else {
      view.copies.push_back({.from = pages[i]->data(), .to = page->data()});
      pages[i] = std::move(page);
    }
  }
  layer.pages = std::move(pages);
  layer.length += tokens;
  return absl::OkStatus();
}

void FakeKvCache::AllBegun(uint64_t number) {
  absl::MutexLock lock(&mutex_);
  EXPECT_TRUE(has_begun_ && all_begun_ == number) << "not its turn";
  has_begun_ = false;
  ++all_begun_;
}

void FakeKvCache::EndBatch(uint64_t number, bool ok) {
  absl::MutexLock lock(&mutex_);
  if (has_begun_ && number == all_begun_) {
    EXPECT_FALSE(ok) << "not all has begun";
    has_begun_ = false;
    ++all_begun_;
  }
  EXPECT_LT(number, all_begun_);
  const auto batch = in_flight_.find(number);
  ASSERT_NE(batch, in_flight_.end());
  if (!ok) {
    for (const auto& layer : batch->second) Of(layer).is_lost = true;
  }
  in_flight_.erase(batch);
  ended_.push_back({number, ok});
}

}  // namespace attention::test
