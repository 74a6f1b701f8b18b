// Memory of (fake) GPUs that callers share, and callers who mean harm.
#include "server/regions/cuda_region.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/engine/error_reason.h"
#include "server/regions/region_registry.h"
#include "tests/server/engine/fake_cuda_runtime.h"
#include "tests/server/metrics/metric_reader.h"
#include "tests/server/regions/shared_memory_object.h"
#include "tests/support/fake_clock.h"

namespace attention::test {
namespace {

using ::testing::HasSubstr;
using Call = FakeCudaRuntime::Call;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr size_t kSize = 10000;
const std::string kOwner(16, 'a');

class CudaRegionTest : public ::testing::Test {
 protected:
  RegionDescription Describe(const std::string& name = "r") const {
    return {.name = name,
            .cuda = CudaMemory{.handle = handle_,
                               .device_uuid = FakeCudaRuntime::Uuid(1)},
            .byte_size = static_cast<int64_t>(kSize),
            .lease = absl::Seconds(10)};
  }
  absl::Status Register(const RegionDescription& description) {
    return registry_.Register(kOwner, description).status();
  }
  void ExpectRefused(const RegionDescription& description,
                     absl::StatusCode code, const std::string& text) {
    const absl::Status status = Register(description);
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
    EXPECT_EQ(cuda_.live_allocations(), 0u) << "left open";
  }

  FakeCudaRuntime cuda_{3};
  const std::string handle_ = cuda_.Share(/*device=*/1, kSize);
  Metrics metrics_{Metrics::Options()};
  FakeClock clock_;
  RegionRegistry registry_{{.allow_cuda = true}, &clock_, &metrics_, &cuda_};
};

TEST_F(CudaRegionTest, KernelsFindTheBytesOfTheRange) {
  RegionDescription description = Describe();
  description.byte_offset = 100;
  description.byte_size = 200;
  const auto region = registry_.Register(kOwner, description);
  ASSERT_TRUE(region.ok()) << region.status();
  const auto range = RegionRange::Make(*region, 50, 6);
  ASSERT_TRUE(range.ok()) << range.status();
  const DirectMemory direct = (*range)->direct_memory();
  EXPECT_TRUE(direct.is_on_device());
  EXPECT_EQ(direct.device, 1);
  EXPECT_EQ(direct.address, cuda_.shared_data(handle_) + 150);
  EXPECT_TRUE((*range)->CheckDirect().ok());
  // What kernels cannot put in place comes from the host.
  EXPECT_TRUE((*range)->Write("result").ok());
  EXPECT_EQ(std::string(cuda_.shared_data(handle_) + 150, 6), "result");
  // Processors cannot read it.
  std::string bytes(6, '\0');
  EXPECT_TRUE(absl::IsInternal((*range)->Read(0, absl::MakeSpan(bytes))));
}

TEST_F(CudaRegionTest, HandlesAndUuidsHaveTheirSizes) {
  for (size_t size : {0, 1, 63, 65, 1000}) {
    RegionDescription description = Describe();
    description.cuda->handle.resize(size);
    ExpectRefused(description, absl::StatusCode::kInvalidArgument,
                  absl::StrCat("memory_handle must have 64 bytes; got ", size));
  }
  for (size_t size : {0, 15, 17}) {
    RegionDescription description = Describe();
    description.cuda->device_uuid.resize(size);
    ExpectRefused(description, absl::StatusCode::kInvalidArgument,
                  absl::StrCat("device_uuid must have 16 bytes; got ", size));
  }
  EXPECT_EQ(cuda_.calls(Call::kOpenShared), 0);
}

TEST_F(CudaRegionTest, UnknownHandlesAndGpusAreRefused) {
  RegionDescription description = Describe();
  description.cuda->handle = std::string(64, '\0');
  ExpectRefused(description, absl::StatusCode::kInvalidArgument,
                "no such handle");
  description = Describe();
  description.cuda->device_uuid = "0123456789abcdef";
  ExpectRefused(description, absl::StatusCode::kFailedPrecondition,
                "GPU-30313233-3435-3637-3839-616263646566");
  description.cuda->device_uuid = FakeCudaRuntime::Uuid(2);
  ExpectRefused(description, absl::StatusCode::kInvalidArgument,
                "of another GPU");
  cuda_.FailCall(Call::kOpenShared, 1, /*sticky=*/false);
  ExpectRefused(Describe(), absl::StatusCode::kInternal, "injected");
  EXPECT_TRUE(Register(Describe()).ok());
}

TEST_F(CudaRegionTest, RangesMustLieInsideTheAllocation) {
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
    ExpectRefused(description, absl::StatusCode::kInvalidArgument,
                  absl::StrCat(offset));
  }
}

TEST_F(CudaRegionTest, OneOpeningServesAllRegionsOfAnAllocation) {
  RegionDescription half = Describe("half");
  half.byte_size = kSize / 2;
  RegionDescription rest = Describe("rest");
  rest.byte_offset = rest.byte_size = kSize / 2;
  ASSERT_TRUE(Register(half).ok());
  ASSERT_TRUE(Register(rest).ok());
  ASSERT_TRUE(registry_.Register(std::string(16, 'b'), half).ok());
  EXPECT_TRUE(Register(half).ok());  // renews
  EXPECT_TRUE(absl::IsAlreadyExists(Register(Describe("half"))));
  EXPECT_EQ(cuda_.calls(Call::kOpenShared), 1);
  EXPECT_EQ(cuda_.live_allocations(), 1u);
  EXPECT_EQ(MetricReader(metrics_).Sum("attention_shared_memory_regions"), 3);

  EXPECT_TRUE(registry_.Unregister(kOwner, "half").ok());
  EXPECT_TRUE(registry_.Unregister(kOwner, "rest").ok());
  EXPECT_EQ(cuda_.live_allocations(), 1u);
  clock_.Advance(absl::Seconds(10));
  registry_.ReleaseExpired();
  EXPECT_EQ(cuda_.live_allocations(), 0u);
  EXPECT_TRUE(Register(half).ok());
  EXPECT_EQ(cuda_.calls(Call::kOpenShared), 2);
}

TEST_F(CudaRegionTest, UsersKeepItOpen) {
  ASSERT_TRUE(Register(Describe()).ok());
  auto region = registry_.Use(kOwner, "r");
  ASSERT_TRUE(region.ok());
  EXPECT_TRUE(registry_.Unregister(kOwner, "r").ok());
  EXPECT_TRUE(absl::IsNotFound(registry_.Use(kOwner, "r").status()));
  EXPECT_EQ(cuda_.live_allocations(), 1u);
  // Also beside a registration that comes after it.
  ASSERT_TRUE(Register(Describe()).ok());
  region->reset();
  EXPECT_EQ(cuda_.live_allocations(), 1u);
  EXPECT_EQ(cuda_.calls(Call::kOpenShared), 1);
}

TEST_F(CudaRegionTest, NamesAreSharedWithSystemRegions) {
  SharedMemoryObject object(kSize);
  const RegionDescription system = {.name = "r",
                                    .object_name = object.name(),
                                    .byte_size = static_cast<int64_t>(kSize),
                                    .lease = absl::Seconds(10)};
  ASSERT_TRUE(Register(system).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(Register(Describe())));
  ASSERT_TRUE(registry_.Unregister(kOwner, "r").ok());
  ASSERT_TRUE(Register(Describe()).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(Register(system)));
  EXPECT_EQ(registry_.List(kOwner)[0].direct.device, 1);
}

TEST_F(CudaRegionTest, LimitsCountBothSorts) {
  RegionRegistry small({.allow_cuda = true, .max_bytes = kSize - 1}, &clock_,
                       &metrics_, &cuda_);
  EXPECT_TRUE(
      absl::IsResourceExhausted(small.Register(kOwner, Describe()).status()));
  EXPECT_EQ(cuda_.live_allocations(), 0u);
}

TEST_F(CudaRegionTest, EachSortHasItsFlag) {
  RegionRegistry off({}, &clock_, &metrics_, &cuda_);
  absl::Status status = off.Register(kOwner, Describe()).status();
  EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("--allow_cuda_ipc"));
  EXPECT_EQ(ReasonOf(status), error_reason::kUnsupported);
  EXPECT_FALSE(off.takes_cuda_memory());

  RegionRegistry only({.allow_system = false, .allow_cuda = true}, &clock_,
                      &metrics_, &cuda_);
  EXPECT_TRUE(only.takes_cuda_memory());
  status = only.Register(
                   kOwner,
                   {.name = "r", .object_name = "/attention-x", .byte_size = 1})
               .status();
  EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("--allow_shared_memory"));

  RegionRegistry cpu({.allow_cuda = true}, &clock_, &metrics_);
  status = cpu.Register(kOwner, Describe()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_FALSE(cpu.takes_cuda_memory());
}

TEST_F(CudaRegionTest, ManyCallersAtOnce) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const std::string owner(16, static_cast<char>('a' + t));
      for (int i = 0; i < 500; ++i) {
        const auto region = registry_.Register(owner, Describe());
        ASSERT_TRUE(region.ok()) << region.status();
        EXPECT_EQ((*region)->direct_memory().address,
                  cuda_.shared_data(handle_));
        EXPECT_TRUE(registry_.Unregister(owner, "r").ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(cuda_.live_allocations(), 0u);
}

}  // namespace
}  // namespace attention::test
