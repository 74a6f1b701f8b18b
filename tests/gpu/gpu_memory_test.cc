// Memory that callers share, on a real GPU: what the fake one cannot tell,
// above all what CUDA's driver makes of callers who mean harm.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>

#include "server/engine/cuda/cuda_runtime.h"
#include "server/regions/region_registry.h"
#include "tests/gpu/memory_owner.h"
#include "tests/server/regions/shared_memory_object.h"
#include "tests/support/fake_clock.h"

namespace attention::test {
namespace {

constexpr size_t kBytes = size_t{64} << 20;
constexpr unsigned char kFill = 0x5a;
const std::string kToken(16, 't');

class GpuMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::StatusOr<CudaRuntime*> runtime = SystemCudaRuntime();
    if (!runtime.ok() || !(*runtime)->DeviceCount().ok()) {
      GTEST_SKIP() << "no GPU";
    }
    cuda_ = *runtime;
    ASSERT_TRUE(cuda_->SetDevice(0).ok());
    stream_ = *cuda_->CreateStream();
    pinned_ = *cuda_->AllocatePinned(kBytes);
    registry_ = std::make_unique<RegionRegistry>(
        RegionRegistry::Options{.allow_cuda = true}, &clock_, &metrics_, cuda_);
  }

  void TearDown() override {
    registry_.reset();
    if (cuda_ == nullptr) return;
    cuda_->FreePinned(pinned_);
    cuda_->DestroyStream(stream_);
  }

  static RegionDescription Describe(const MemoryOwner& owner,
                                    size_t bytes = kBytes) {
    return {.name = "r",
            .cuda = CudaMemory{.handle = owner.handle(),
                               .device_uuid = owner.uuid()},
            .byte_size = static_cast<int64_t>(bytes),
            .lease = absl::Minutes(1)};
  }

  std::shared_ptr<const Region> Register(const RegionDescription& description) {
    auto region = registry_->Register(kToken, description);
    EXPECT_TRUE(region.ok()) << region.status();
    return region.ok() ? *region : nullptr;
  }

  // All bytes of a region on the GPU, which must be readable.
  std::string Fetch(const Region& region) {
    const size_t bytes = static_cast<size_t>(region.size_bytes());
    absl::Status status = cuda_->CopyToHost(
        pinned_, region.direct_memory().address, bytes, stream_);
    status.Update(cuda_->Synchronize(stream_));
    EXPECT_TRUE(status.ok()) << status;
    return std::string(static_cast<char*>(pinned_), bytes);
  }

  void ExpectHealthy() {
    EXPECT_TRUE(cuda_->CheckDevice(stream_).ok());
    const auto owner = MemoryOwner::Start(kBytes, kFill);
    const auto region = Register(Describe(*owner));
    ASSERT_NE(region, nullptr);
    EXPECT_EQ(Fetch(*region), std::string(kBytes, kFill));
    EXPECT_TRUE(registry_->Unregister(kToken, "r").ok());
  }

  CudaRuntime* cuda_ = nullptr;
  CudaRuntime::Stream stream_ = nullptr;
  void* pinned_ = nullptr;
  Metrics metrics_{Metrics::Options()};
  FakeClock clock_;
  std::unique_ptr<RegionRegistry> registry_;
};

TEST_F(GpuMemoryTest, BothProcessesSeeTheSameMemory) {
  const auto owner = MemoryOwner::Start(kBytes, kFill);
  const auto region = Register(Describe(*owner));
  ASSERT_NE(region, nullptr);
  EXPECT_EQ(Fetch(*region), std::string(kBytes, kFill));
  EXPECT_TRUE(region->Write(0, "x").ok());
  EXPECT_EQ(owner->FirstByte(), 'x');
}

TEST_F(GpuMemoryTest, SmallAllocationsHaveTheirOwnAddress) {
  const auto owner = MemoryOwner::Start(1000, kFill);
  const auto region = Register(Describe(*owner, 1000));
  ASSERT_NE(region, nullptr);
  EXPECT_EQ(Fetch(*region), std::string(1000, kFill));
}

TEST_F(GpuMemoryTest, RangesMustLieInsideTheAllocation) {
  const auto owner = MemoryOwner::Start(kBytes, kFill);
  // A multiple of what CUDA may round allocations up to.
  for (const auto& [offset, size] :
       {std::pair(size_t{0}, kBytes + 1), std::pair(kBytes, size_t{1}),
        std::pair(kBytes / 2, kBytes)}) {
    RegionDescription description = Describe(*owner, size);
    description.byte_offset = static_cast<int64_t>(offset);
    const absl::Status status =
        registry_->Register(kToken, description).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  }
  ExpectHealthy();
}

TEST_F(GpuMemoryTest, SeveralRegionsShareAHandle) {
  const auto owner = MemoryOwner::Start(kBytes, kFill);
  for (int round = 0; round < 3; ++round) {
    RegionDescription half = Describe(*owner, kBytes / 2);
    const auto first = Register(half);
    half.name = "second half";
    half.byte_offset = kBytes / 2;
    const auto second = Register(half);
    ASSERT_NE(second, nullptr);
    EXPECT_TRUE(registry_->Unregister(kToken, "r").ok());
    EXPECT_EQ(Fetch(*second), std::string(kBytes / 2, kFill));
    EXPECT_TRUE(registry_->Unregister(kToken, "second half").ok());
  }
}

TEST_F(GpuMemoryTest, MadeUpHandlesAreRefused) {
  const auto owner = MemoryOwner::Start(kBytes, kFill);
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int i = 0; i < 100; ++i) {
    RegionDescription description = Describe(*owner);
    for (char& byte : description.cuda->handle) {
      byte = i == 0 ? '\0' : static_cast<char>(random());
    }
    EXPECT_FALSE(registry_->Register(kToken, description).ok()) << i;
  }
  ExpectHealthy();
}

// Some of these may stand for other memory of the owner, which is its concern.
TEST_F(GpuMemoryTest, ChangedHandlesDoNoHarm) {
  const auto owner = MemoryOwner::Start(kBytes, kFill);
  for (size_t byte = 0; byte < 64; ++byte) {
    for (int bit : {0, 3, 7}) {
      RegionDescription description = Describe(*owner);
      description.cuda->handle[byte] ^= static_cast<char>(1 << bit);
      if (registry_->Register(kToken, description).ok()) {
        EXPECT_TRUE(registry_->Unregister(kToken, "r").ok());
      }
    }
  }
  ExpectHealthy();
}

TEST_F(GpuMemoryTest, AnOwnerThatFreesOrEndsHarmsItselfOnly) {
  for (bool ends : {false, true}) {
    const auto owner = MemoryOwner::Start(kBytes, kFill);
    const auto region = Register(Describe(*owner));
    ASSERT_NE(region, nullptr);
    if (ends) {
      owner->Kill();
    } else {
      owner->Free();
    }
    Fetch(*region);  // whatever is there now
    EXPECT_TRUE(registry_->Unregister(kToken, "r").ok());
  }
  ExpectHealthy();
}

TEST_F(GpuMemoryTest, PinnedSharedMemoryIsCopiedByTheGpu) {
  SharedMemoryObject object(kBytes);
  object.Write(12345, "tensor");
  const auto region = Register({.name = "r",
                                .object_name = object.name(),
                                .byte_offset = 12345,
                                .byte_size = kBytes - 12345,
                                .lease = absl::Minutes(1)});
  ASSERT_NE(region, nullptr);
  const DirectMemory direct = region->direct_memory();
  ASSERT_TRUE(direct.is_pinned());
  const absl::StatusOr<void*> device = cuda_->AllocateDevice(kBytes);
  ASSERT_TRUE(device.ok());
  const size_t bytes = kBytes - 12345;
  const auto there_and_back = [&] {
    absl::Status status =
        cuda_->CopyToDevice(*device, direct.address, bytes, stream_);
    status.Update(cuda_->CopyToHost(pinned_, *device, bytes, stream_));
    status.Update(cuda_->CopyToHost(direct.address, *device, bytes, stream_));
    status.Update(cuda_->Synchronize(stream_));
    EXPECT_TRUE(status.ok()) << status;
  };
  there_and_back();
  EXPECT_EQ(std::memcmp(pinned_, "tensor", 6), 0);
  // What the object loses stays pinned.
  object.Resize(0);
  there_and_back();
  EXPECT_EQ(std::memcmp(pinned_, "tensor", 6), 0);
  EXPECT_TRUE(absl::IsFailedPrecondition(region->CheckSize()));
  cuda_->FreeDevice(*device);
  EXPECT_TRUE(registry_->Unregister(kToken, "r").ok());
  ExpectHealthy();
}

}  // namespace
}  // namespace attention::test

int main(int argc, char** argv) {
  if (attention::test::RunAsMemoryOwner(argc, argv)) return 0;
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
