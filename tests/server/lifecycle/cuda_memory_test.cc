// Requests whose tensors lie in memory of GPUs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cpp/attention_client.h"
#include "tests/server/lifecycle/gpu_regions_fixture.h"

namespace attention::test {
namespace {

using ::testing::HasSubstr;
using Call = FakeCudaRuntime::Call;

class CudaMemoryTest : public GpuRegionsTest {
 protected:
  static constexpr size_t kBytes = 4 << 20;

  void Start() {
    AttentionServer::Options options;
    options.shared_memory.emplace();
    options.shared_memory->allow_cuda = true;
    GpuRegionsTest::Start(options);
  }

  // Memory of GPU `device`, as region "cuda<device>".
  std::string Register(int device) {
    const std::string handle = cuda_.Share(device, kBytes);
    v1::RegisterCudaMemoryRegionRequest request;
    request.set_owner_token(token_);
    request.set_region_name(absl::StrCat("cuda", device));
    request.set_memory_handle(handle);
    request.set_device_uuid(FakeCudaRuntime::Uuid(device));
    request.set_byte_size(kBytes);
    grpc::ClientContext context;
    v1::RegisterCudaMemoryRegionResponse response;
    const grpc::Status status =
        stub_->RegisterCudaMemoryRegion(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.device_name(), absl::StrCat("cuda:", device));
    EXPECT_EQ(response.lease_duration().seconds(), 60);
    return handle;
  }

  // Takes the next `bytes` of a GPU's memory, aligned to 16.
  size_t Place(int device, size_t bytes, v1::RegionReference* reference) {
    const size_t offset = (next_ + 15) / 16 * 16;
    Refer(absl::StrCat("cuda", device), offset, bytes, reference);
    next_ = offset + bytes;
    return offset;
  }
  void Move(int device, const std::string& handle, std::string* payload,
            v1::RegionReference* reference) {
    const size_t offset = Place(device, payload->size(), reference);
    std::copy(payload->begin(), payload->end(),
              cuda_.shared_data(handle) + offset);
    payload->clear();
  }

  // A small request with its query in the memory of GPU 1.
  v1::ComputeAttentionRequest WithQueryOnDevice(const std::string& handle) {
    v1::ComputeAttentionRequest request = SmallRequest();
    request.set_region_owner_token(token_);
    Move(1, handle, request.mutable_query(), request.mutable_query_reference());
    return request;
  }

  size_t next_ = 0;
};

// Every combination of tensors inline and on the GPU, also of results.
TEST_F(CudaMemoryTest, AnswersAreRightHoweverTensorsTravel) {
  Start();
  const std::string handle = Register(1);
  const char* const memory = cuda_.shared_data(handle);
  constexpr DataType kTypes[] = {DataType::kFloat32, DataType::kBFloat16,
                                 DataType::kFloat8E4M3};
  for (int mix = 0; mix < 128 * 3; ++mix) {
    SCOPED_TRACE(mix);
    RequestSpec spec;
    spec.data_type = kTypes[mix / 128];
    spec.batch = 3;
    // With padding weights are spread on the host, and copied to their place.
    if (mix & 64) {
      spec.query_lengths = {5, 0, 3};
      spec.key_lengths = {7, 4, 6};
    }
    AskForEverything(spec);
    const RequestMaker maker(spec, random_);
    v1::ComputeAttentionRequest request = maker.request();
    const Outcome plain = ServerTest::Call(request);
    ASSERT_TRUE(plain.status.ok()) << plain.status.error_message();

    next_ = 0;
    request.set_region_owner_token(token_);
    if (mix & 1) {
      Move(1, handle, request.mutable_query(),
           request.mutable_query_reference());
    }
    if (mix & 2) {
      Move(1, handle, request.mutable_key(), request.mutable_key_reference());
    }
    if (mix & 4) {
      Move(1, handle, request.mutable_value(),
           request.mutable_value_reference());
    }
    const size_t output = plain.response.output().size();
    const size_t lse = plain.response.log_sum_exp().size();
    const size_t weights = plain.response.weights().size();
    size_t output_at = 0, lse_at = 0, weights_at = 0;
    if (mix & 8) {
      output_at = Place(1, output, request.mutable_output_reference());
    }
    if (mix & 16) {
      lse_at = Place(1, lse, request.mutable_log_sum_exp_reference());
    }
    const bool places_weights = spec.return_weights && (mix & 32);
    if (places_weights) {
      weights_at = Place(1, weights, request.mutable_weights_reference());
    }
    Outcome shared = ServerTest::Call(request);
    ASSERT_TRUE(shared.status.ok()) << shared.status.error_message();
    if ((mix & 31) || places_weights) {
      EXPECT_EQ(shared.response.timings().device_name(), "cuda:1");
    }
    if (mix & 8) {
      EXPECT_EQ(shared.response.output(), "");
      shared.response.set_output(std::string(memory + output_at, output));
    }
    if (mix & 16) {
      EXPECT_EQ(shared.response.log_sum_exp(), "");
      shared.response.set_log_sum_exp(std::string(memory + lse_at, lse));
    }
    if (places_weights) {
      EXPECT_EQ(shared.response.weights(), "");
      shared.response.set_weights(std::string(memory + weights_at, weights));
    }
    EXPECT_TRUE(maker.Check(shared.response));
    EXPECT_EQ(shared.response.output(), plain.response.output());
  }
}

TEST_F(CudaMemoryTest, NothingIsCopied) {
  Start();
  const std::string handle = Register(0);
  const RequestMaker maker = LargeRequest();
  v1::ComputeAttentionRequest request = maker.request();
  request.set_region_owner_token(token_);
  Move(0, handle, request.mutable_query(), request.mutable_query_reference());
  Move(0, handle, request.mutable_key(), request.mutable_key_reference());
  Move(0, handle, request.mutable_value(), request.mutable_value_reference());
  const size_t bytes = 20 * 50 * 10 * 10 * sizeof(float);
  const size_t lse = 20 * 50 * 10 * sizeof(float);
  const size_t at = Place(0, bytes, request.mutable_output_reference());
  const size_t lse_at = Place(0, lse, request.mutable_log_sum_exp_reference());
  Outcome outcome = ServerTest::Call(request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  const char* const memory = cuda_.shared_data(handle);
  outcome.response.set_output(std::string(memory + at, bytes));
  outcome.response.set_log_sum_exp(std::string(memory + lse_at, lse));
  EXPECT_TRUE(maker.Check(outcome.response));
  EXPECT_EQ(cuda_.calls(Call::kCopyToDevice), 0);
  EXPECT_EQ(cuda_.calls(Call::kCopyToHost), 0);
  EXPECT_EQ(Metric("attention_copied_bytes_total"), 0);
  EXPECT_EQ(Metric("attention_shared_memory_bytes_total"), 4 * bytes + lse);
}

TEST_F(CudaMemoryTest, WrongReferencesAreRefused) {
  Start();
  const std::string handle = Register(1);
  Register(0);
  const v1::ComputeAttentionRequest valid = WithQueryOnDevice(handle);
  ASSERT_TRUE(ServerTest::Call(valid).status.ok());
  struct Case {
    std::function<void(v1::ComputeAttentionRequest&)> change;
    grpc::StatusCode code;
    std::string text;
  };
  const auto kInvalid = grpc::StatusCode::INVALID_ARGUMENT;
  const auto kNotFound = grpc::StatusCode::NOT_FOUND;
  const auto key_on_0 = [](v1::ComputeAttentionRequest& r) {
    Refer("cuda0", 0, r.key().size(), r.mutable_key_reference());
    r.clear_key();
  };
  const auto output_at = [](v1::ComputeAttentionRequest& r, size_t offset) {
    Refer("cuda1", offset, 5 * 4 * 8 * sizeof(float),
          r.mutable_output_reference());
  };
  for (const Case& c : std::vector<Case>{
           {key_on_0, kInvalid,
            "key_reference must be in the memory of cuda:1"},
           {[](auto& r) { r.mutable_query_reference()->set_byte_offset(2); },
            kInvalid, "a multiple of 4"},
           {[](auto& r) {
              r.mutable_query_reference()->set_byte_offset(kBytes);
            },
            kInvalid, "query_reference"},
           {[](auto& r) { r.mutable_query_reference()->set_byte_offset(-4); },
            kInvalid, "query_reference"},
           {[](auto& r) { r.mutable_query_reference()->set_region_name("x"); },
            kNotFound, "query_reference"},
           {[](auto& r) { r.set_region_owner_token(std::string(32, 'u')); },
            kNotFound, "query_reference"},
           {[&](auto& r) { output_at(r, 0); }, kInvalid,
            "output_reference must be apart from query_reference"},
           {[&](auto& r) {
              output_at(r, 1 << 20);
              r.set_return_log_sum_exp(true);
              Refer("cuda1", (1 << 20) + 4, 5 * 4 * sizeof(float),
                    r.mutable_log_sum_exp_reference());
            },
            kInvalid, "log_sum_exp_reference must be apart from output"},
           {[&](auto& r) {
              r.set_return_log_sum_exp(true);
              Refer("cuda1", (1 << 20) + 2, 5 * 4 * sizeof(float),
                    r.mutable_log_sum_exp_reference());
            },
            kInvalid, "a multiple of 4"}}) {
    v1::ComputeAttentionRequest request = valid;
    c.change(request);
    const Outcome outcome = ServerTest::Call(request);
    EXPECT_EQ(outcome.status.error_code(), c.code)
        << outcome.status.error_message();
    EXPECT_THAT(outcome.status.error_message(), HasSubstr(c.text));
    EXPECT_EQ(ReasonOf(outcome.status), "INVALID_REQUEST");
  }
}

TEST_F(CudaMemoryTest, SmallElementsNeedTheirOwnAlignmentOnly) {
  Start();
  const std::string handle = Register(1);
  const std::pair<DataType, size_t> offsets[] = {{DataType::kBFloat16, 18},
                                                 {DataType::kFloat8E4M3, 19}};
  for (const auto& [type, offset] : offsets) {
    RequestSpec spec;
    spec.data_type = type;
    const RequestMaker maker(spec, random_);
    v1::ComputeAttentionRequest request = maker.request();
    request.set_region_owner_token(token_);
    const std::string query = request.query();
    Refer("cuda1", offset, query.size(), request.mutable_query_reference());
    std::copy(query.begin(), query.end(), cuda_.shared_data(handle) + offset);
    request.clear_query();
    const Outcome outcome = ServerTest::Call(request);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
    EXPECT_TRUE(maker.Check(outcome.response));
    // The output has 16 bits in either case.
    Refer("cuda1", (1 << 20) + 1, outcome.response.output().size(),
          request.mutable_output_reference());
    EXPECT_THAT(ServerTest::Call(request).status.error_message(),
                HasSubstr("output_reference.byte_offset must be such that the "
                          "address is a multiple of 2"));
  }
}

// Leases, Unregister and List serve both sorts of regions.
TEST_F(CudaMemoryTest, IsListedAndForgotten) {
  Start();
  const std::string handle = Register(1);
  const v1::ComputeAttentionRequest request = WithQueryOnDevice(handle);
  v1::ListSharedMemoryRegionsRequest list;
  list.set_owner_token(token_);
  v1::ListSharedMemoryRegionsResponse listed;
  grpc::ClientContext list_context;
  ASSERT_TRUE(
      stub_->ListSharedMemoryRegions(&list_context, list, &listed).ok());
  ASSERT_EQ(listed.regions_size(), 1);
  EXPECT_EQ(listed.regions(0).region_name(), "cuda1");
  EXPECT_EQ(listed.regions(0).object_name(), "");
  EXPECT_EQ(listed.regions(0).device_uuid(), FakeCudaRuntime::Uuid(1));
  EXPECT_FALSE(listed.regions(0).is_pinned());
  EXPECT_EQ(listed.regions(0).byte_size(), kBytes);

  v1::UnregisterSharedMemoryRegionRequest unregister;
  unregister.set_owner_token(token_);
  unregister.set_region_name("cuda1");
  grpc::ClientContext context;
  v1::UnregisterSharedMemoryRegionResponse response;
  ASSERT_TRUE(
      stub_->UnregisterSharedMemoryRegion(&context, unregister, &response)
          .ok());
  EXPECT_EQ(ServerTest::Call(request).status.error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST_F(CudaMemoryTest, ServerInfoSaysWhatIsTaken) {
  Start();
  grpc::ClientContext context;
  v1::GetServerInfoResponse info;
  ASSERT_TRUE(
      stub_->GetServerInfo(&context, v1::GetServerInfoRequest(), &info).ok());
  EXPECT_TRUE(info.supported_configurations().cuda_memory());
  ASSERT_EQ(info.devices_size(), 2);
  EXPECT_EQ(info.devices(1).uuid(), FakeCudaRuntime::Uuid(1));
}

// Registered, used and forgotten from several threads, with work in flight.
TEST_F(CudaMemoryTest, ForgettingItInFlightIsSafe) {
  Start();
  const std::string handle = Register(1);
  const v1::ComputeAttentionRequest request = WithQueryOnDevice(handle);
  std::atomic<bool> ended{false};
  std::thread owner([&] {
    while (!ended) {
      v1::UnregisterSharedMemoryRegionRequest unregister;
      unregister.set_owner_token(token_);
      unregister.set_region_name("cuda1");
      grpc::ClientContext context;
      v1::UnregisterSharedMemoryRegionResponse response;
      stub_->UnregisterSharedMemoryRegion(&context, unregister, &response);
      v1::RegisterCudaMemoryRegionRequest again;
      again.set_owner_token(token_);
      again.set_region_name("cuda1");
      again.set_memory_handle(handle);
      again.set_device_uuid(FakeCudaRuntime::Uuid(1));
      again.set_byte_size(kBytes);
      grpc::ClientContext again_context;
      v1::RegisterCudaMemoryRegionResponse registered;
      EXPECT_TRUE(
          stub_->RegisterCudaMemoryRegion(&again_context, again, &registered)
              .ok());
    }
  });
  std::string first;
  for (int i = 0; i < 200; ++i) {
    const Outcome outcome = ServerTest::Call(request);
    if (outcome.status.ok()) {
      if (first.empty()) first = outcome.response.output();
      EXPECT_EQ(outcome.response.output(), first);
    } else {
      EXPECT_EQ(outcome.status.error_code(), grpc::StatusCode::NOT_FOUND);
    }
  }
  ended = true;
  owner.join();
  EXPECT_FALSE(first.empty());
}

TEST_F(CudaMemoryTest, ClientRefersToWhatLiesInItsRegions) {
  Start();
  auto client = Client::Create({.target = tcp_address()});
  ASSERT_TRUE(client.ok());
  const std::string handle = cuda_.Share(/*device=*/1, kBytes);
  const CudaMemoryRegion::Options options = {
      .data = cuda_.shared_data(handle),
      .size_bytes = kBytes,
      .memory_handle = handle,
      .device_uuid = FakeCudaRuntime::Uuid(1)};
  auto region = (*client)->RegisterCudaMemory(options);
  ASSERT_TRUE(region.ok()) << region.status();
  EXPECT_EQ((*region)->data(), options.data);
  float* const shared = static_cast<float*>((*region)->data());
  std::vector<float> values(3 * 8 * 4);
  for (float& value : values) {
    value = std::uniform_real_distribution<float>(-1, 1)(random_);
  }
  std::copy(values.begin(), values.end(), shared);

  AttentionRequest request;
  request.query = TensorView::Contiguous(values.data(), {1, 8, 1, 4}, 4);
  request.key = TensorView::Contiguous(values.data() + 32, {1, 8, 1, 4}, 4);
  request.value = TensorView::Contiguous(values.data() + 64, {1, 8, 1, 4}, 4);
  const auto plain = (*client)->Compute(request);
  ASSERT_TRUE(plain.ok()) << plain.status();

  request.query.data = shared;  // the key stays inline
  request.value.data = shared + 64;
  request.output_buffer = {shared + 1000, 32 * sizeof(float)};
  const auto result = (*client)->Compute(request);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->output, "");
  EXPECT_EQ(result->timings.device_name(), "cuda:1");
  EXPECT_EQ(std::string(reinterpret_cast<char*>(shared + 1000), 128),
            plain->output);

  EXPECT_TRUE((*region)->Renew().ok());
  for (const auto& change :
       std::vector<std::function<void(CudaMemoryRegion::Options&)>>{
           [](auto& o) { o.data = nullptr; }, [](auto& o) { o.size_bytes = 0; },
           [](auto& o) { o.size_bytes = kBytes + 1; },
           [](auto& o) { o.lease = absl::Hours(2); },
           [](auto& o) { o.memory_handle = "x"; },
           [](auto& o) { o.device_uuid = ""; }}) {
    CudaMemoryRegion::Options wrong = options;
    change(wrong);
    EXPECT_TRUE(
        absl::IsInvalidArgument((*client)->RegisterCudaMemory(wrong).status()));
  }
  EXPECT_EQ(Metric("attention_shared_memory_regions"), 1);
  region->reset();
  EXPECT_EQ(Metric("attention_shared_memory_regions"), 0);
}

TEST_F(GpuRegionsTest, CudaMemoryIsOffUnlessAllowed) {
  Start();
  v1::RegisterCudaMemoryRegionRequest request;
  request.set_owner_token(token_);
  request.set_region_name("r");
  grpc::ClientContext context;
  v1::RegisterCudaMemoryRegionResponse response;
  const grpc::Status status =
      stub_->RegisterCudaMemoryRegion(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(status.error_message(), HasSubstr("--allow_cuda_ipc"));
}

}  // namespace
}  // namespace attention::test
