#include "server/memory/memory_pool.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace attention {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Counts what is live and fails on demand. Memory comes from the host.
class CountingAllocator : public Allocator {
 public:
  struct Counts {
    std::atomic<size_t> live_bytes{0};
    std::atomic<size_t> most_live_bytes{0};
    std::atomic<int> allocations{0};
    std::atomic<int> frees{0};
    std::atomic<int> failures_to_come{0};
    std::atomic<size_t> limit_bytes{std::numeric_limits<size_t>::max()};
  };

  explicit CountingAllocator(Counts* counts) : counts_(*counts) {}

  absl::StatusOr<void*> Allocate(size_t bytes) override {
    if (counts_.failures_to_come.load() > 0) {
      --counts_.failures_to_come;
      return absl::ResourceExhaustedError("injected");
    }
    const size_t live = counts_.live_bytes += bytes;
    if (live > counts_.limit_bytes) {
      counts_.live_bytes -= bytes;
      return absl::ResourceExhaustedError("physical memory");
    }
    size_t most = counts_.most_live_bytes;
    while (live > most &&
           !counts_.most_live_bytes.compare_exchange_weak(most, live)) {
    }
    ++counts_.allocations;
    return host_->Allocate(bytes);
  }

  void Free(void* data, size_t bytes) override {
    ++counts_.frees;
    host_->Free(data, bytes);
    counts_.live_bytes -= bytes;
  }

  void SetUsable(void* data, size_t usable_bytes, size_t bytes) override {
    host_->SetUsable(data, usable_bytes, bytes);
  }

 private:
  Counts& counts_;
  std::unique_ptr<Allocator> host_ = MakeHostAllocator();
};

class MemoryPoolTest : public testing::Test {
 protected:
  MemoryPool MakePool(
      size_t budget_bytes,
      size_t max_cached_bytes = std::numeric_limits<size_t>::max()) {
    return MemoryPool({.name = "host",
                       .budget_bytes = budget_bytes,
                       .max_cached_bytes = max_cached_bytes},
                      std::make_unique<CountingAllocator>(&counts_));
  }

  CountingAllocator::Counts counts_;
};

TEST_F(MemoryPoolTest, BlocksAreAlignedWritableAndDisjoint) {
  MemoryPool pool = MakePool(1 << 20);
  std::vector<Block> blocks;
  for (size_t bytes : {1, 255, 4096, 4097, 100000}) {
    absl::StatusOr<Block> block = pool.Allocate(bytes);
    ASSERT_TRUE(block.ok()) << block.status();
    EXPECT_EQ(block->size(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block->data()) % 256, 0u);
    std::memset(block->data(), static_cast<int>(blocks.size() + 1), bytes);
    blocks.push_back(*std::move(block));
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto* bytes = static_cast<const unsigned char*>(blocks[i].data());
    EXPECT_TRUE(std::all_of(bytes, bytes + blocks[i].size(),
                            [&](unsigned char c) { return c == i + 1; }));
  }
}

TEST_F(MemoryPoolTest, ZeroBytesGiveAnEmptyBlock) {
  MemoryPool pool = MakePool(0);
  absl::StatusOr<Block> block = pool.Allocate(0);
  ASSERT_TRUE(block.ok()) << block.status();
  EXPECT_EQ(block->data(), nullptr);
  EXPECT_EQ(block->size(), 0u);
  EXPECT_EQ(counts_.allocations, 0);
}

TEST_F(MemoryPoolTest, ReleasedBlockServesItsClassAgain) {
  MemoryPool pool = MakePool(1 << 20);
  Block block = *pool.Allocate(10000);
  void* const data = block.data();
  block.Reset();
  EXPECT_EQ(block.data(), nullptr);
  EXPECT_GE(pool.usage().cached_bytes, 10000u);
  EXPECT_EQ(pool.usage().in_use_bytes, 0u);

  Block again = *pool.Allocate(9900);
  EXPECT_EQ(again.data(), data);
  EXPECT_EQ(again.size(), 9900u);
  EXPECT_EQ(pool.usage().cached_bytes, 0u);
  EXPECT_EQ(counts_.allocations, 1);
}

TEST_F(MemoryPoolTest, PartsKeepTheWholeUntilTheLastIsGone) {
  MemoryPool pool = MakePool(1 << 20);
  auto whole = std::make_shared<const Block>(*pool.Allocate(10000));
  char* const data = static_cast<char*>(whole->data());
  Block first = Block::Part(whole, 0, 4000);
  Block second = Block::Part(whole, 4096, 5904);
  EXPECT_EQ(Block::Part(whole, 10000, 0).data(), nullptr);
  whole.reset();
  EXPECT_EQ(first.data(), data);
  EXPECT_EQ(second.data(), data + 4096);
  EXPECT_EQ(second.size(), 5904u);
  EXPECT_TRUE(first.SharesMemoryWith(second));

  Block other = *pool.Allocate(10000);
  EXPECT_FALSE(first.SharesMemoryWith(other));
  EXPECT_FALSE(other.SharesMemoryWith(other)) << "no part";
  other.Reset();

  Block moved = std::move(first);
  EXPECT_EQ(first.data(), nullptr);
  second.Reset();
  EXPECT_EQ(second.size(), 0u);
  EXPECT_GE(pool.usage().in_use_bytes, 10000u);
  std::memset(moved.data(), 1, moved.size());
  moved.Reset();
  EXPECT_EQ(pool.usage().in_use_bytes, 0u);
}

TEST_F(MemoryPoolTest, RoundingWastesLessThanAnEighth) {
  MemoryPool pool = MakePool(size_t{1} << 40);
  std::mt19937_64 random(7);
  std::vector<size_t> sizes = {4097, 8191, 8192, 8193, 65535, 65536, 65537};
  for (int i = 0; i < 500; ++i) {
    sizes.push_back(4096 + random() % (size_t{1} << (13 + i % 16)));
  }
  for (size_t bytes : sizes) {
    absl::StatusOr<Block> block = pool.Allocate(bytes);
    ASSERT_TRUE(block.ok()) << block.status();
    const size_t used = pool.usage().in_use_bytes;
    EXPECT_GE(used, bytes);
    EXPECT_LT(used - bytes, bytes / 8 + 1) << bytes;
    block->Reset();
    pool.Trim();
  }
}

TEST_F(MemoryPoolTest, MoveHandsOverOwnership) {
  MemoryPool pool = MakePool(1 << 20);
  Block first = *pool.Allocate(5000);
  void* const data = first.data();
  Block second = std::move(first);
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(first.data(), nullptr);  // NOLINT(bugprone-use-after-move)
  Block third = *pool.Allocate(5000);
  third = std::move(second);  // releases what it held
  EXPECT_EQ(third.data(), data);
  EXPECT_GT(pool.usage().cached_bytes, 0u);
  Block& alias = third;
  third = std::move(alias);
  EXPECT_EQ(third.data(), data);
  EXPECT_EQ(third.size(), 5000u);
}

TEST_F(MemoryPoolTest, OverBudgetNamesPoolSizeAndBudget) {
  MemoryPool pool = MakePool(65536);
  Block held = *pool.Allocate(32768);
  const absl::Status status = pool.Allocate(40000).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("\"host\""), HasSubstr("40000"),
                    HasSubstr("65536"), HasSubstr("32768")));
  EXPECT_EQ(pool.usage().in_use_bytes, 32768u);
  held.Reset();
  EXPECT_TRUE(pool.Allocate(40000).ok());
}

TEST_F(MemoryPoolTest, HugeSizesAreRefusedWithoutOverflow) {
  MemoryPool pool = MakePool(std::numeric_limits<size_t>::max());
  for (size_t bytes :
       {std::numeric_limits<size_t>::max(),
        std::numeric_limits<size_t>::max() - 4095, (size_t{1} << 60) + 1}) {
    EXPECT_EQ(pool.Allocate(bytes).status().code(),
              absl::StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(counts_.allocations, 0);
  EXPECT_EQ(pool.usage().in_use_bytes, 0u);
}

TEST_F(MemoryPoolTest, CacheGivesWayToOtherSizes) {
  MemoryPool pool = MakePool(100 * 4096);
  {
    std::vector<Block> blocks;
    for (int i = 0; i < 90; ++i) blocks.push_back(*pool.Allocate(4096));
  }
  EXPECT_EQ(pool.usage().cached_bytes, 90u * 4096);
  Block large = *pool.Allocate(32 * 4096);
  const MemoryPool::Usage usage = pool.usage();
  EXPECT_EQ(usage.in_use_bytes, 32u * 4096);
  EXPECT_EQ(usage.cached_bytes, 68u * 4096) << "no more is trimmed than needed";
  EXPECT_EQ(usage.budget_bytes, 100u * 4096);
  EXPECT_LE(counts_.most_live_bytes, 100u * 4096);
}

TEST_F(MemoryPoolTest, LargestCachedBlocksGoFirst) {
  MemoryPool pool = MakePool(64 * 4096);
  {
    Block small = *pool.Allocate(4096);
    Block large = *pool.Allocate(32 * 4096);
  }
  Block other = *pool.Allocate(48 * 4096);
  EXPECT_EQ(counts_.frees, 1);
  EXPECT_EQ(pool.usage().cached_bytes, 4096u);
}

TEST_F(MemoryPoolTest, TrimGivesEverythingBack) {
  MemoryPool pool = MakePool(1 << 20);
  Block held = *pool.Allocate(8192);
  pool.Allocate(4096)->Reset();
  pool.Allocate(70000)->Reset();
  pool.Trim();
  EXPECT_EQ(pool.usage().cached_bytes, 0u);
  EXPECT_EQ(pool.usage().in_use_bytes, 8192u);
  EXPECT_EQ(counts_.live_bytes, 8192u);
}

TEST_F(MemoryPoolTest, CachedBytesAreBounded) {
  MemoryPool pool = MakePool(1 << 20, /*max_cached_bytes=*/3 * 4096);
  {
    std::vector<Block> blocks;
    for (int i = 0; i < 5; ++i) blocks.push_back(*pool.Allocate(4096));
    blocks.push_back(*pool.Allocate(65536));
  }
  EXPECT_EQ(pool.usage().cached_bytes, 3u * 4096);
  EXPECT_EQ(pool.usage().in_use_bytes, 0u);
  EXPECT_EQ(counts_.live_bytes, 3u * 4096);
}

TEST_F(MemoryPoolTest, AllocatorFailureIsRetriedWithAnEmptyCache) {
  MemoryPool pool = MakePool(1 << 20);
  counts_.limit_bytes = 65536;  // less than the budget: others use the memory
  pool.Allocate(40960)->Reset();
  EXPECT_EQ(pool.usage().cached_bytes, 40960u);
  absl::StatusOr<Block> block = pool.Allocate(49152);
  ASSERT_TRUE(block.ok()) << block.status();
  EXPECT_EQ(pool.usage().cached_bytes, 0u);
}

TEST_F(MemoryPoolTest, AllocatorFailureIsReportedAndLeavesNoTrace) {
  MemoryPool pool = MakePool(1 << 20);
  counts_.failures_to_come = 2;
  const absl::Status status = pool.Allocate(50000).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr("\"host\""), HasSubstr("50000"), HasSubstr("injected")));
  EXPECT_EQ(pool.usage().in_use_bytes, 0u);
  EXPECT_TRUE(pool.Allocate(1 << 19).ok()) << "the budget was given back";
}

TEST_F(MemoryPoolTest, DestructorFreesTheCache) {
  {
    MemoryPool pool = MakePool(1 << 20);
    pool.Allocate(4096)->Reset();
    pool.Allocate(9000)->Reset();
    EXPECT_GT(counts_.live_bytes, 0u);
  }
  EXPECT_EQ(counts_.live_bytes, 0u);
  EXPECT_EQ(counts_.allocations, counts_.frees);
}

TEST_F(MemoryPoolTest, StormKeepsTheBudgetAndTheContents) {
  // A thread alone goes over it, for the case that they run one after another.
  constexpr size_t kBudget = 512 << 10;
  MemoryPool pool = MakePool(kBudget, /*max_cached_bytes=*/kBudget / 2);
  constexpr int kThreads = 8;
  std::atomic<int> corrupted{0};
  std::atomic<int> served{0};
  std::atomic<int> refused{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      std::vector<std::pair<Block, uint32_t>> held;
      for (int i = 0; i < 2000; ++i) {
        if (held.size() > 6 || (!held.empty() && random() % 2 == 0)) {
          const size_t index = random() % held.size();
          uint32_t first, last;
          const auto* data = static_cast<const char*>(held[index].first.data());
          std::memcpy(&first, data, 4);
          std::memcpy(&last, data + held[index].first.size() - 4, 4);
          if (first != held[index].second || last != first) ++corrupted;
          std::swap(held[index], held.back());
          held.pop_back();
        } else if (random() % 50 == 0) {
          pool.Trim();
        } else {
          const size_t bytes = 8 + random() % (200 << 10);
          absl::StatusOr<Block> block = pool.Allocate(bytes);
          if (!block.ok()) {
            ++refused;
            continue;
          }
          ++served;
          const uint32_t mark = random();
          auto* data = static_cast<char*>(block->data());
          std::memcpy(data, &mark, 4);
          std::memcpy(data + bytes - 4, &mark, 4);
          held.emplace_back(*std::move(block), mark);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(corrupted, 0);
  EXPECT_GT(served, 0);
  EXPECT_GT(refused, 0) << "the budget was never put under pressure";
  EXPECT_LE(counts_.most_live_bytes, kBudget);
  EXPECT_EQ(pool.usage().in_use_bytes, 0u);
  EXPECT_LE(pool.usage().cached_bytes, kBudget / 2);
  EXPECT_EQ(pool.usage().cached_bytes, counts_.live_bytes);
}

TEST(HostAllocatorTest, FreedMemoryGoesBackToTheSystem) {
  std::unique_ptr<Allocator> allocator = MakeHostAllocator();
  const size_t bytes = 8 << 20;
  absl::StatusOr<void*> data = allocator->Allocate(bytes);
  ASSERT_TRUE(data.ok()) << data.status();
  std::memset(*data, 1, bytes);
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> residency(bytes / page);
  EXPECT_EQ(mincore(*data, bytes, residency.data()), 0);
  allocator->Free(*data, bytes);
  EXPECT_EQ(mincore(*data, bytes, residency.data()), -1) << "still mapped";
}

TEST(HostAllocatorTest, ImpossibleSizeIsResourceExhausted) {
  std::unique_ptr<Allocator> allocator = MakeHostAllocator();
  EXPECT_EQ(allocator->Allocate(size_t{1} << 58).status().code(),
            absl::StatusCode::kResourceExhausted);
}

#if defined(ABSL_HAVE_ADDRESS_SANITIZER) && GTEST_HAS_DEATH_TEST
TEST(HostAllocatorDeathTest, OverrunAndUseAfterReleaseAreFound) {
  MemoryPool pool({.name = "host", .budget_bytes = 1 << 20},
                  MakeHostAllocator());
  Block block = *pool.Allocate(5000);
  auto* data = static_cast<volatile char*>(block.data());
  EXPECT_DEATH(data[5000] = 1, "use-after-poison");
  block.Reset();
  EXPECT_DEATH(data[0] = 1, "use-after-poison");
}
#endif

}  // namespace
}  // namespace attention
