#include "server/regions/region_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/engine/error_reason.h"
#include "server/regions/system_region.h"
#include "tests/server/metrics/metric_reader.h"
#include "tests/server/regions/shared_memory_object.h"
#include "tests/support/fake_clock.h"

namespace attention::test {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr size_t kSize = 10000;
const std::string kOwner(16, 'a');
const std::string kOther(16, 'b');

class RegionRegistryTest : public ::testing::Test {
 protected:
  void Limit(RegionRegistry::Options options) {
    registry_ = std::make_unique<RegionRegistry>(options, &clock_, &metrics_);
  }

  absl::Status Register(const std::string& owner,
                        const RegionDescription& description) {
    return registry_->Register(owner, description).status();
  }

  RegionDescription Describe(const std::string& name = "r") const {
    return {.name = name,
            .object_name = object_.name(),
            .byte_size = static_cast<int64_t>(kSize),
            .lease = absl::Seconds(10)};
  }

  double Metric(const std::string& name) {
    return MetricReader(metrics_).Sum(name);
  }

  Metrics metrics_{Metrics::Options()};
  FakeClock clock_;
  SharedMemoryObject object_{kSize};
  std::unique_ptr<RegionRegistry> registry_ = std::make_unique<RegionRegistry>(
      RegionRegistry::Options(), &clock_, &metrics_);
};

TEST_F(RegionRegistryTest, ReadsAndWritesTheObject) {
  RegionDescription description = Describe();
  description.byte_offset = 100;
  description.byte_size = 200;
  ASSERT_TRUE(Register(kOwner, description).ok());
  object_.Write(100 + 50, "query");
  auto region = registry_->Use(kOwner, "r");
  ASSERT_TRUE(region.ok()) << region.status();
  auto range = RegionRange::Make(*region, 50, 5);
  ASSERT_TRUE(range.ok()) << range.status();
  std::string read(3, '\0');
  ASSERT_TRUE((*range)->Read(2, absl::MakeSpan(read)).ok());
  EXPECT_EQ(read, "ery");
  const std::string written = "value";
  ASSERT_TRUE((*range)->Write(written).ok());
  EXPECT_EQ(object_.Read(150, 5), "value");
  EXPECT_EQ(object_.size(), kSize);
}

TEST_F(RegionRegistryTest, RangesMustLieInsideTheObject) {
  for (auto [offset, size] :
       std::vector<std::pair<int64_t, int64_t>>{{0, kSize + 1},
                                                {1, kSize},
                                                {kSize, 1},
                                                {-1, 10},
                                                {0, 0},
                                                {0, -1},
                                                {kMax, 1},
                                                {1, kMax},
                                                {kMax, kMax},
                                                {10, kMax - 5}}) {
    RegionDescription description = Describe();
    description.byte_offset = offset;
    description.byte_size = size;
    const absl::Status status = Register(kOwner, description);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_EQ(ReasonOf(status), error_reason::kInvalidRequest);
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(offset)));
  }
}

TEST_F(RegionRegistryTest, ReferencesMustLieInsideTheRegion) {
  RegionDescription description = Describe();
  description.byte_offset = 100;
  description.byte_size = 200;
  ASSERT_TRUE(Register(kOwner, description).ok());
  auto region = registry_->Use(kOwner, "r");
  ASSERT_TRUE(region.ok());
  EXPECT_TRUE(RegionRange::Make(*region, 0, 200).ok());
  EXPECT_TRUE(RegionRange::Make(*region, 200, 0).ok());
  for (auto [offset, size] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 201},
                                                {1, 200},
                                                {201, 0},
                                                {-1, 2},
                                                {0, -1},
                                                {kMax, 1},
                                                {1, kMax},
                                                {kMax, kMax}}) {
    const absl::Status status =
        RegionRange::Make(*region, offset, size).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  }
}

TEST_F(RegionRegistryTest, OnlyObjectsOfTheServersKindAreOpened) {
  for (const std::string name :
       {"", "/", "/attention-", "attention-x", "/other", "/attention-a/b",
        "/attention-../x", "/../etc/passwd", "/attention-\n",
        "//attention-x"}) {
    RegionDescription description = Describe();
    description.object_name = name;
    const absl::Status status = Register(kOwner, description);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << name << " " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("object_name"));
  }
  EXPECT_FALSE(
      IsRegionObjectName(absl::StrCat("/attention-", std::string(201, 'a'))));
  EXPECT_TRUE(
      IsRegionObjectName(absl::StrCat("/attention-", std::string(200, 'a'))));
  EXPECT_FALSE(IsRegionObjectName(absl::string_view("/attention-a\0b", 14)));

  RegionDescription description = Describe();
  description.object_name = "/attention-test-that-does-not-exist";
  EXPECT_TRUE(absl::IsNotFound(Register(kOwner, description)));
}

TEST_F(RegionRegistryTest, LinksPipesAndFoldersAreRefused) {
  const std::string name = SharedMemoryObject::FreshName();
  const std::string path = absl::StrCat("/dev/shm", name);
  RegionDescription description = Describe();
  description.object_name = name;

  ASSERT_EQ(
      symlink(absl::StrCat("/dev/shm", object_.name()).c_str(), path.c_str()),
      0);
  EXPECT_TRUE(absl::IsPermissionDenied(Register(kOwner, description)));
  ASSERT_EQ(unlink(path.c_str()), 0);

  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);  // would make a plain open wait
  EXPECT_TRUE(absl::IsInvalidArgument(Register(kOwner, description)));
  ASSERT_EQ(unlink(path.c_str()), 0);

  ASSERT_EQ(mkdir(path.c_str(), 0700), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(Register(kOwner, description)));
  ASSERT_EQ(rmdir(path.c_str()), 0);
}

TEST_F(RegionRegistryTest, TokensNamesAndLeasesHaveBounds) {
  for (size_t size : {0, 15, 65}) {
    EXPECT_TRUE(
        absl::IsInvalidArgument(Register(std::string(size, 'a'), Describe())));
  }
  for (size_t size : {0, 257}) {
    EXPECT_TRUE(absl::IsInvalidArgument(
        Register(kOwner, Describe(std::string(size, 'n')))));
  }
  for (absl::Duration lease :
       {absl::ZeroDuration(), -absl::Seconds(1),
        absl::Hours(1) + absl::Nanoseconds(1), absl::InfiniteDuration()}) {
    RegionDescription description = Describe();
    description.lease = lease;
    const absl::Status status = Register(kOwner, description);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("lease_duration"));
  }
  EXPECT_EQ(Metric("attention_shared_memory_regions"), 0);
}

TEST_F(RegionRegistryTest, NamesBelongToTheirOwner) {
  ASSERT_TRUE(Register(kOwner, Describe()).ok());
  const absl::Status others = registry_->Use(kOther, "r").status();
  EXPECT_TRUE(absl::IsNotFound(others)) << others;
  // Nothing tells another owner's region from none.
  EXPECT_EQ(std::string(others.message()),
            std::string(RegionRegistry({}, &clock_, &metrics_)
                            .Use(kOther, "r")
                            .status()
                            .message()));
  EXPECT_TRUE(absl::IsNotFound(registry_->Unregister(kOther, "r")));
  EXPECT_TRUE(registry_->List(kOther).empty());
  EXPECT_TRUE(registry_->Use(kOwner, "r").ok());
  // The same name is free for others.
  EXPECT_TRUE(Register(kOther, Describe()).ok());
  EXPECT_TRUE(registry_->Unregister(kOther, "r").ok());
  EXPECT_TRUE(registry_->Use(kOwner, "r").ok());
}

TEST_F(RegionRegistryTest, LeaseEndsUnlessUsed) {
  ASSERT_TRUE(Register(kOwner, Describe()).ok());
  for (int i = 0; i < 3; ++i) {
    clock_.Advance(absl::Seconds(9));
    EXPECT_TRUE(registry_->Use(kOwner, "r").ok());
  }
  clock_.Advance(absl::Seconds(4));
  ASSERT_EQ(registry_->List(kOwner).size(), 1u);
  EXPECT_EQ(registry_->List(kOwner)[0].remaining, absl::Seconds(6));
  clock_.Advance(absl::Seconds(6));
  EXPECT_TRUE(absl::IsNotFound(registry_->Use(kOwner, "r").status()));
  EXPECT_TRUE(absl::IsNotFound(registry_->Unregister(kOwner, "r")));
  EXPECT_TRUE(registry_->List(kOwner).empty());
  EXPECT_EQ(Metric("attention_shared_memory_regions"), 1);
  registry_->ReleaseExpired();
  EXPECT_EQ(Metric("attention_shared_memory_regions"), 0);
  EXPECT_EQ(Metric("attention_shared_memory_region_bytes"), 0);
}

TEST_F(RegionRegistryTest, RegisteringAgainRenews) {
  ASSERT_TRUE(Register(kOwner, Describe()).ok());
  clock_.Advance(absl::Seconds(9));
  RegionDescription longer = Describe();
  longer.lease = absl::Seconds(30);
  ASSERT_TRUE(Register(kOwner, longer).ok());
  clock_.Advance(absl::Seconds(29));
  EXPECT_TRUE(registry_->Use(kOwner, "r").ok());
  EXPECT_EQ(Metric("attention_shared_memory_regions"), 1);

  RegionDescription other = Describe();
  other.byte_size = 10;
  EXPECT_TRUE(absl::IsAlreadyExists(Register(kOwner, other)));
  // An object that took the name of the registered one is another.
  object_.Unlink();
  const int fd = shm_open(object_.name().c_str(), O_RDWR | O_CREAT, 0600);
  ASSERT_EQ(ftruncate(fd, kSize), 0);
  close(fd);
  EXPECT_TRUE(absl::IsAlreadyExists(Register(kOwner, Describe())));
  // After the lease the name is free.
  clock_.Advance(absl::Seconds(30));
  EXPECT_TRUE(Register(kOwner, Describe()).ok());
}

TEST_F(RegionRegistryTest, HeldRegionsOutliveEverythingAndCount) {
  Limit({.max_region_count = 1});
  ASSERT_TRUE(Register(kOwner, Describe()).ok());
  auto region = registry_->Use(kOwner, "r");
  ASSERT_TRUE(region.ok());
  object_.Write(0, "still here");
  ASSERT_TRUE(registry_->Unregister(kOwner, "r").ok());
  object_.Unlink();
  std::string read(10, '\0');
  EXPECT_TRUE((*region)->Read(0, absl::MakeSpan(read)).ok());
  EXPECT_EQ(read, "still here");
  EXPECT_EQ(Metric("attention_shared_memory_region_bytes"), kSize);

  SharedMemoryObject second(kSize);
  RegionDescription description = Describe("second");
  description.object_name = second.name();
  EXPECT_TRUE(absl::IsResourceExhausted(Register(kOwner, description)));
  region->reset();
  EXPECT_EQ(Metric("attention_shared_memory_region_bytes"), 0);
  EXPECT_TRUE(Register(kOwner, description).ok());
}

TEST_F(RegionRegistryTest, CountAndBytesAreLimited) {
  Limit({.max_region_count = 2, .max_bytes = 2 * int64_t{kSize} - 1});
  ASSERT_TRUE(Register(kOwner, Describe("1")).ok());
  const absl::Status bytes = Register(kOther, Describe("2"));
  EXPECT_TRUE(absl::IsResourceExhausted(bytes));
  EXPECT_THAT(std::string(bytes.message()), HasSubstr("19999"));
  RegionDescription small = Describe("2");
  small.byte_size = kSize - 1;
  ASSERT_TRUE(Register(kOther, small).ok());
  small.name = "3";
  small.byte_size = 1;
  const absl::Status count = Register(kOwner, small);
  EXPECT_TRUE(absl::IsResourceExhausted(count));
  EXPECT_THAT(std::string(count.message()), HasSubstr("at most 2"));
  // Room comes back with the end of a lease.
  clock_.Advance(absl::Seconds(10));
  EXPECT_TRUE(Register(kOwner, small).ok());
}

TEST_F(RegionRegistryTest, ShrunkenObjectIsAnErrorNotASignal) {
  ASSERT_TRUE(Register(kOwner, Describe()).ok());
  auto region = registry_->Use(kOwner, "r");
  ASSERT_TRUE(region.ok());
  auto range = RegionRange::Make(*region, 0, kSize);
  ASSERT_TRUE(range.ok());
  object_.Resize(kSize / 2);

  std::string bytes(kSize, 'x');
  EXPECT_TRUE(
      absl::IsFailedPrecondition((*range)->Read(0, absl::MakeSpan(bytes))));
  EXPECT_TRUE(absl::IsFailedPrecondition((*range)->Write(bytes)));
  EXPECT_EQ(object_.size(), kSize / 2);  // not made larger again
  EXPECT_TRUE(
      absl::IsFailedPrecondition(RegionRange::Make(*region, 0, 1).status()));

  object_.Resize(kSize);
  EXPECT_TRUE((*range)->Write(bytes).ok());
}

TEST_F(RegionRegistryTest, ShrinkingDuringCopiesIsSafe) {
  ASSERT_TRUE(Register(kOwner, Describe()).ok());
  auto region = registry_->Use(kOwner, "r");
  ASSERT_TRUE(region.ok());
  std::atomic<bool> ended{false};
  std::thread owner([&] {
    while (!ended) {
      object_.Resize(0);
      object_.Resize(kSize);
    }
  });
  std::string bytes(kSize, '\0');
  for (int i = 0; i < 20000; ++i) {
    const absl::Status status = i % 2 == 0
                                    ? (*region)->Read(0, absl::MakeSpan(bytes))
                                    : (*region)->Write(0, bytes);
    EXPECT_TRUE(status.ok() || absl::IsFailedPrecondition(status)) << status;
  }
  ended = true;
  owner.join();
  EXPECT_LE(object_.size(), kSize);
}

TEST_F(RegionRegistryTest, ManyCallersAtOnce) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const std::string owner(16, static_cast<char>('a' + t));
      for (int i = 0; i < 300; ++i) {
        EXPECT_TRUE(Register(owner, Describe()).ok());
        auto region = registry_->Use(owner, "r");
        ASSERT_TRUE(region.ok());
        EXPECT_TRUE(registry_->Unregister(owner, "r").ok());
        std::string bytes(8, '\0');
        EXPECT_TRUE((*region)->Read(0, absl::MakeSpan(bytes)).ok());
        registry_->ReleaseExpired();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Metric("attention_shared_memory_regions"), 0);
}

}  // namespace
}  // namespace attention::test
