// Works with tensors in memory that a fake GPU reaches itself.
#ifndef ATTENTION_TESTS_SERVER_ENGINE_DIRECT_MEMORY_FIXTURE_H_
#define ATTENTION_TESTS_SERVER_ENGINE_DIRECT_MEMORY_FIXTURE_H_

#include <atomic>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "server/engine/batch_binding.h"
#include "server/engine/direct_memory.h"
#include "tests/server/engine/engine_fixture.h"

namespace attention::test {

// Memory of the fake GPU or pinned for it, as another process might have it.
class ForeignMemory {
 public:
  ForeignMemory(FakeCudaRuntime& cuda, DirectMemory::Kind kind, size_t bytes)
      : cuda_(cuda), kind_(kind) {
    EXPECT_TRUE(cuda_.SetDevice(0).ok());
    address_ = kind == DirectMemory::Kind::kDevice
                   ? *cuda.AllocateDevice(bytes)
                   : *cuda.AllocatePinned(bytes);
  }
  ~ForeignMemory() {
    if (kind_ == DirectMemory::Kind::kDevice) {
      cuda_.FreeDevice(address_);
    } else {
      cuda_.FreePinned(address_);
    }
  }
  DirectMemory direct() const {
    return {.kind = kind_,
            .address = address_,
            .device = kind_ == DirectMemory::Kind::kDevice ? 0 : kAnyDevice};
  }

 private:
  FakeCudaRuntime& cuda_;
  const DirectMemory::Kind kind_;
  void* address_;
};

class DirectSource : public PayloadSource {
 public:
  DirectSource(FakeCudaRuntime& cuda, DirectMemory::Kind kind,
               const Payload& payload)
      : memory_(cuda, kind, payload.size_bytes()), size_(payload.size_bytes()) {
    EXPECT_TRUE(Gather(payload, memory_.direct().address).ok());
  }

  size_t size_bytes() const override { return size_; }
  absl::Status Read(size_t offset, absl::Span<char> to) const override {
    ++reads_;
    std::memcpy(to.data(),
                static_cast<char*>(memory_.direct().address) + offset,
                to.size());
    return absl::OkStatus();
  }
  DirectMemory direct_memory() const override {
    DirectMemory direct = memory_.direct();
    direct.device += device_offset;
    return direct;
  }
  absl::Status CheckDirect() const override {
    if (wait != nullptr && !reached.HasBeenNotified()) {
      reached.Notify();
      wait->WaitForNotification();
    }
    return ++checks_ > good_checks ? check : absl::OkStatus();
  }

  int reads() const { return reads_; }
  int checks() const { return checks_; }
  absl::Status check;
  int good_checks = 0;  // before that
  // If set, the first check lasts until then.
  absl::Notification* wait = nullptr;
  mutable absl::Notification reached;
  int device_offset = 0;

 private:
  const ForeignMemory memory_;
  const size_t size_;
  mutable std::atomic<int> reads_ = 0;
  mutable std::atomic<int> checks_ = 0;
};

class DirectMemoryTest : public testing::Test {
 protected:
  using Requests = std::vector<std::unique_ptr<TestRequest>>;

  FakeCudaRuntime& cuda() { return *engine_->fake_cuda(); }

  TestRequest& Add(const WorkSpec& spec) {
    requests_.push_back(std::make_unique<TestRequest>(spec));
    return *requests_.back();
  }

  std::shared_ptr<DirectSource> Place(Payload& payload,
                                      DirectMemory::Kind kind) {
    auto source = std::make_shared<DirectSource>(cuda(), kind, payload);
    payload.fragments.clear();
    payload.source = source;
    sources_.push_back(source);
    return source;
  }
  void PlaceInputs(TestRequest& request, DirectMemory::Kind kind) {
    AttentionWork& work = request.work();
    for (Payload* payload : {&work.query, &work.key, &work.value}) {
      Place(*payload, kind);
    }
  }
  // Of all results; filled with NaN.
  void PlaceResults(TestRequest& request, DirectMemory::Kind kind) {
    AttentionWork& work = request.work();
    const std::pair<size_t, DirectMemory*> results[] = {
        {work.output_bytes, &work.output_target},
        {work.log_sum_exp_bytes, &work.log_sum_exp_target},
        {work.weights_bytes, &work.weights_target}};
    for (auto [bytes, target] : results) {
      if (bytes == 0) continue;
      targets_.push_back(std::make_unique<ForeignMemory>(cuda(), kind, bytes));
      *target = targets_.back()->direct();
    }
  }

  void RunAll() { RunAndWait(*engine_->device(), MakeBatch(requests_)); }
  void ExpectAllRight() {
    for (size_t i = 0; i < requests_.size(); ++i) {
      EXPECT_TRUE(requests_[i]->AnsweredRight()) << "request " << i;
      EXPECT_TRUE(requests_[i]->payload_released());
    }
  }

  int reads() const {
    int reads = 0;
    for (const auto& source : sources_) reads += source->reads();
    return reads;
  }

  std::unique_ptr<TestEngine> engine_ =
      std::make_unique<TestEngine>(EngineBackend::kFakeCuda);
  std::vector<std::shared_ptr<DirectSource>> sources_;
  std::vector<std::unique_ptr<ForeignMemory>> targets_;
  Requests requests_;

  ~DirectMemoryTest() override {
    requests_.clear();
    sources_.clear();
    targets_.clear();
  }
};

}  // namespace attention::test

#endif  // ATTENTION_TESTS_SERVER_ENGINE_DIRECT_MEMORY_FIXTURE_H_
