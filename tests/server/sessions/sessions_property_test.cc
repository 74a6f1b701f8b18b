// Random operations against a simple model, with pages that hold the numbers of
// the tokens that were written to them. Shows that
//   - every token that a step may see is the one that its session appended,
//   even
//     if its page has been in the host's memory meanwhile,
//   - no page is written that another session has as well,
//   - no place in memory is two pages for one launch,
//   - each page is free, or counted as often as page tables have it,
//   - what was reserved is there,
//   - refusals are those of the rules, and change nothing,
//   - in the end all memory is free.
#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/server/sessions/sessions_fixture.h"

namespace attention {
namespace {

constexpr int64_t kPageTokens = 4;
constexpr int64_t kUnknown = -1;
constexpr int64_t kFreed = -1;  // in place of a page

int64_t PagesFor(int64_t tokens) {
  return (tokens + kPageTokens - 1) / kPageTokens;
}

struct ModelLayer {
  std::vector<int64_t> tokens;  // all that were appended, by position
  std::vector<int64_t> pages;   // by their numbers
  int64_t freed_tokens() const {
    return kPageTokens * std::count(pages.begin(), pages.end(), kFreed);
  }
};

struct ModelSession {
  std::vector<ModelLayer> layers;
  int64_t window_left = kUnlimitedWindow;
  int64_t sink_tokens = 0;
  int64_t reserved_tokens = 0;
  absl::Duration ttl;
  absl::Time expire_time;
  bool is_lost = false;
  // A batch under way that is going to fail has appended to it.
  bool is_doomed = false;
};

struct BegunStep {
  std::string name;
  int layer;
  int64_t append_length;
  int64_t query_length;
  int64_t window_left;
  int64_t sink_tokens;
  KvView view;
  std::vector<int64_t> expected;  // tokens of the layer at that moment
  bool is_doomed;
};

struct BatchUnderWay {
  bool fails = false;
  std::set<std::string> appended_to;
};

struct Variant {
  int64_t spill_page_count = 0;  // that the host has room for
  bool has_large_pages =
      false;  // half of the sessions have twice as large ones
};

class SessionsPropertyTest : public SessionsTest,
                             public testing::WithParamInterface<Variant> {
 protected:
  static constexpr int kMaxSessions = 24;

  int64_t Random(int64_t bound) {  // of [0, bound)
    return std::uniform_int_distribution<int64_t>(0, bound - 1)(random_);
  }

  std::string AnyName() {
    auto it = model_.begin();
    std::advance(it, Random(model_.size()));
    return it->first;
  }

  // How many page tables have the page.
  std::unordered_map<int64_t, int> References() const {
    std::unordered_map<int64_t, int> references;
    for (const auto& [name, session] : model_) {
      for (const ModelLayer& layer : session.layers) {
        for (int64_t page : layer.pages) {
          if (page != kFreed) ++references[page];
        }
      }
    }
    return references;
  }

  bool HasKeysSeenAt(const ModelSession& session, const ModelLayer& layer,
                     int64_t position) const {
    if (session.window_left == kUnlimitedWindow || position == 0) return true;
    const int64_t window = std::max<int64_t>(session.window_left, 1);
    for (int64_t key = std::max<int64_t>(position - window, 0); key < position;
         ++key) {
      if (layer.pages[key / kPageTokens] == kFreed) return false;
    }
    return true;
  }

  // Whether queries from `first` on see a key of the range that has been freed.
  bool SeesFreed(const ModelSession& session, const ModelLayer& layer,
                 int64_t first, KeyRange keys) const {
    const int64_t window = std::max<int64_t>(session.window_left, 1);
    for (int64_t key = std::max(keys.begin, first - window); key < keys.end;
         ++key) {
      if (layer.pages[key / kPageTokens] == kFreed) return true;
    }
    return false;
  }

  // Pages that must be promised to a session, at least.
  int64_t PromiseOf(const ModelSession& session,
                    const std::unordered_map<int64_t, int>& references) const {
    int64_t promise = 0;
    for (const ModelLayer& layer : session.layers) {
      const int64_t length = layer.tokens.size();
      promise += std::max<int64_t>(
          PagesFor(session.reserved_tokens) - PagesFor(length), 0);
      if (length % kPageTokens != 0 && length < session.reserved_tokens &&
          references.at(layer.pages.back()) > 1) {
        ++promise;
      }
    }
    return promise;
  }

  void CheckPages() {
    const auto references = References();
    int64_t shared = 0, promised = 0, tokens = 0;
    for (const auto& [page, count] : references) shared += count > 1 ? 1 : 0;
    for (const auto& [name, session] : model_) {
      if (session.is_lost) continue;
      promised += PromiseOf(session, references);
      for (const ModelLayer& layer : session.layers) {
        tokens += layer.tokens.size() - layer.freed_tokens();
      }
    }
    const SessionUsage usage = Usage();
    const SessionUsage::Pages& pages = usage.page_count;
    ASSERT_EQ(pages.used + pages.spilled,
              static_cast<int64_t>(references.size()));
    ASSERT_LE(pages.spilled, spill_page_count_);
    ASSERT_EQ(pages.shared, shared);
    ASSERT_GE(pages.reserved, promised);
    ASSERT_LE(usage.page_bytes.used + usage.page_bytes.reserved,
              page_count_ * kSmallPageBytes);
    ASSERT_EQ(usage.resident_tokens, tokens);
    ASSERT_EQ(usage.session_count, static_cast<int64_t>(model_.size()));
    if (under_way_.empty() && spill_page_count_ == 0) {
      // Slabs are in the pool's use as far as some page of each is.
      ASSERT_EQ(static_cast<int64_t>(PoolBytes()),
                (pages.used + pages.reserved + pages.free) * kSmallPageBytes);
    }
  }

  void CheckSession(const std::string& name) {
    const ModelSession& session = model_.at(name);
    const SessionInfo info = Info(name);
    EXPECT_EQ(info.is_lost, session.is_lost);
    EXPECT_EQ(info.expire_time, session.expire_time);
    for (size_t i = 0; i < session.layers.size(); ++i) {
      ASSERT_EQ(info.layer_lengths[i],
                static_cast<int64_t>(session.layers[i].tokens.size()));
    }
  }

  void Touch(ModelSession& session) {
    session.expire_time = clock_.Now() + session.ttl;
  }

  void Forget(const std::string& name) {
    if (beginning_) Hold(model_.at(name));
    model_.erase(name);
    for (auto& [number, batch] : under_way_) batch.appended_to.erase(name);
  }

  void Hold(const ModelSession& session) {
    for (const ModelLayer& layer : session.layers) {
      for (int64_t page : layer.pages) {
        if (page != kFreed) held_.insert(page);
      }
    }
  }

  void CreateOne() {
    ModelSession session;
    SessionConfig config = MakeConfig(1 + Random(3));
    if (GetParam().has_large_pages) {
      config.paged.heads.kv_head_count = 1 + Random(2);
    }
    if (Random(3) == 0) {
      config.window_left = session.window_left = Random(12);
      config.sink_tokens = session.sink_tokens = Random(2) * Random(7);
    }
    session.reserved_tokens = Random(3) == 0 ? Random(40) : 0;
    session.ttl = absl::Seconds(100 + Random(400));
    session.layers.resize(config.layer_count);
    const SessionUsage::Pages before = Usage().page_count;
    auto info = registry_->Create(
        kOwner, config,
        {.reserved_tokens = session.reserved_tokens, .ttl = session.ttl});
    ReleaseExpired();  // Create may have
    const int64_t needed =
        PagesFor(session.reserved_tokens) * config.layer_count;
    if (!info.ok()) {
      ASSERT_THAT(info.status(), IsFull());
      ASSERT_TRUE(MayBeFull(before, needed));
      return;
    }
    Touch(session);
    model_[info->name] = std::move(session);
  }

  void ForkOne() {
    const std::string name = AnyName();
    ModelSession& origin = model_.at(name);
    SessionRegistry::ForkOptions options;
    if (Random(2) == 0) options.position = Random(30);
    if (Random(3) == 0) options.reserved_tokens = Random(40);
    bool is_gap = false, is_freed = false;
    for (const ModelLayer& layer : origin.layers) {
      if (is_gap || is_freed) break;  // the first layer's error counts
      const int64_t length = layer.tokens.size();
      const int64_t at = options.position.value_or(length);
      is_gap = at > length;
      is_freed = !is_gap && !HasKeysSeenAt(origin, layer, at);
    }
    const SessionUsage::Pages before = Usage().page_count;
    auto info = registry_->Fork(kOwner, name, options);
    Touch(origin);
    ReleaseExpired();
    if (origin.is_lost) {
      ASSERT_THAT(info.status(), IsLost());
    } else if (is_gap) {
      ASSERT_THAT(info.status(), IsGap());
    } else if (is_freed) {
      ASSERT_THAT(info.status(), IsFreed());
    } else if (!info.ok()) {
      ASSERT_THAT(info.status(), IsFull());
      // A page to copy for each, the reservation, and what comes back for it.
      int64_t known = 0;
      for (const ModelLayer& layer : origin.layers) known += layer.pages.size();
      ASSERT_TRUE(MayBeFull(
          before,
          (PagesFor(options.reserved_tokens) + 2) * origin.layers.size(),
          known));
    }
    if (!info.ok()) return;
    ModelSession fork = origin;
    fork.reserved_tokens = options.reserved_tokens;
    Touch(fork);
    for (ModelLayer& layer : fork.layers) {
      layer.tokens.resize(options.position.value_or(layer.tokens.size()));
      layer.pages.resize(PagesFor(layer.tokens.size()));
    }
    for (auto& [number, batch] : under_way_) {
      if (batch.appended_to.contains(name)) {
        batch.appended_to.insert(info->name);
      }
    }
    model_[info->name] = std::move(fork);
  }

  void TruncateOne() {
    const std::string name = AnyName();
    ModelSession& session = model_.at(name);
    const int64_t position = Random(40);
    bool is_freed = false;
    for (const ModelLayer& layer : session.layers) {
      if (static_cast<int64_t>(layer.tokens.size()) > position) {
        is_freed |= !HasKeysSeenAt(session, layer, position);
      }
    }
    const absl::Status status = Cut(name, position);
    Touch(session);
    if (session.is_lost) {
      ASSERT_THAT(status, IsLost());
    } else if (is_freed) {
      ASSERT_THAT(status, IsFreed());
    } else if (!status.ok()) {
      ASSERT_THAT(status, IsFull());
      ASSERT_GT(session.reserved_tokens, position);
    }
    if (!status.ok()) return;
    for (ModelLayer& layer : session.layers) {
      if (static_cast<int64_t>(layer.tokens.size()) <= position) continue;
      layer.tokens.resize(position);
      layer.pages.resize(PagesFor(position));
    }
  }

  void DeleteOne() {
    const std::string name = AnyName();
    ASSERT_EQ(registry_->Delete(kOwner, name), absl::OkStatus());
    Forget(name);
  }

  void ReleaseExpired() {
    registry_->ReleaseExpired();
    std::vector<std::string> expired;
    for (const auto& [name, session] : model_) {
      if (session.expire_time <= clock_.Now()) expired.push_back(name);
    }
    for (const std::string& name : expired) Forget(name);
  }

  void PassTime() {
    clock_.Advance(absl::Seconds(Random(60)));
    ReleaseExpired();
  }

  // A step of a random session in the batch that is beginning.
  void BeginOne(uint64_t number, BatchUnderWay& batch,
                std::vector<BegunStep>& steps) {
    BegunStep begun = {.name = AnyName()};
    ModelSession& session = model_.at(begun.name);
    begun.layer = Random(session.layers.size());
    begun.append_length = Random(3) == 0 ? 0 : Random(10);
    begun.query_length = Random(4) == 0 ? 0 : Random(6);
    begun.window_left = session.window_left;
    begun.sink_tokens = session.sink_tokens;
    ModelLayer& layer = session.layers[begun.layer];
    KvStep step = StepOf(begun.name, begun.append_length, begun.query_length,
                         begun.layer);
    Touch(session);
    const int64_t length = layer.tokens.size();
    if (Random(3) == 0) step.expected_position = length + Random(5) - 2;
    const int64_t new_length = length + begun.append_length;
    if (Random(4) == 0) {
      const int64_t key_begin = Random(new_length + 1);
      step.key_range =
          KeyRange{key_begin, key_begin + Random(new_length - key_begin + 2)};
    }
    const KeyRange keys = step.key_range.value_or(KeyRange{0, new_length});
    const SessionUsage::Pages before = Usage().page_count;
    const absl::Status status = Begin(number, step, begun.view);
    if (session.is_lost) {
      ASSERT_THAT(status, IsLost());
      return;
    }
    if (begun.append_length > 0 && step.expected_position.has_value() &&
        *step.expected_position != length) {
      ASSERT_THAT(status,
                  *step.expected_position < length ? IsTaken() : IsGap());
      return;
    }
    if (keys.end > new_length) {
      ASSERT_THAT(status, IsGap());
      return;
    }
    if (!status.ok() && ReasonOf(status) == error_reason::kKeysFreed) {
      ASSERT_GT(begun.query_length, 0);
      ASSERT_TRUE(SeesFreed(session, layer, new_length - begun.query_length,
                            {keys.begin, std::min(keys.end, length)}));
      return;  // that what is seen is there is checked when it is computed
    }
    if (!status.ok()) {
      ASSERT_THAT(status, IsFull());
      ASSERT_GT(new_length, session.reserved_tokens);
      ASSERT_TRUE(MayBeFull(before, PagesFor(new_length) - PagesFor(length) + 1,
                            PagesFor(length)));
      return;
    }
    ASSERT_EQ(begun.view.key_length, new_length);
    ASSERT_EQ(begun.view.key_begin, keys.begin);
    ASSERT_EQ(begun.view.key_end, keys.end);
    ASSERT_EQ(static_cast<int64_t>(begun.view.pages.size()),
              PagesFor(new_length));
    FollowPages(begun, layer);
    for (int64_t i = 0; i < begun.append_length; ++i) {
      layer.tokens.push_back(next_token_++);
    }
    if (begun.append_length > 0) {
      batch.appended_to.insert(begun.name);
      if (batch.fails) session.is_doomed = true;
    }
    begun.expected = layer.tokens;
    begun.is_doomed = session.is_doomed;
    CheckWritable(begun, layer, length);
    steps.push_back(std::move(begun));
  }

  // What the step has made of the layer's pages.
  void FollowPages(const BegunStep& step, ModelLayer& layer) {
    const std::vector<void*>& places = step.view.pages;
    for (const PageCopy& copy : step.view.copies) {
      int64_t& tail = layer.pages.back();
      ASSERT_EQ(*PageAt(copy.from, tail), tail);
      held_.insert(std::exchange(tail, next_page_++));
    }
    while (layer.pages.size() < places.size()) {
      layer.pages.push_back(next_page_++);
    }
    for (size_t p = 0; p < places.size(); ++p) {
      int64_t& page = layer.pages[p];
      if (places[p] != nullptr) {
        ASSERT_EQ(*PageAt(places[p], page), page);
      } else if (page != kFreed) {
        held_.insert(std::exchange(page, kFreed));
      }
    }
  }

  // The page that the launch has there; `page` if there was none yet.
  const int64_t* PageAt(const void* place, int64_t page) {
    return &launched_.emplace(place, page).first->second;
  }

  // The pages that a step writes are its session's alone, and were free or its
  // own before this batch.
  void CheckWritable(const BegunStep& step, const ModelLayer& layer,
                     int64_t old_length) {
    const auto references = References();
    for (size_t p = old_length / kPageTokens;
         step.append_length > 0 && p < layer.pages.size(); ++p) {
      ASSERT_EQ(references.at(layer.pages[p]), 1);
      ASSERT_FALSE(held_.contains(layer.pages[p]));
    }
  }

  // Whether it is right to find no frames for `added` pages more, at most, and
  // for some of `known` ones, which may be on the host.
  bool MayBeFull(const SessionUsage::Pages& before, int64_t added,
                 int64_t known = 0) const {
    const int64_t missing = before.used + before.reserved + added - page_count_;
    if (spill_page_count_ == 0) return missing > 0;
    if (GetParam().has_large_pages) return true;  // it depends on slabs
    // Those of this launch stay where they are, and what is reserved.
    std::set<int64_t> stuck = held_;
    for (const auto& [place, page] : launched_) stuck.insert(page);
    for (const auto& [name, session] : model_) {
      if (session.reserved_tokens == 0) continue;
      for (const ModelLayer& layer : session.layers) {
        stuck.insert(layer.pages.begin(), layer.pages.end());
      }
    }
    const int64_t may_leave = before.used - static_cast<int64_t>(stuck.size());
    // One place is kept free on the host.
    const int64_t host_room = spill_page_count_ - before.spilled - 1;
    return missing + known > std::max<int64_t>(may_leave, 0) ||
           missing > host_room;
  }

  // As a device does, between the steps' beginning and their computation. False
  // if it cannot.
  bool MovePages(bool fails) {
    const auto move = [&](absl::Span<const PageMove> moves) {
      for (const PageMove& move : moves) {
        const char* from = static_cast<const char*>(move.from);
        char* to = static_cast<char*>(move.to);
        for (size_t i = 0; i < move.bytes; i += kSmallPageBytes) {
          memory_[to + i] = memory_[from + i];
          if (fails) memory_[to + i].assign(kPageTokens, kUnknown);
        }
      }
      return fails ? absl::InternalError("broken") : absl::OkStatus();
    };
    launched_.clear();
    if (registry_->cache(0)->Move(move).ok()) return true;
    ++failed_moves_;
    for (auto& [name, session] : model_) {
      if (session.is_lost || !Info(name).is_lost) continue;
      session.is_lost = true;
      Hold(session);
      for (ModelLayer& layer : session.layers) layer = {};
    }
    return false;
  }

  // As a device does: copies, then appends, then attention.
  void Compute(const std::vector<BegunStep>& steps, bool fails) {
    std::set<const void*> sources, targets;
    for (const BegunStep& step : steps) {
      for (const PageCopy& copy : step.view.copies) {
        sources.insert(copy.from);
        ASSERT_TRUE(targets.insert(copy.to).second);
        memory_[copy.to] = memory_[copy.from];
        // A batch that fails writes who knows what.
        if (fails) memory_[copy.to].assign(kPageTokens, kUnknown);
      }
    }
    for (const void* target : targets) ASSERT_FALSE(sources.contains(target));
    for (const BegunStep& step : steps) {
      const int64_t length = step.view.key_length;
      for (int64_t i = length - step.append_length; i < length; ++i) {
        auto& page = memory_[step.view.pages[i / kPageTokens]];
        page.resize(kPageTokens, kUnknown);
        page[i % kPageTokens] = fails ? kUnknown : step.expected[i];
      }
    }
    for (const BegunStep& step : steps) {
      if (!step.is_doomed) CheckSeen(step);
    }
  }

  void CheckSeen(const BegunStep& step) {
    const KvView& view = step.view;
    for (int64_t q = 0; q < step.query_length; ++q) {
      const int64_t position = view.key_length - step.query_length + q;
      for (int64_t key = view.key_begin;
           key < std::min(view.key_end, position + 1); ++key) {
        const bool in_window = step.window_left == kUnlimitedWindow ||
                               key >= position - step.window_left;
        if (!in_window && key >= step.sink_tokens) continue;
        void* const page = view.pages[key / kPageTokens];
        ASSERT_NE(page, nullptr) << key << " of " << view.key_length;
        ASSERT_EQ(memory_[page][key % kPageTokens], step.expected[key]);
      }
    }
  }

  void RunBatch() {
    const uint64_t number = BeginBatch();
    beginning_ = true;
    BatchUnderWay& batch = under_way_[number];
    batch.fails = Random(15) == 0;
    const bool fails_at_once = batch.fails && Random(4) == 0;
    // When memory is scarce, one launch after the other.
    for (int64_t launches = 1 + Random(5) / 4; launches > 0; --launches) {
      std::vector<BegunStep> steps;
      for (int64_t count = Random(8); count > 0; --count) {
        if (model_.empty()) CreateOne();
        if (model_.empty()) continue;
        BeginOne(number, batch, steps);
        if (HasFatalFailure()) return;
        ++operations_;
        // What does not wait for the batch comes in between.
        if (Random(10) == 0 && !model_.empty()) DeleteOne();
        if (Random(20) == 0) PassTime();
        if (Random(10) == 0) CreateOne();
        if (HasFatalFailure()) return;
      }
      if (MovePages(fails_at_once && launches == 1)) {
        Compute(steps, batch.fails);
      }
      if (HasFatalFailure()) return;
    }
    if (fails_at_once) {
      EndOne(number);
      beginning_ = false;
    } else {
      AllBegun(number);
      beginning_ = false;
    }
    held_.clear();
    while (under_way_.size() > 4 || (!under_way_.empty() && Random(4) == 0)) {
      auto it = under_way_.begin();
      std::advance(it, Random(under_way_.size()));
      EndOne(it->first);
    }
  }

  void EndOne(uint64_t number) {
    const BatchUnderWay batch = under_way_.extract(number).mapped();
    EndBatch(number, !batch.fails);
    if (!batch.fails) return;
    for (const std::string& name : batch.appended_to) {
      ModelSession& session = model_.at(name);
      session.is_lost = true;
      for (ModelLayer& layer : session.layers) layer = {};
    }
  }

  std::mt19937_64 random_;
  std::map<std::string, ModelSession> model_;
  std::unordered_map<const void*, std::vector<int64_t>> memory_;
  int64_t next_token_ = 0;
  std::map<uint64_t, BatchUnderWay> under_way_;
  bool beginning_ = false;
  std::set<int64_t> held_;  // pages released while a batch begins
  // What is where for the launch that is being put together.
  std::unordered_map<const void*, int64_t> launched_;
  int64_t next_page_ = 0;
  const int64_t spill_page_count_ = GetParam().spill_page_count;
  const int64_t page_count_ = spill_page_count_ == 0 ? 160 : 96;
  int64_t failed_moves_ = 0;
  int64_t operations_ = 0;
};

TEST_P(SessionsPropertyTest, AgreesWithTheModel) {
  random_.seed(testing::UnitTest::GetInstance()->random_seed() + 1u);
  SCOPED_TRACE(testing::UnitTest::GetInstance()->random_seed());
  MakeRegistry(page_count_, 1, {}, spill_page_count_);
  while (operations_ < 100'000) {
    const int64_t choice = Random(12);
    ++operations_;
    if (model_.empty() ||
        (choice < 2 && static_cast<int>(model_.size()) < kMaxSessions)) {
      CreateOne();
    } else if (choice < 4 && static_cast<int>(model_.size()) < kMaxSessions) {
      ForkOne();
    } else if (choice == 4) {
      TruncateOne();
    } else if (choice == 5) {
      DeleteOne();
    } else if (choice == 6) {
      PassTime();
    } else {
      RunBatch();
    }
    if (HasFatalFailure()) return;
    CheckPages();
    if (!model_.empty()) CheckSession(AnyName());
    if (HasFailure()) return;
  }
  while (!under_way_.empty()) EndOne(under_way_.begin()->first);
  while (!model_.empty()) DeleteOne();
  EXPECT_EQ(Pages("used"), 0);
  EXPECT_EQ(Pages("reserved"), 0);
  EXPECT_EQ(PoolBytes(), 0u);
  EXPECT_EQ(spill_pools_[0]->usage().in_use_bytes, 0u);
  // All of it happened.
  for (const char* event :
       {"created", "forked", "truncated", "deleted", "expired", "lost"}) {
    EXPECT_GT(
        reader_.Value("attention_session_events_total", {{"event", event}}),
        100)
        << event;
  }
  for (std::string_view reason :
       {error_reason::kPositionTaken, error_reason::kPositionGap,
        error_reason::kKeysFreed, error_reason::kSessionLost}) {
    EXPECT_GT(reader_.Value("attention_session_refusals_total",
                            {{"reason", std::string(reason)}}),
              50)
        << std::string(reason);
  }
  EXPECT_GT(reader_.Value("attention_session_page_copies_total"), 100);
  if (spill_page_count_ < page_count_) {
    EXPECT_GT(reader_.Value("attention_session_refusals_total",
                            {{"reason", "CACHE_FULL"}}),
              50);
  }
  if (spill_page_count_ == 0) return;
  for (const char* event : {"evicted", "restored"}) {
    EXPECT_GT(
        reader_.Value("attention_session_events_total", {{"event", event}}),
        100)
        << event;
  }
  EXPECT_GT(failed_moves_, 5);
}

INSTANTIATE_TEST_SUITE_P(Spill, SessionsPropertyTest,
                         testing::Values(Variant{}, Variant{32}, Variant{2000},
                                         Variant{64, true},
                                         Variant{2000, true}));

}  // namespace
}  // namespace attention
