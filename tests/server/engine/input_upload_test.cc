// Inputs that arrive in pieces, on every backend.
#include "server/engine/input_upload.h"

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/engine/error_reason.h"
#include "tests/server/engine/engine_fixture.h"

namespace attention::test {
namespace {

using Call = FakeCudaRuntime::Call;

constexpr HeadConfig kConfig = {.head_dim_qk = 32,
                                .head_dim_v = 24,
                                .query_head_count = 4,
                                .kv_head_count = 2};
const WorkSpec kWork = {.config = kConfig,
                        .lengths = {{50, 300}, {0, 7}, {20, 9000}},
                        .log_sum_exp = true};

InputSizes SizesOf(const AttentionWork& work) {
  return {.query = work.query.size_bytes(),
          .key = work.key.size_bytes(),
          .value = work.value.size_bytes()};
}

// Writes the bytes of the payload in random pieces, each of several fragments.
absl::Status WritePieces(InputUpload& upload, InputTensor tensor,
                         const Payload& payload, size_t piece_bytes,
                         std::mt19937_64& random) {
  std::string bytes;
  for (absl::string_view fragment : payload.fragments) {
    bytes.append(fragment.data(), fragment.size());
  }
  std::vector<size_t> offsets;
  for (size_t at = 0; at < bytes.size(); at += piece_bytes) {
    offsets.push_back(at);
  }
  std::shuffle(offsets.begin(), offsets.end(), random);
  for (size_t offset : offsets) {
    absl::string_view piece =
        absl::string_view(bytes).substr(offset, piece_bytes);
    std::vector<absl::string_view> fragments;
    while (!piece.empty()) {
      const size_t size = 1 + random() % (piece_bytes / 3 + 1);
      fragments.push_back(piece.substr(0, size));
      piece.remove_prefix(fragments.back().size());
    }
    absl::Status status = upload.Write(tensor, offset, fragments);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status WriteAll(InputUpload& upload, const AttentionWork& work,
                      size_t piece_bytes, std::mt19937_64& random) {
  absl::Status status;
  const std::pair<InputTensor, const Payload&> tensors[] = {
      {InputTensor::kQuery, work.query},
      {InputTensor::kKey, work.key},
      {InputTensor::kValue, work.value}};
  for (const auto& [tensor, payload] : tensors) {
    if (status.ok()) {
      status = WritePieces(upload, tensor, payload, piece_bytes, random);
    }
  }
  return status;
}

class InputUploadTest : public EngineTest {
 protected:
  // Uploads the request's inputs and runs it, alone in its batch.
  void Run(TestRequest& request, size_t piece_bytes) {
    AttentionWork& work = request.work();
    auto reserved = device().ReserveInputs(SizesOf(work));
    ASSERT_TRUE(reserved.ok()) << reserved.status();
    const std::shared_ptr<InputUpload> upload = *std::move(reserved);
    ASSERT_TRUE(device().ReserveResults(work).ok());
    const absl::Status written = WriteAll(*upload, work, piece_bytes, random_);
    ASSERT_TRUE(written.ok()) << written;
    ASSERT_TRUE(upload->Provide(work).ok());
    work.payload_owner = upload;
    auto batch = std::make_unique<Batch>();
    batch->config = work.config;
    batch->works.push_back(request.TakeWork());
    RunAndWait(device(), std::move(batch));
  }

  std::mt19937_64 random_{testing::UnitTest::GetInstance()->random_seed() + 1u};
};

TEST_P(InputUploadTest, AnswersAreRightHoweverInputsArrive) {
  WorkSpec weights = kWork;
  weights.config.algorithm = Algorithm::kThreeStep;
  weights.weights = true;
  WorkSpec padded = kWork;
  padded.padded_query_length = 60;
  padded.padded_key_length = 9001;
  WorkSpec empty = kWork;
  empty.lengths = {{3, 0}};
  for (const WorkSpec& spec : {kWork, weights, padded, empty}) {
    for (size_t piece_bytes :
         {size_t{4099}, size_t{1} << 20, size_t{16} << 20}) {
      TestRequest request(spec);
      Run(request, piece_bytes);
      ASSERT_TRUE(request.AnsweredRight());
      EXPECT_TRUE(request.payload_released());
    }
  }
  if (engine().device_pool() != nullptr) {
    EXPECT_EQ(engine().device_pool()->usage().in_use_bytes, 0u);
  }
}

// What has been reserved is enough to run when nothing else is left.
TEST_P(InputUploadTest, ReservedMemoryIsEnough) {
  Start({.host_bytes = size_t{32} << 20, .device_bytes = size_t{32} << 20});
  TestRequest request(kWork);
  AttentionWork& work = request.work();
  auto reserved = device().ReserveInputs(SizesOf(work));
  ASSERT_TRUE(reserved.ok()) << reserved.status();
  const std::shared_ptr<InputUpload> upload = *std::move(reserved);
  ASSERT_TRUE(device().ReserveResults(work).ok());
  std::vector<Block> rest;
  std::vector<MemoryPool*> pools = {&engine().host_pool()};
  if (engine().device_pool() != nullptr) pools.push_back(engine().device_pool());
  for (MemoryPool* pool : pools) {
    // All but what a launch needs for itself.
    constexpr size_t kLaunchBytes = size_t{2} << 20;
    for (size_t bytes : {kLaunchBytes / 2, size_t{64} << 10}) {
      while (pool->usage().budget_bytes - pool->usage().in_use_bytes >
             kLaunchBytes + bytes) {
        auto block = pool->Allocate(bytes);
        if (!block.ok()) break;
        rest.push_back(*std::move(block));
      }
    }
  }
  ASSERT_TRUE(WriteAll(*upload, work, size_t{1} << 20, random_).ok());
  ASSERT_TRUE(upload->Provide(work).ok());
  work.payload_owner = upload;
  EXPECT_GT(work.input_bytes() + work.result_bytes(), size_t{2} << 20);
  auto batch = std::make_unique<Batch>();
  batch->config = work.config;
  batch->works.push_back(request.TakeWork());
  RunAndWait(device(), std::move(batch));
  EXPECT_TRUE(request.AnsweredRight());
}

TEST_P(InputUploadTest, WhatDoesNotFitIsRefusedWithoutALeak) {
  Start({.host_bytes = size_t{32} << 20, .device_bytes = size_t{32} << 20});
  const InputSizes sizes = {.query = size_t{4} << 20,
                            .key = size_t{4} << 20,
                            .value = size_t{30} << 20};
  MemoryPool& pool = engine().device_pool() != nullptr
                         ? *engine().device_pool()
                         : engine().host_pool();
  EXPECT_TRUE(absl::IsResourceExhausted(device().ReserveInputs(sizes).status()));
  EXPECT_EQ(pool.usage().in_use_bytes, 0u);
  AttentionWork work;
  work.output_bytes = size_t{20} << 20;
  work.weights_bytes = size_t{20} << 20;
  EXPECT_TRUE(absl::IsResourceExhausted(device().ReserveResults(work)));
  EXPECT_TRUE(work.reserved_results.empty());
  EXPECT_EQ(pool.usage().in_use_bytes, 0u);
}

TEST_P(InputUploadTest, SeveralAtATime) {
  std::vector<std::unique_ptr<TestRequest>> requests;
  std::vector<std::shared_ptr<InputUpload>> uploads;
  for (int i = 0; i < 8; ++i) {
    WorkSpec spec = kWork;
    spec.seed = static_cast<uint64_t>(i);
    requests.push_back(std::make_unique<TestRequest>(spec));
    auto upload = device().ReserveInputs(SizesOf(requests.back()->work()));
    ASSERT_TRUE(upload.ok()) << upload.status();
    uploads.push_back(*std::move(upload));
  }
  std::vector<std::thread> threads;
  for (size_t i = 0; i < requests.size(); ++i) {
    threads.emplace_back([&, i, seed = random_()] {
      std::mt19937_64 random(seed);
      EXPECT_TRUE(WriteAll(*uploads[i], requests[i]->work(), 100'000, random)
                      .ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < requests.size(); ++i) {
    AttentionWork& work = requests[i]->work();
    ASSERT_TRUE(uploads[i]->Provide(work).ok());
    work.payload_owner = uploads[i];
  }
  // In one batch, some with memory of their own for results.
  ASSERT_TRUE(device().ReserveResults(requests[3]->work()).ok());
  RunAndWait(device(), MakeBatch(requests));
  for (const auto& request : requests) {
    EXPECT_TRUE(request->AnsweredRight());
  }
}

INSTANTIATE_FOR_ENGINES(InputUploadTest);

// The faults of a GPU, on a fake one.
class UploadFaultTest : public testing::Test {
 protected:
  absl::Status WriteOneMegabyte() {
    auto upload = engine_.device()->ReserveInputs({.key = size_t{1} << 20});
    if (!upload.ok()) return upload.status();
    const std::string bytes(size_t{1} << 20, 'k');
    const absl::string_view fragment = bytes;
    return (*upload)->Write(InputTensor::kKey, 0, {&fragment, 1});
  }

  TestEngine engine_{EngineBackend::kFakeCuda};
};

TEST_F(UploadFaultTest, ConcernsTheUploadAlone) {
  for (Call call : {Call::kCopyToDevice, Call::kSynchronize}) {
    engine_.fake_cuda()->FailCall(call, 1, /*sticky=*/false);
    EXPECT_EQ(WriteOneMegabyte().code(), absl::StatusCode::kInternal);
    EXPECT_TRUE(engine_.device()->health().ok());
    EXPECT_TRUE(WriteOneMegabyte().ok());
  }
  EXPECT_EQ(engine_.device_pool()->usage().in_use_bytes, 0u);
}

TEST_F(UploadFaultTest, OrTheDevice) {
  engine_.fake_cuda()->FailCall(Call::kCopyToDevice, 2, /*sticky=*/true);
  const absl::Status status = WriteOneMegabyte();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(status), error_reason::kDeviceFailed);
  EXPECT_FALSE(engine_.device()->health().ok());
  EXPECT_EQ(engine_.failure_count(), 1);
  EXPECT_EQ(WriteOneMegabyte().code(), absl::StatusCode::kUnavailable);
}

// The batch finds the inputs where they are.
TEST_F(UploadFaultTest, NothingIsLeftToCopy) {
  TestRequest request(kWork);
  AttentionWork& work = request.work();
  auto reserved = engine_.device()->ReserveInputs(SizesOf(work));
  ASSERT_TRUE(reserved.ok());
  const std::shared_ptr<InputUpload> upload = *std::move(reserved);
  std::mt19937_64 random(1);
  ASSERT_TRUE(WriteAll(*upload, work, size_t{1} << 20, random).ok());
  ASSERT_TRUE(upload->Provide(work).ok());
  EXPECT_EQ(work.required_device, 0);
  EXPECT_EQ(work.moved_bytes(), work.result_bytes());
  work.payload_owner = upload;
  const int copies = engine_.fake_cuda()->calls(Call::kCopyToDevice);
  auto batch = std::make_unique<Batch>();
  batch->config = work.config;
  batch->works.push_back(request.TakeWork());
  RunAndWait(*engine_.device(), std::move(batch));
  EXPECT_TRUE(request.AnsweredRight());
  EXPECT_EQ(engine_.fake_cuda()->calls(Call::kCopyToDevice), copies);
}

}  // namespace
}  // namespace attention::test
