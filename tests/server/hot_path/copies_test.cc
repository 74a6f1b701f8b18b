// How often the bytes of a payload are copied by the process that serves it, with
// gRPC, protobuf and all: as often as ARCHITECTURE.md ("Copies") says. The caller
// is in the process too, but hands its bytes over and takes the answer's without
// a copy. A program of its own, because it replaces memcpy.
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"

#include "tests/server/hot_path/copying_runtime.h"
#include "tests/server/lifecycle/server_fixture.h"
#include "tests/server/regions/shared_memory_object.h"
#include "tests/support/copy_counter.h"

namespace attention::test {
namespace {

using ::google::protobuf::internal::WireFormatLite;
using ::google::protobuf::io::CodedOutputStream;
using Request = v1::ComputeAttentionRequest;

enum class Transport { kTcp, kUnix, kSharedMemory };

constexpr int64_t kTokenBytes = 8 * 128 * sizeof(float);
constexpr char kToken[] = "a token of 16 or more bytes";

struct Case {
  const char* name;
  bool on_gpu;
  Transport transport;
  int64_t tokens;
  int requests_at_once;
  // Of each byte of query, key, value and output.
  int by_host_in;
  int by_device;
};

class CopiesTest : public ServerTest,
                   public ::testing::WithParamInterface<Case> {
 protected:
  // [1, tokens, 8, 128] fp32; of each query's keys only one is visible, which
  // makes it quick to compute.
  static Request Metadata() {
    Request request;
    request.set_data_type(v1::DATA_TYPE_FLOAT32);
    for (auto* tensor :
         {request.mutable_query_descriptor(), request.mutable_key_descriptor(),
          request.mutable_value_descriptor()}) {
      for (int64_t size : {int64_t{1}, GetParam().tokens, int64_t{8},
                           int64_t{128}}) {
        tensor->add_shape(size);
      }
    }
    request.mutable_sliding_window()->set_left(0);
    request.mutable_sliding_window()->set_right(0);
    return request;
  }

  static grpc::Slice Static(const std::string& bytes) {
    return {bytes.data(), bytes.size(), grpc::Slice::STATIC_SLICE};
  }

  // Payloads inline, from memory that stays.
  grpc::ByteBuffer Inline() {
    metadata_ = Metadata().SerializeAsString();
    tensor_ = std::string(tensor_bytes_, '\0');
    std::vector<grpc::Slice> slices = {Static(metadata_)};
    for (int field : {Request::kQueryFieldNumber, Request::kKeyFieldNumber,
                      Request::kValueFieldNumber}) {
      uint8_t header[10];
      uint8_t* end = WireFormatLite::WriteTagToArray(
          field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED, header);
      end = CodedOutputStream::WriteVarint32ToArray(
          static_cast<uint32_t>(tensor_bytes_), end);
      slices.emplace_back(header, end - header);
      slices.push_back(Static(tensor_));
    }
    return {slices.data(), slices.size()};
  }

  grpc::ByteBuffer InRegion() {
    const auto stub = v1::AttentionService::NewStub(Connect(unix_address()));
    v1::RegisterSharedMemoryRegionRequest region;
    region.set_owner_token(kToken);
    region.set_region_name("r");
    region.set_object_name(object_.name());
    region.set_byte_size(input_bytes_ + output_bytes_);
    v1::RegisterSharedMemoryRegionResponse registered;
    grpc::ClientContext context;
    const grpc::Status status =
        stub->RegisterSharedMemoryRegion(&context, region, &registered);
    EXPECT_TRUE(status.ok()) << status.error_message();

    Request request = Metadata();
    request.set_region_owner_token(kToken);
    int64_t offset = 0;
    for (auto* reference :
         {request.mutable_query_reference(), request.mutable_key_reference(),
          request.mutable_value_reference(),
          request.mutable_output_reference()}) {
      reference->set_region_name("r");
      reference->set_byte_offset(offset);
      reference->set_byte_size(tensor_bytes_);
      offset += tensor_bytes_;
    }
    metadata_ = request.SerializeAsString();
    const grpc::Slice slice = Static(metadata_);
    return {&slice, 1};
  }

  // So many calls at the same time; all must succeed.
  void Call(const grpc::ByteBuffer& request, int count) {
    grpc::CompletionQueue queue;
    struct Pending {
      grpc::ClientContext context;
      grpc::Status status;
      grpc::ByteBuffer response;
      std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
    };
    std::vector<Pending> calls(count);
    for (Pending& call : calls) {
      call.reader = stub_->PrepareUnaryCall(
          &call.context, "/attention.v1.AttentionService/ComputeAttention",
          request, &queue);
      call.reader->StartCall();
      call.reader->Finish(&call.response, &call.status, &call);
    }
    for (int i = 0; i < count; ++i) {
      void* tag;
      bool ok;
      ASSERT_TRUE(queue.Next(&tag, &ok));
      const auto& call = *static_cast<Pending*>(tag);
      ASSERT_TRUE(call.status.ok()) << call.status.error_message();
      if (GetParam().transport != Transport::kSharedMemory) {
        ASSERT_GE(call.response.Length(), static_cast<size_t>(output_bytes_));
      }
    }
  }

  const int64_t tensor_bytes_ = GetParam().tokens * kTokenBytes;
  const int64_t input_bytes_ = 3 * tensor_bytes_;
  const int64_t output_bytes_ = tensor_bytes_;
  CopyingRuntime runtime_;
  SharedMemoryObject object_{static_cast<size_t>(input_bytes_ + output_bytes_)};
  std::string metadata_;
  std::string tensor_;
  std::unique_ptr<grpc::GenericStub> stub_;
};

TEST_P(CopiesTest, AreAsManyAsDocumented) {
  const Case& c = GetParam();
  AttentionServer::Options options;
  options.shared_memory = RegionRegistry::Options();
  StartServer(options, nullptr, c.on_gpu ? &runtime_ : nullptr);
  stub_ = std::make_unique<grpc::GenericStub>(Connect(
      c.transport == Transport::kTcp ? tcp_address() : unix_address()));
  const grpc::ByteBuffer request =
      c.transport == Transport::kSharedMemory ? InRegion() : Inline();
  Call(request, 1);  // connects

  const int64_t before = CopiedBytes();
  const int64_t device_before = runtime_.copied_bytes();
  Call(request, c.requests_at_once);
  const int64_t by_device = runtime_.copied_bytes() - device_before;
  const int64_t by_host = CopiedBytes() - before - by_device;
  const int64_t inputs = c.requests_at_once * input_bytes_;
  const int64_t outputs = c.requests_at_once * output_bytes_;
  // Whatever else the process copies, a payload more or less would be a third.
  EXPECT_NEAR(static_cast<double>(by_host) / inputs, c.by_host_in, 0.05);
  // With the room between tensors that share a copy.
  EXPECT_NEAR(static_cast<double>(by_device) / (inputs + outputs), c.by_device,
              0.05);
}

constexpr int64_t kLarge = 1024;  // tensors of 4 MiB
constexpr int64_t kSmall = 16;    // of 64 KiB

INSTANTIATE_TEST_SUITE_P(
    Ways, CopiesTest,
    ::testing::Values(
        Case{"CpuTcp", false, Transport::kTcp, kLarge, 1, 1, 0},
        Case{"CpuUnix", false, Transport::kUnix, kLarge, 1, 1, 0},
        Case{"CpuShared", false, Transport::kSharedMemory, kLarge, 1, 0, 0},
        Case{"CpuSmallOnes", false, Transport::kTcp, kSmall, 64, 1, 0},
        Case{"GpuTcp", true, Transport::kTcp, kLarge, 1, 1, 1},
        Case{"GpuUnix", true, Transport::kUnix, kLarge, 1, 1, 1},
        Case{"GpuShared", true, Transport::kSharedMemory, kLarge, 1, 0, 1},
        Case{"GpuSmallOnes", true, Transport::kTcp, kSmall, 64, 1, 1}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace attention::test
