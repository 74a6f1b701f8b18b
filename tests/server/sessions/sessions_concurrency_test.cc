// Everything at once, with pages that are memory: batches that append and
// attend, sessions that come, fork, are cut and go. Most of what this finds, it
// finds under ThreadSanitizer.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "tests/server/sessions/sessions_fixture.h"

namespace attention {
namespace {

constexpr int64_t kPageTokens = 4;
// At least: threads go on until all have done theirs.
constexpr int kBatchesPerThread = 6000;
constexpr int kChangesPerThread = 12000;
constexpr int64_t kTokensRead = 10'000;

class Dice {
 public:
  explicit Dice(int thread)
      : random_(testing::UnitTest::GetInstance()->random_seed() * 16 + thread) {
  }
  int64_t operator()(int64_t bound) {
    return std::uniform_int_distribution<int64_t>(0, bound - 1)(random_);
  }

 private:
  std::mt19937_64 random_;
};

class SessionsConcurrencyTest : public SessionsTest {
 protected:
  // A session, and what all its tokens are: the same for its forks.
  struct Known {
    std::string name;
    int64_t family = 0;
  };

  void SetUp() override {
    pool_ = std::make_unique<MemoryPool>(
        MemoryPool::Options{.name = "host", .budget_bytes = size_t{1} << 30},
        MakeHostAllocator());
    MakeRegistry(400, 0);
  }
  void MakeRegistry(int64_t page_count, int64_t spill_page_count) {
    page_count_ = page_count;
    auto registry = SessionRegistry::Create(
        {.slab_bytes = kPagesPerSlab * kSmallPageBytes},
        {{.device = &device_,
          .pool = pool_.get(),
          .budget_bytes = static_cast<size_t>(page_count * kSmallPageBytes),
          .spill_pool = pool_.get(),
          .spill_budget_bytes =
              static_cast<size_t>(spill_page_count * kSmallPageBytes)}},
        &clock_, &metrics_);
    ASSERT_TRUE(registry.ok());
    registry_ = *std::move(registry);
  }
  void TearDown() override { registry_.reset(); }

  Known Any(Dice& dice) {
    absl::MutexLock lock(&mutex_);
    return known_.empty() ? Known() : known_[dice(known_.size())];
  }
  bool AreMany() {
    absl::MutexLock lock(&mutex_);
    return known_.size() > 50;
  }
  void Learn(Known session) {
    absl::MutexLock lock(&mutex_);
    known_.push_back(std::move(session));
  }
  void Forget(const std::string& name) {
    absl::MutexLock lock(&mutex_);
    std::erase_if(known_, [&](const Known& k) { return k.name == name; });
  }

  // Errors that come of what other threads do.
  void Expect(const absl::Status& status) {
    const std::string_view reason = ReasonOf(status);
    EXPECT_TRUE(status.ok() || reason == error_reason::kSessionNotFound ||
                reason == error_reason::kSessionLost ||
                reason == error_reason::kPositionGap ||
                reason == error_reason::kKeysFreed ||
                reason == error_reason::kCacheFull)
        << status;
  }

  struct Begun {
    int64_t family;
    int64_t append_length;
    int64_t query_length;
    KvView view;
  };

  int64_t* TokenAt(const KvView& view, int64_t position) const {
    return static_cast<int64_t*>(view.pages[position / kPageTokens]) +
           position % kPageTokens;
  }

  static absl::Status CopyPages(absl::Span<const PageMove> moves) {
    for (const PageMove& move : moves) {
      std::memcpy(move.to, move.from, move.bytes);
    }
    return absl::OkStatus();
  }

  // As a device does.
  void Compute(const std::vector<Begun>& steps, bool fails) {
    for (const Begun& step : steps) {
      for (const PageCopy& copy : step.view.copies) {
        std::copy_n(static_cast<const int64_t*>(copy.from), kPageTokens,
                    static_cast<int64_t*>(copy.to));
      }
    }
    for (const Begun& step : steps) {
      for (int64_t i = 0; i < step.append_length; ++i) {
        *TokenAt(step.view, step.view.key_length - 1 - i) =
            fails ? -1 : step.family;
      }
    }
    if (fails) return;
    for (const Begun& step : steps) {
      const int64_t first = step.view.key_length - step.query_length;
      int64_t key = 0;
      if (step.view.window_left != kUnlimitedWindow) {
        key = std::max<int64_t>(first - step.view.window_left, 0);
      }
      for (; step.query_length > 0 && key < step.view.key_length; ++key) {
        EXPECT_EQ(*TokenAt(step.view, key), step.family);
        ++tokens_read_;
      }
    }
  }

  void RunBatches(int thread) {
    Dice dice(thread);
    KvCache& cache = *registry_->cache(0);
    for (int i = 0; i < kBatchesPerThread || tokens_read_ < kTokensRead; ++i) {
      // Requests find their sessions before they have a batch.
      std::vector<Begun> begun(dice(6));
      std::vector<KvStep> steps;
      for (Begun& b : begun) {
        const Known session = Any(dice);
        auto use = registry_->Use(kOwner, session.name, dice(2));
        if (!use.ok()) continue;
        b.family = session.family;
        b.append_length = dice(4) == 0 ? 0 : dice(6);
        b.query_length = dice(3);
        steps.push_back({.layer = use->layer,
                         .append_length = b.append_length,
                         .query_length = b.query_length});
        std::swap(b, begun[steps.size() - 1]);
      }
      begun.resize(steps.size());
      const uint64_t number = next_number_++;
      const bool fails = dice(50) == 0;
      cache.BeginBatch(number);
      size_t count = 0;
      for (size_t s = 0; s < steps.size(); ++s) {
        const absl::Status status =
            cache.Begin(number, steps[s], begun[s].view);
        Expect(status);
        if (status.ok()) std::swap(begun[count++], begun[s]);
      }
      begun.resize(count);
      const bool breaks = fails && dice(4) == 0;
      const absl::Status moved =
          breaks ? cache.Move([](auto) { return absl::InternalError(""); })
                 : cache.Move(CopyPages);
      if (moved.ok()) Compute(begun, fails);
      if (!fails) cache.AllBegun(number);
      cache.EndBatch(number, !fails);
    }
  }

  void ChangeSessions(int thread) {
    Dice dice(thread);
    for (int i = 0; i < kChangesPerThread || !batches_done_; ++i) {
      const Known session = Any(dice);
      const int64_t choice = session.name.empty() ? 0
                             : AreMany()          ? 4 + dice(4)
                                                  : dice(8);
      if (choice < 2) {
        SessionConfig config = MakeConfig(2);
        if (dice(2) == 0) config.window_left = dice(10);
        auto info =
            registry_->Create(kOwner, config,
                              {.reserved_tokens = dice(3) == 0 ? dice(30) : 0,
                               .ttl = absl::Seconds(100)});
        Expect(info.status());
        if (info.ok()) Learn({info->name, ++last_family_});
      } else if (choice < 4) {
        SessionRegistry::ForkOptions options;
        if (dice(2) == 0) options.position = dice(12);
        auto info = registry_->Fork(kOwner, session.name, options);
        Expect(info.status());
        if (info.ok()) Learn({info->name, session.family});
      } else if (choice == 4) {
        Expect(Cut(session.name, dice(30)));
      } else if (choice == 5) {
        Expect(registry_->Get(kOwner, session.name).status());
      } else {
        Expect(registry_->Delete(kOwner, session.name));
        Forget(session.name);
      }
    }
  }

  // Until the others are done.
  void Watch() {
    while (!done_) {
      clock_.Advance(absl::Seconds(1));
      registry_->ReleaseExpired();
      std::string token;
      do {
        auto page = registry_->List(kOwner, 7, token);
        ASSERT_TRUE(page.ok()) << page.status();
        token = page->next_page_token;
      } while (!token.empty());
      const SessionUsage usage = Usage();
      EXPECT_LE(usage.page_count.used + usage.page_count.reserved, page_count_);
      EXPECT_GE(usage.page_count.free, 0);
    }
  }

  void UseAll();

  PuppetDevice device_;
  std::unique_ptr<MemoryPool> pool_;
  int64_t page_count_ = 0;
  absl::Mutex mutex_;
  std::vector<Known> known_ ABSL_GUARDED_BY(mutex_);
  std::atomic<uint64_t> next_number_{0};
  std::atomic<int64_t> last_family_{0};
  std::atomic<int64_t> tokens_read_{0};
  std::atomic<bool> batches_done_{false};
  std::atomic<bool> done_{false};
};

void SessionsConcurrencyTest::UseAll() {
  std::thread batches[] = {std::thread([this] { RunBatches(0); }),
                           std::thread([this] { RunBatches(1); })};
  std::thread changes[] = {std::thread([this] { ChangeSessions(2); }),
                           std::thread([this] { ChangeSessions(3); })};
  std::thread watcher([this] { Watch(); });
  for (std::thread& thread : batches) thread.join();
  batches_done_ = true;
  for (std::thread& thread : changes) thread.join();
  done_ = true;
  watcher.join();

  clock_.Advance(absl::Seconds(100));
  registry_->ReleaseExpired();
  const SessionUsage usage = Usage();
  EXPECT_EQ(usage.session_count, 0);
  EXPECT_EQ(usage.resident_tokens, 0);
  EXPECT_EQ(usage.page_count.used, 0);
  EXPECT_EQ(usage.page_count.reserved, 0);
  EXPECT_EQ(pool_->usage().in_use_bytes, 0u);
}

TEST_F(SessionsConcurrencyTest, NobodySeesOthersTokens) { UseAll(); }

TEST_F(SessionsConcurrencyTest, NorThroughTheMemoryOfTheHost) {
  MakeRegistry(64, 400);
  UseAll();
  EXPECT_GT(reader_.Value("attention_session_moved_pages_total",
                          {{"direction", "restore"}}),
            100);
}

// A change that waits for a batch to have begun comes before the next batch.
TEST_F(SessionsConcurrencyTest, ChangesWaitForABatchToHaveBegun) {
  const std::string name = Open();
  KvCache& cache = *registry_->cache(0);
  KvStep step = StepOf(name, 6);
  cache.BeginBatch(0);
  std::thread changer([&] { EXPECT_EQ(Cut(name, 2), absl::OkStatus()); });
  KvView view;
  EXPECT_EQ(cache.Begin(0, step, view), absl::OkStatus());
  EXPECT_EQ(cache.Begin(0, step, view), absl::OkStatus());
  EXPECT_EQ(view.key_length, 12);
  cache.AllBegun(0);
  changer.join();
  EXPECT_EQ(Length(name), 2);
  cache.BeginBatch(1);
  step.expected_position = 2;
  EXPECT_EQ(cache.Begin(1, step, view), absl::OkStatus());
  cache.AllBegun(1);
  cache.EndBatch(1, true);
  cache.EndBatch(0, true);
}

// Whichever thread comes first, batches begin by their numbers.
TEST_F(SessionsConcurrencyTest, BatchesBeginInOrder) {
  const std::string name = Open();
  KvCache& cache = *registry_->cache(0);
  const KvStep step = StepOf(name, 1);
  constexpr int kCount = 64;
  std::vector<int64_t> lengths(kCount);
  std::vector<std::thread> threads;
  for (int i = kCount - 1; i >= 0; --i) {
    threads.emplace_back([&, i] {
      KvView view;
      cache.BeginBatch(i);
      EXPECT_EQ(cache.Begin(i, step, view), absl::OkStatus());
      cache.AllBegun(i);
      lengths[i] = view.key_length;
      cache.EndBatch(i, true);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < kCount; ++i) EXPECT_EQ(lengths[i], i + 1);
}

}  // namespace
}  // namespace attention
