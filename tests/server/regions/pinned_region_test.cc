// Shared memory that is pinned for a (fake) GPU.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/regions/region_registry.h"
#include "tests/server/engine/fake_cuda_runtime.h"
#include "tests/server/metrics/metric_reader.h"
#include "tests/server/regions/shared_memory_object.h"
#include "tests/support/fake_clock.h"

namespace attention::test {
namespace {

using Call = FakeCudaRuntime::Call;

constexpr size_t kSize = 100000;  // not a multiple of a page
const std::string kOwner(16, 'a');

class PinnedRegionTest : public ::testing::Test {
 protected:
  RegionDescription Describe(int64_t offset, int64_t size) const {
    return {.name = "r",
            .object_name = object_.name(),
            .byte_offset = offset,
            .byte_size = size,
            .lease = absl::Seconds(10)};
  }
  std::shared_ptr<const Region> Register(int64_t offset = 0,
                                         int64_t size = kSize) {
    auto region = registry_.Register(kOwner, Describe(offset, size));
    EXPECT_TRUE(region.ok()) << region.status();
    return region.ok() ? *region : nullptr;
  }
  size_t pinned() const { return cuda_.live_allocations(); }

  FakeCudaRuntime cuda_;
  Metrics metrics_{Metrics::Options()};
  FakeClock clock_;
  SharedMemoryObject object_{kSize};
  RegionRegistry registry_{{}, &clock_, &metrics_, &cuda_};
};

TEST_F(PinnedRegionTest, GpusFindTheBytesOfTheRange) {
  for (int64_t offset : {0, 1, 4095, 4096, 4097, 99990}) {
    SCOPED_TRACE(offset);
    object_.Write(offset + 3, "tensor");
    auto range = RegionRange::Make(Register(offset, kSize - offset), 3, 6);
    ASSERT_TRUE(range.ok()) << range.status();
    const DirectMemory direct = (*range)->direct_memory();
    ASSERT_TRUE(direct.is_pinned());
    EXPECT_EQ(std::string(static_cast<char*>(direct.address), 6), "tensor");
    // Both ways are the same memory.
    static_cast<char*>(direct.address)[0] = 'T';
    EXPECT_EQ(object_.Read(offset + 3, 6), "Tensor");
    EXPECT_TRUE(registry_.Unregister(kOwner, "r").ok());
  }
}

TEST_F(PinnedRegionTest, IsLetGoByTheLastUser) {
  std::shared_ptr<const Region> held = Register();
  EXPECT_EQ(pinned(), 1u);
  EXPECT_TRUE(registry_.Unregister(kOwner, "r").ok());
  EXPECT_EQ(pinned(), 1u);
  held.reset();
  EXPECT_EQ(pinned(), 0u);

  Register();
  clock_.Advance(absl::Seconds(10));
  registry_.ReleaseExpired();
  EXPECT_EQ(pinned(), 0u);
}

TEST_F(PinnedRegionTest, RegisteringAgainDoesNotPinAgain) {
  const auto first = Register();
  EXPECT_EQ(Register(), first);
  EXPECT_EQ(cuda_.calls(Call::kPinMemory), 1);
  EXPECT_TRUE(absl::IsAlreadyExists(
      registry_.Register(kOwner, Describe(1, 10)).status()));
  EXPECT_EQ(pinned(), 1u);
}

TEST_F(PinnedRegionTest, IsOnlyPinnedWithinTheLimits) {
  RegionRegistry small({.max_bytes = kSize - 1}, &clock_, &metrics_, &cuda_);
  EXPECT_TRUE(absl::IsResourceExhausted(
      small.Register(kOwner, Describe(0, kSize)).status()));
  EXPECT_EQ(cuda_.calls(Call::kPinMemory), 0);
}

TEST_F(PinnedRegionTest, WithoutPinningItIsCopied) {
  cuda_.FailCall(Call::kPinMemory, 1, /*sticky=*/false);
  const auto region = Register();
  ASSERT_NE(region, nullptr);
  EXPECT_EQ(pinned(), 0u);
  const auto range = RegionRange::Make(region, 0, 6);
  ASSERT_TRUE(range.ok());
  EXPECT_EQ((*range)->direct_memory().kind, DirectMemory::Kind::kNone);
  object_.Write(0, "tensor");
  std::string read(6, '\0');
  EXPECT_TRUE((*range)->Read(0, absl::MakeSpan(read)).ok());
  EXPECT_EQ(read, "tensor");
  ASSERT_EQ(registry_.List(kOwner).size(), 1u);
  EXPECT_FALSE(registry_.List(kOwner)[0].direct.is_pinned());
}

TEST_F(PinnedRegionTest, AShrunkenObjectIsNoticedBeforeItIsUsed) {
  const auto range = RegionRange::Make(Register(), 0, 10);
  ASSERT_TRUE(range.ok());
  EXPECT_TRUE((*range)->CheckDirect().ok());
  object_.Resize(kSize - 1);
  EXPECT_TRUE(absl::IsFailedPrecondition((*range)->CheckDirect()));
}

TEST_F(PinnedRegionTest, ManyCallersRegisterTheSameAtOnce) {
  for (int round = 0; round < 50; ++round) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back(
          [this] { EXPECT_TRUE(Register()->direct_memory().is_pinned()); });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(pinned(), 1u);
    EXPECT_EQ(MetricReader(metrics_).Sum("attention_shared_memory_regions"), 1);
    EXPECT_TRUE(registry_.Unregister(kOwner, "r").ok());
    EXPECT_EQ(pinned(), 0u);
  }
}

}  // namespace
}  // namespace attention::test
