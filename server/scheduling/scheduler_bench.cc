// What the scheduler costs a request, without any computation.
//
// The device answers inside Run, so no thread is woken: what is measured is the
// work of Enqueue, batching and metrics, not the hand-over between threads that
// a real device adds.
#include <benchmark/benchmark.h>

#include <memory>
#include <utility>
#include <vector>

#include "server/engine/device.h"
#include "server/metrics/metrics.h"
#include "server/scheduling/scheduler.h"

namespace attention {
namespace {

// Answers at once, or holds the first batch until Release.
class InstantDevice final : public Device {
 public:
  const DeviceDescription& description() const override { return description_; }
  int slot_count() const override { return 1; }
  absl::Status health() const override { return absl::OkStatus(); }

  void Run(std::unique_ptr<Batch> batch,
           absl::AnyInvocable<void()> slot_free) override {
    if (hold_) {
      held_ = std::move(batch);
      held_slot_ = std::move(slot_free);
      return;
    }
    Answer(*batch);
    slot_free();
  }

  void Hold() { hold_ = true; }

  // Answers what is held, and everything that gathered behind it.
  void Release() {
    hold_ = false;
    Answer(*held_);
    held_.reset();
    std::exchange(held_slot_, {})();
  }

 private:
  static void Answer(const Batch& batch) {
    for (const auto& work : batch.works) work->done(WorkResult());
  }

  const DeviceDescription description_ = {.name = "instant:0"};
  bool hold_ = false;
  std::unique_ptr<Batch> held_;
  absl::AnyInvocable<void()> held_slot_;
};

class Setup {
 public:
  Setup() {
    auto scheduler =
        Scheduler::Create({}, {&device_}, &metrics_, &Clock::Real());
    scheduler_ = *std::move(scheduler);
  }

  InstantDevice& device() { return device_; }

  void Enqueue(int variant) {
    auto work = std::make_unique<AttentionWork>();
    work->config = {.head_dim_qk = 1 + variant,
                    .head_dim_v = 64,
                    .query_head_count = 8,
                    .kv_head_count = 8};
    work->output_bytes = 1000;
    work->deadline = absl::Now() + absl::Seconds(30);
    work->done = [](const absl::StatusOr<WorkResult>& result) {
      benchmark::DoNotOptimize(result.ok());
    };
    benchmark::DoNotOptimize(scheduler_->Enqueue(work));
  }

 private:
  InstantDevice device_;
  Metrics metrics_{Metrics::Options{}};
  std::unique_ptr<Scheduler> scheduler_;
};

// Each request finds the device idle.
void BM_IdleDevice(benchmark::State& state) {
  Setup setup;
  for (auto _ : state) setup.Enqueue(0);
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_IdleDevice);

// 1024 requests gather behind a busy device and leave in batches of at most
// 256, spread over so many configurations.
void BM_BusyDevice(benchmark::State& state) {
  constexpr int kRequests = 1024;
  const int configs = static_cast<int>(state.range(0));
  Setup setup;
  for (auto _ : state) {
    setup.device().Hold();
    for (int i = 0; i < kRequests; ++i) setup.Enqueue(i % configs);
    setup.device().Release();
  }
  state.SetItemsProcessed(state.iterations() * kRequests);
}
BENCHMARK(BM_BusyDevice)->Arg(1)->Arg(4)->Arg(64);

}  // namespace
}  // namespace attention

BENCHMARK_MAIN();
