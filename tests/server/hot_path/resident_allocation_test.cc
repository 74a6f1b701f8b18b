// How often a steady stream of decode steps on resident keys and values
// allocates heap memory between scheduler and answer. A program of its own,
// because it replaces operator new.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/paged_params.h"
#include "server/engine/cuda/cuda_allocators.h"
#include "server/engine/cuda/cuda_device.h"
#include "server/engine/kv_cache.h"
#include "server/memory/memory_pool.h"
#include "server/metrics/metrics.h"
#include "tests/server/hot_path/copying_runtime.h"
#include "tests/support/allocation_counter.h"

namespace attention::test {
namespace {

constexpr PagedConfig kConfig = {
    .heads = {.data_type = DataType::kBFloat16,
              .head_dim_qk = 128,
              .head_dim_v = 128,
              .query_head_count = 16,
              .kv_head_count = 8,
              .mask = MaskKind::kCausalBottomRight},
    .page_tokens = 16};

// All layers have so many tokens, in pages that do not exist.
class EndlessCache final : public KvCache {
 public:
  explicit EndlessCache(int64_t tokens) : tokens_(tokens) {}

  void BeginBatch(uint64_t) override {}
  absl::Status Begin(uint64_t, const KvStep&, KvView& view) override {
    view.pages.resize(static_cast<size_t>(PagesFor(kConfig, tokens_)));
    view.key_length = view.key_end = tokens_;
    return absl::OkStatus();
  }
  void AllBegun(uint64_t) override {}
  void EndBatch(uint64_t, bool ok) override { EXPECT_TRUE(ok); }

 private:
  const int64_t tokens_;
};

class ResidentAllocationTest : public testing::Test {
 protected:
  // Per work of a batch, once memory has been got.
  double AllocationsPerWork(int64_t tokens) {
    EndlessCache cache(tokens);
    device_->SetKvCache(&cache);
    for (int i = 0; i < 4; ++i) Run(MakeBatch());
    auto batch = MakeBatch();
    const AllocationCounter counter;
    Run(std::move(batch));
    return static_cast<double>(counter.count()) / kWorks;
  }

 private:
  static constexpr int kWorks = 64;

  void Run(std::unique_ptr<Batch> batch) {
    int slots_freed = 0;
    device_->Run(std::move(batch), [&slots_freed] { ++slots_freed; });
    EXPECT_EQ(slots_freed, 1) << "not computed by the caller";
  }

  std::unique_ptr<Batch> MakeBatch() {
    auto batch = std::make_unique<Batch>();
    batch->config = kConfig.heads;
    batch->kv_batch_number = 0;
    batch->is_short = true;
    for (int i = 0; i < kWorks; ++i) {
      auto work = std::make_unique<AttentionWork>();
      work->config = kConfig.heads;
      work->page_tokens = kConfig.page_tokens;
      work->sequences.push_back({.shape = {.query_length = 1}});
      work->kv_steps.push_back({.layer = nullptr, .append_length = 1});
      work->query.fragments = {absl::string_view(bytes_).substr(0, 4096)};
      work->key.fragments = {absl::string_view(bytes_).substr(0, 2048)};
      work->value.fragments = work->key.fragments;
      work->output_bytes = 4096;
      work->done = [](const absl::StatusOr<WorkResult>& result) {
        EXPECT_TRUE(result.ok()) << result.status();
      };
      batch->works.push_back(std::move(work));
    }
    return batch;
  }

  const std::string bytes_ = std::string(4096, '\0');
  CopyingRuntime runtime_;
  Metrics metrics_{Metrics::Options{}};
  MemoryPool pinned_{{.name = "pinned", .budget_bytes = size_t{1} << 30},
                     std::make_unique<PinnedAllocator>(&runtime_)};
  MemoryPool memory_{{.name = "device", .budget_bytes = size_t{1} << 30},
                     std::make_unique<DeviceAllocator>(&runtime_, 0)};
  std::unique_ptr<Device> device_ =
      *CreateCudaDevice({}, &runtime_, &pinned_, &memory_, &metrics_);
};

TEST_F(ResidentAllocationTest, SomePerBatchWhateverTheLengthOfTheKeys) {
  const double few_keys = AllocationsPerWork(100);
  const double many_keys = AllocationsPerWork(100'000);
  EXPECT_EQ(few_keys, many_keys);
  EXPECT_LE(few_keys, 0.25);
  EXPECT_GT(few_keys, 0) << "the counter does not count";
}

}  // namespace
}  // namespace attention::test
