// Requests whose tensors lie in shared memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cpp/attention_client.h"
#include "tests/server/lifecycle/server_fixture.h"
#include "tests/server/metrics/metric_reader.h"
#include "tests/server/regions/shared_memory_object.h"

namespace attention::test {
namespace {

using ::testing::HasSubstr;

constexpr size_t kObjectBytes = 1 << 20;
// Results go to the second half of the object, inputs to the first.
constexpr size_t kResults = kObjectBytes / 2;

class SharedMemoryTest : public ServerTest {
 protected:
  void Start(PuppetDevice* device = nullptr,
             RegionRegistry::Options regions = {}) {
    AttentionServer::Options options;
    options.shared_memory = regions;
    StartServer(options, device);
    stub_ = v1::AttentionService::NewStub(channel());
  }

  grpc::Status Register(const std::string& name = "r",
                        std::optional<absl::Duration> lease = {}) {
    v1::RegisterSharedMemoryRegionRequest request;
    request.set_owner_token(token_);
    request.set_region_name(name);
    request.set_object_name(object_.name());
    request.set_byte_size(kObjectBytes);
    if (lease.has_value()) {
      request.mutable_lease_duration()->set_nanos(
          static_cast<int>(absl::ToInt64Nanoseconds(*lease)));
    }
    grpc::ClientContext context;
    return stub_->RegisterSharedMemoryRegion(&context, request, &registered_);
  }

  grpc::Status Unregister(const std::string& name = "r") {
    v1::UnregisterSharedMemoryRegionRequest request;
    request.set_owner_token(token_);
    request.set_region_name(name);
    grpc::ClientContext context;
    v1::UnregisterSharedMemoryRegionResponse response;
    return stub_->UnregisterSharedMemoryRegion(&context, request, &response);
  }

  grpc::Status List(v1::ListSharedMemoryRegionsResponse& response) {
    v1::ListSharedMemoryRegionsRequest request;
    request.set_owner_token(token_);
    grpc::ClientContext context;
    return stub_->ListSharedMemoryRegions(&context, request, &response);
  }

  static void Refer(size_t offset, size_t size,
                    v1::RegionReference* reference) {
    reference->set_region_name("r");
    reference->set_byte_offset(static_cast<int64_t>(offset));
    reference->set_byte_size(static_cast<int64_t>(size));
  }

  // Moves an input to the object, at an odd address.
  void Move(std::string* payload, v1::RegionReference* reference) {
    const size_t offset = next_ + 1;
    object_.Write(offset, *payload);
    Refer(offset, payload->size(), reference);
    next_ = offset + payload->size();
    payload->clear();
  }

  v1::ComputeAttentionRequest WithInputsMoved(v1::ComputeAttentionRequest r) {
    r.set_region_owner_token(token_);
    Move(r.mutable_query(), r.mutable_query_reference());
    Move(r.mutable_key(), r.mutable_key_reference());
    Move(r.mutable_value(), r.mutable_value_reference());
    return r;
  }

  double Metric(const std::string& name,
                const MetricReader::Labels& labels = {}) {
    return MetricReader(server().metrics()).Sum(name, labels);
  }

  const std::string token_ = std::string(32, 't');
  SharedMemoryObject object_{kObjectBytes};
  std::unique_ptr<v1::AttentionService::Stub> stub_;
  v1::RegisterSharedMemoryRegionResponse registered_;
  size_t next_ = 0;
};

// Every combination of tensors inline and in the region, also of results.
TEST_F(SharedMemoryTest, AnswersAreRightHoweverTensorsTravel) {
  Start();
  ASSERT_TRUE(Register().ok());
  constexpr DataType kTypes[] = {DataType::kFloat32, DataType::kBFloat16,
                                 DataType::kFloat8E4M3};
  for (int mix = 0; mix < 64 * 3; ++mix) {
    SCOPED_TRACE(mix);
    RequestSpec spec;
    spec.data_type = kTypes[mix / 64];
    spec.batch = 3;
    spec.query_lengths = {5, 0, 3};
    spec.key_lengths = {7, 4, 6};
    AskForEverything(spec);
    const RequestMaker maker(spec, random_);
    v1::ComputeAttentionRequest request = maker.request();
    const Outcome plain = Call(request);
    ASSERT_TRUE(plain.status.ok()) << plain.status.error_message();
    ASSERT_TRUE(maker.Check(plain.response));

    next_ = 0;
    request.set_region_owner_token(token_);
    if (mix & 1)
      Move(request.mutable_query(), request.mutable_query_reference());
    if (mix & 2) Move(request.mutable_key(), request.mutable_key_reference());
    if (mix & 4)
      Move(request.mutable_value(), request.mutable_value_reference());
    const size_t output = plain.response.output().size();
    const size_t lse = plain.response.log_sum_exp().size();
    const size_t weights = plain.response.weights().size();
    const size_t lse_at = kResults + output + 3;
    const size_t weights_at = lse_at + lse + 3;
    if (mix & 8) Refer(kResults, output, request.mutable_output_reference());
    if (mix & 16) Refer(lse_at, lse, request.mutable_log_sum_exp_reference());
    const bool shares_weights = spec.return_weights && (mix & 32);
    if (shares_weights)
      Refer(weights_at, weights, request.mutable_weights_reference());
    Outcome shared = Call(request);
    ASSERT_TRUE(shared.status.ok()) << shared.status.error_message();
    if (mix & 8) {
      EXPECT_EQ(shared.response.output(), "");
      shared.response.set_output(object_.Read(kResults, output));
    }
    if (mix & 16) {
      EXPECT_EQ(shared.response.log_sum_exp(), "");
      shared.response.set_log_sum_exp(object_.Read(lse_at, lse));
    }
    if (shares_weights) {
      EXPECT_EQ(shared.response.weights(), "");
      shared.response.set_weights(object_.Read(weights_at, weights));
    }
    EXPECT_TRUE(maker.Check(shared.response));
    EXPECT_EQ(shared.response.output(), plain.response.output());
  }
  EXPECT_EQ(object_.size(), kObjectBytes);
}

TEST_F(SharedMemoryTest, BytesAreCounted) {
  Start();
  ASSERT_TRUE(Register().ok());
  const v1::ComputeAttentionRequest plain = SmallRequest();
  const size_t inputs =
      plain.query().size() + plain.key().size() + plain.value().size();
  const size_t output = Call(plain).response.output().size();
  EXPECT_EQ(Metric("attention_shared_memory_bytes_total"), 0);
  v1::ComputeAttentionRequest request = WithInputsMoved(plain);
  Refer(kResults, output, request.mutable_output_reference());
  const double sent = Metric("attention_bytes_total", {{"direction", "sent"}});
  ASSERT_TRUE(Call(request).status.ok());
  EXPECT_EQ(Metric("attention_shared_memory_bytes_total",
                   {{"direction", "received"}}),
            inputs);
  EXPECT_EQ(
      Metric("attention_shared_memory_bytes_total", {{"direction", "sent"}}),
      output);
  // The answer on the wire is what remains without the tensor.
  EXPECT_LT(Metric("attention_bytes_total", {{"direction", "sent"}}) - sent,
            output);
  EXPECT_EQ(Metric("attention_shared_memory_regions"), 1);
  EXPECT_EQ(Metric("attention_shared_memory_region_bytes"), kObjectBytes);
}

TEST_F(SharedMemoryTest, WrongReferencesAreRefused) {
  Start();
  ASSERT_TRUE(Register().ok());
  const v1::ComputeAttentionRequest valid = WithInputsMoved(SmallRequest());
  ASSERT_TRUE(Call(valid).status.ok());
  struct Case {
    std::function<void(v1::ComputeAttentionRequest&)> change;
    grpc::StatusCode code;
    std::string text;
  };
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  const auto kInvalid = grpc::StatusCode::INVALID_ARGUMENT;
  const auto kNotFound = grpc::StatusCode::NOT_FOUND;
  for (const Case& c : std::vector<Case>{
           {[](auto& r) { r.set_key("x"); }, kInvalid, "key"},
           {[](auto& r) { r.mutable_query_reference()->set_byte_offset(-1); },
            kInvalid, "query_reference"},
           {[](auto& r) { r.mutable_query_reference()->set_byte_offset(kMax); },
            kInvalid, "query_reference"},
           {[](auto& r) { r.mutable_value_reference()->set_byte_size(kMax); },
            kInvalid, "value_reference"},
           {[](auto& r) { r.mutable_value_reference()->set_byte_size(-1); },
            kInvalid, "value_reference"},
           {[](auto& r) {
              r.mutable_key_reference()->set_byte_offset(kObjectBytes);
            },
            kInvalid, "key_reference"},
           {[](auto& r) { r.mutable_key_reference()->set_byte_size(8); },
            kInvalid, "key"},
           {[](auto& r) {
              r.mutable_key_reference()->set_region_name("other");
            },
            kNotFound, "key_reference"},
           {[](auto& r) { r.clear_region_owner_token(); }, kNotFound,
            "query_reference"},
           {[](auto& r) { r.set_region_owner_token(std::string(32, 'u')); },
            kNotFound, "query_reference"},
           {[](auto& r) { Refer(0, 8, r.mutable_output_reference()); },
            kInvalid, "output_reference.byte_size"},
           {[](auto& r) { Refer(0, 8, r.mutable_log_sum_exp_reference()); },
            kInvalid, "return_log_sum_exp"},
           {[](auto& r) { Refer(0, 8, r.mutable_weights_reference()); },
            kInvalid, "return_weights"}}) {
    v1::ComputeAttentionRequest request = valid;
    c.change(request);
    const Outcome outcome = Call(request);
    EXPECT_EQ(outcome.status.error_code(), c.code)
        << outcome.status.error_message();
    EXPECT_THAT(outcome.status.error_message(), HasSubstr(c.text));
    EXPECT_EQ(ReasonOf(outcome.status), "INVALID_REQUEST");
  }
}

TEST_F(SharedMemoryTest, OffUnlessAllowed) {
  StartServer();
  stub_ = v1::AttentionService::NewStub(channel());
  v1::ListSharedMemoryRegionsResponse listed;
  for (const grpc::Status& status :
       {Register(), Unregister(), List(listed),
        Call(WithInputsMoved(SmallRequest())).status}) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
    EXPECT_THAT(status.error_message(), HasSubstr("--allow_shared_memory"));
    EXPECT_EQ(ReasonOf(status), "UNSUPPORTED");
  }
}

TEST_F(SharedMemoryTest, MalformedLeasesAreRefused) {
  Start();
  google::protobuf::Duration lease;
  lease.set_seconds(-1);
  lease.set_nanos(1);
  v1::RegisterSharedMemoryRegionRequest system;
  system.set_owner_token(token_);
  system.set_region_name("r");
  system.set_object_name(object_.name());
  system.set_byte_size(kObjectBytes);
  *system.mutable_lease_duration() = lease;
  v1::RegisterCudaMemoryRegionRequest cuda;
  *cuda.mutable_lease_duration() = lease;
  grpc::ClientContext system_context;
  grpc::ClientContext cuda_context;
  v1::RegisterCudaMemoryRegionResponse response;
  for (const grpc::Status& status :
       {stub_->RegisterSharedMemoryRegion(&system_context, system,
                                          &registered_),
        stub_->RegisterCudaMemoryRegion(&cuda_context, cuda, &response)}) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(ReasonOf(status), "INVALID_REQUEST");
    EXPECT_THAT(status.error_message(),
                testing::HasSubstr("lease_duration.nanos must be of the same "
                                   "sign as its seconds, which are -1; got 1"));
  }
}

TEST_F(SharedMemoryTest, LeaseEnds) {
  Start();
  const v1::ComputeAttentionRequest request = WithInputsMoved(SmallRequest());
  ASSERT_TRUE(Register("r", absl::Nanoseconds(1)).ok());
  EXPECT_EQ(registered_.lease_duration().nanos(), 1);
  EXPECT_EQ(Call(request).status.error_code(), grpc::StatusCode::NOT_FOUND);
  server().ReleaseExpired();
  EXPECT_EQ(Metric("attention_shared_memory_regions"), 0);
  ASSERT_TRUE(Register().ok());
  EXPECT_EQ(registered_.lease_duration().seconds(), 60);
  EXPECT_TRUE(Call(request).status.ok());
}

TEST_F(SharedMemoryTest, ListsAndUnregisters) {
  Start(nullptr, {.max_region_count = 2});
  ASSERT_TRUE(Register("b").ok());
  ASSERT_TRUE(Register("a").ok());
  EXPECT_EQ(Register("c").error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  v1::ListSharedMemoryRegionsResponse listed;
  ASSERT_TRUE(List(listed).ok());
  ASSERT_EQ(listed.regions_size(), 2);
  EXPECT_EQ(listed.regions(0).region_name(), "a");
  EXPECT_EQ(listed.regions(1).object_name(), object_.name());
  EXPECT_EQ(listed.regions(1).byte_size(), kObjectBytes);
  EXPECT_LE(listed.regions(1).remaining_duration().seconds(), 60);
  EXPECT_TRUE(Unregister("a").ok());
  EXPECT_EQ(Unregister("a").error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(SharedMemoryTest, UnregisteringLetsWorkInFlightFinish) {
  PuppetDevice device;
  Start(&device);
  ASSERT_TRUE(Register().ok());
  std::future<Outcome> call = CallInBackground(WithInputsMoved(SmallRequest()));
  device.AwaitInFlight(1);
  ASSERT_TRUE(Unregister().ok());
  object_.Unlink();
  EXPECT_EQ(Metric("attention_shared_memory_regions"), 1);
  device.Finish();
  EXPECT_TRUE(call.get().status.ok());
  while (Metric("attention_shared_memory_regions") != 0) {
    std::this_thread::yield();
  }
}

TEST_F(SharedMemoryTest, ShrinkingTheObjectHarmsItsOwnerOnly) {
  Start();
  ASSERT_TRUE(Register().ok());
  const RequestMaker maker(RequestSpec(), random_);
  const v1::ComputeAttentionRequest plain = maker.request();
  v1::ComputeAttentionRequest shared = WithInputsMoved(plain);
  Refer(kResults, Call(plain).response.output().size(),
        shared.mutable_output_reference());

  object_.Resize(1);
  const Outcome shrunk = Call(shared);
  EXPECT_EQ(shrunk.status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(ReasonOf(shrunk.status), "INVALID_REQUEST");

  std::atomic<bool> ended{false};
  std::thread owner([&] {
    while (!ended) {
      object_.Resize(0);
      object_.Resize(kObjectBytes);
    }
  });
  std::thread caller([&] {
    for (int i = 0; i < 200; ++i) {
      const grpc::Status status = Call(shared).status;
      EXPECT_TRUE(status.ok() ||
                  status.error_code() == grpc::StatusCode::FAILED_PRECONDITION)
          << status.error_message();
    }
  });
  for (int i = 0; i < 200; ++i) {
    const Outcome outcome = Call(plain);  // may share a batch
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.error_message();
    EXPECT_TRUE(maker.Check(outcome.response));
  }
  caller.join();
  ended = true;
  owner.join();
}

TEST_F(SharedMemoryTest, ClientRefersToWhatLiesInItsRegions) {
  Start();
  auto client = Client::Create({.target = tcp_address()});
  ASSERT_TRUE(client.ok());
  auto region = (*client)->CreateSharedMemoryRegion({.size_bytes = 1 << 16});
  ASSERT_TRUE(region.ok()) << region.status();
  EXPECT_EQ(Metric("attention_shared_memory_regions"), 1);
  float* const shared = static_cast<float*>((*region)->data());
  std::vector<float> values(3 * 8 * 4);
  for (float& value : values) {
    value = std::uniform_real_distribution<float>(-1, 1)(random_);
  }
  std::memcpy(shared, values.data(), values.size() * sizeof(float));

  AttentionRequest request;
  request.query = TensorView::Contiguous(values.data(), {1, 8, 1, 4}, 4);
  request.key = TensorView::Contiguous(values.data() + 32, {1, 8, 1, 4}, 4);
  request.value = TensorView::Contiguous(values.data() + 64, {1, 8, 1, 4}, 4);
  request.return_log_sum_exp = true;
  const auto plain = (*client)->Compute(request);
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(Metric("attention_shared_memory_bytes_total"), 0);

  request.query.data = shared;  // the key stays inline
  request.value.data = shared + 64;
  request.output_buffer = {shared + 1000, 32 * sizeof(float)};
  request.log_sum_exp_buffer = {shared + 2000, 8 * sizeof(float)};
  const auto result = (*client)->Compute(request);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->output, "");
  EXPECT_EQ(std::string(reinterpret_cast<char*>(shared + 1000), 128),
            plain->output);
  EXPECT_EQ(std::string(reinterpret_cast<char*>(shared + 2000), 32),
            plain->log_sum_exp);
  EXPECT_EQ(Metric("attention_shared_memory_bytes_total",
                   {{"direction", "received"}}),
            2 * 128);

  EXPECT_TRUE((*region)->Renew().ok());
  AttentionRequest outside = request;
  outside.output_buffer = {values.data(), 128};
  EXPECT_TRUE(absl::IsInvalidArgument((*client)->Compute(outside).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      (*client)->CreateSharedMemoryRegion({.size_bytes = 0}).status()));
  region->reset();
  EXPECT_EQ(Metric("attention_shared_memory_regions"), 0);
}

TEST_F(SharedMemoryTest, ClientIsToldWhyThereIsNoRegion) {
  StartServer();
  auto client = Client::Create({.target = tcp_address()});
  ASSERT_TRUE(client.ok());
  const auto region = (*client)->CreateSharedMemoryRegion({.size_bytes = 100});
  EXPECT_TRUE(absl::IsUnimplemented(region.status())) << region.status();
  EXPECT_EQ(ErrorReason(region.status()), "UNSUPPORTED");
}

}  // namespace
}  // namespace attention::test
