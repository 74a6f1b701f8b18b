// What the tests of sessions have in common.
#ifndef ATTENTION_TESTS_SERVER_SESSIONS_SESSIONS_FIXTURE_H_
#define ATTENTION_TESTS_SERVER_SESSIONS_SESSIONS_FIXTURE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/engine/error_reason.h"
#include "server/memory/memory_pool.h"
#include "server/metrics/metrics.h"
#include "server/sessions/session_registry.h"
#include "tests/server/metrics/metric_reader.h"
#include "tests/support/fake_clock.h"
#include "tests/support/puppet_device.h"

namespace attention {

// Hands out addresses with no memory behind them: whoever touches a page there
// crashes.
class AddressAllocator final : public Allocator {
 public:
  absl::StatusOr<void*> Allocate(size_t bytes) override {
    return reinterpret_cast<void*>(next_.fetch_add(bytes));
  }
  void Free(void*, size_t) override {}

 private:
  // Of all: no two have the same.
  static inline std::atomic<uintptr_t> next_{uintptr_t{1} << 60};
};

// Pages of 4 tokens, 256 bytes each.
inline PagedConfig SmallPages() {
  return {.heads = {.data_type = DataType::kFloat32,
                    .head_dim_qk = 8,
                    .head_dim_v = 8,
                    .query_head_count = 2,
                    .kv_head_count = 1,
                    .mask = MaskKind::kCausalBottomRight},
          .page_tokens = 4};
}
inline constexpr int64_t kSmallPageBytes = 256;

class SessionsTest : public testing::Test {
 protected:
  static constexpr int64_t kPagesPerSlab = 16;

  // A registry on `device_count` devices of `page_count` small pages each, and
  // room for so many more in the host's memory.
  void MakeRegistry(int64_t page_count = 160, int device_count = 1,
                    SessionRegistry::Options options = {},
                    int64_t spill_page_count = 0) {
    registry_.reset();
    devices_.clear();
    pools_.clear();
    spill_pools_.clear();
    numbers_.assign(device_count, 0);
    options.slab_bytes = kPagesPerSlab * kSmallPageBytes;
    std::vector<SessionRegistry::DeviceMemory> memories;
    for (int i = 0; i < device_count; ++i) {
      devices_.push_back(
          std::make_unique<PuppetDevice>("puppet:" + std::to_string(i)));
      for (auto* pools : {&pools_, &spill_pools_}) {
        pools->push_back(std::make_unique<MemoryPool>(
            MemoryPool::Options{.name = "any", .budget_bytes = size_t{1} << 40},
            std::make_unique<AddressAllocator>()));
      }
      memories.push_back(
          {.device = devices_.back().get(),
           .pool = pools_.back().get(),
           .budget_bytes = static_cast<size_t>(page_count * kSmallPageBytes),
           .spill_pool = spill_pools_.back().get(),
           .spill_budget_bytes =
               static_cast<size_t>(spill_page_count * kSmallPageBytes)});
    }
    auto registry = SessionRegistry::Create(std::move(options), memories,
                                            &clock_, &metrics_);
    ASSERT_TRUE(registry.ok()) << registry.status();
    registry_ = *std::move(registry);
  }

  static SessionConfig MakeConfig(int32_t layer_count = 1) {
    return {.paged = SmallPages(), .layer_count = layer_count};
  }
  static SessionConfig MakeWindow(int64_t window_left,
                                  int64_t sink_tokens = 0) {
    SessionConfig config = MakeConfig();
    config.window_left = window_left;
    config.sink_tokens = sink_tokens;
    return config;
  }

  // The name of a new session; empty, and a failure, if there is none.
  std::string Open(const SessionConfig& config = MakeConfig(),
                   const SessionRegistry::CreateOptions& options = {}) {
    auto info = registry_->Create(kOwner, config, options);
    EXPECT_TRUE(info.ok()) << info.status();
    return info.ok() ? info->name : "";
  }
  std::string Fork(const std::string& name,
                   const SessionRegistry::ForkOptions& options = {}) {
    auto info = registry_->Fork(kOwner, name, options);
    EXPECT_TRUE(info.ok()) << info.status();
    return info.ok() ? info->name : "";
  }
  absl::Status Cut(const std::string& name, int64_t position) {
    return registry_->Truncate(kOwner, name, position).status();
  }
  SessionInfo Info(const std::string& name) {
    auto info = registry_->Get(kOwner, name);
    EXPECT_TRUE(info.ok()) << info.status();
    return info.ok() ? *info : SessionInfo();
  }
  int64_t Length(const std::string& name, int layer = 0) {
    return Info(name).layer_lengths.at(layer);
  }

  KvStep StepOf(const std::string& name, int64_t append_length,
                int64_t query_length = 0, int layer = 0) {
    auto use = registry_->Use(kOwner, name, layer);
    EXPECT_TRUE(use.ok()) << use.status();
    if (!use.ok()) return {};
    return {.layer = use->layer,
            .append_length = append_length,
            .query_length = query_length};
  }

  // Batches, as a device runs them. Numbers of each device go on.
  uint64_t BeginBatch(int device = 0) {
    const uint64_t number = numbers_[device]++;
    registry_->cache(device)->BeginBatch(number);
    return number;
  }
  absl::Status Begin(uint64_t number, const KvStep& step, KvView& view,
                     int device = 0) {
    return registry_->cache(device)->Begin(number, step, view);
  }
  // What the next launch has to move.
  std::vector<PageMove> Move(int device = 0) {
    std::vector<PageMove> moves;
    const absl::Status status =
        registry_->cache(device)->Move([&](absl::Span<const PageMove> m) {
          moves.assign(m.begin(), m.end());
          return absl::OkStatus();
        });
    EXPECT_EQ(status, absl::OkStatus());
    return moves;
  }
  void AllBegun(uint64_t number, int device = 0) {
    registry_->cache(device)->AllBegun(number);
  }
  void EndBatch(uint64_t number, bool ok = true, int device = 0) {
    registry_->cache(device)->EndBatch(number, ok);
  }
  // A batch of one step.
  absl::Status Run(const KvStep& step, KvView& view) {
    const uint64_t number = BeginBatch();
    const absl::Status status = Begin(number, step, view);
    moves_ = Move();
    AllBegun(number);
    EndBatch(number);
    return status;
  }
  absl::Status Run(const KvStep& step) {
    KvView view;
    return Run(step, view);
  }
  absl::Status Append(const std::string& name, int64_t count, int layer = 0) {
    return Run(StepOf(name, count, 0, layer));
  }
  KvView Look(const std::string& name, int layer = 0) {
    KvView view;
    EXPECT_EQ(Run(StepOf(name, 0, 0, layer), view), absl::OkStatus());
    return view;
  }

  SessionUsage Usage(int device = 0) const {
    return static_cast<const KvStore*>(registry_->cache(device))
        ->session_usage();
  }
  double Pages(const std::string& state) {
    return reader_
        .Value("attention_session_pages",
               {{"device", "puppet:0"}, {"state", state}})
        .value_or(-1);
  }
  // Of pages and of a slab that is partly used, in the device's pool.
  size_t PoolBytes() const { return pools_[0]->usage().in_use_bytes; }

  static constexpr char kOwner[] = "owner";
  FakeClock clock_;
  Metrics metrics_{{}};
  MetricReader reader_{metrics_};
  std::vector<std::unique_ptr<PuppetDevice>> devices_;
  std::vector<std::unique_ptr<MemoryPool>> pools_;
  std::vector<std::unique_ptr<MemoryPool>> spill_pools_;
  std::unique_ptr<SessionRegistry> registry_;
  std::vector<uint64_t> numbers_;
  std::vector<PageMove> moves_;  // of the last Run
};

// The value of a fact; empty when there is none.
inline std::string FactOf(const absl::Status& status, absl::string_view key) {
  std::string found;
  ForEachFact(status, [&](absl::string_view k, absl::string_view value) {
    if (k == key) found = std::string(value);
  });
  return found;
}

// Status with this code and reason.
MATCHER_P2(Fails, code, reason, "") {
  *result_listener << arg << " with reason " << std::string(ReasonOf(arg));
  return arg.code() == code && ReasonOf(arg) == reason;
}

inline auto IsTaken() {
  return Fails(absl::StatusCode::kAlreadyExists, error_reason::kPositionTaken);
}
inline auto IsGap() {
  return Fails(absl::StatusCode::kOutOfRange, error_reason::kPositionGap);
}
inline auto IsFreed() {
  return Fails(absl::StatusCode::kOutOfRange, error_reason::kKeysFreed);
}
inline auto IsFull() {
  return Fails(absl::StatusCode::kResourceExhausted, error_reason::kCacheFull);
}
inline auto IsOverQuota() {
  return Fails(absl::StatusCode::kResourceExhausted,
               error_reason::kQuotaExceeded);
}
inline auto IsTooLarge() {
  return Fails(absl::StatusCode::kResourceExhausted,
               error_reason::kRequestTooLarge);
}
inline auto IsLost() {
  return Fails(absl::StatusCode::kAborted, error_reason::kSessionLost);
}
inline auto IsNotFound() {
  return Fails(absl::StatusCode::kNotFound, error_reason::kSessionNotFound);
}
inline auto IsInvalid() {
  return Fails(absl::StatusCode::kInvalidArgument,
               error_reason::kInvalidRequest);
}

}  // namespace attention

#endif  // ATTENTION_TESTS_SERVER_SESSIONS_SESSIONS_FIXTURE_H_
