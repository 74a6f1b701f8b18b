// The C++ client's ComputeStream and a server, against the reference.
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "client/cpp/compute_stream.h"
#include "tests/server/lifecycle/server_fixture.h"
#include "tests/server/metrics/metric_reader.h"

namespace attention::test {
namespace {

class ComputeStreamClientTest : public ServerTest {
 protected:
  void SetUp() override {
    AttentionServer::Options options;
    options.shared_memory.emplace();
    StartServer(options);
    auto client = Client::Create({.target = unix_address()});
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }

  // The default of RequestSpec, with its tensors.
  static AttentionRequest View(const v1::ComputeAttentionRequest& proto) {
    const auto view = [](const std::string& data,
                         const v1::TensorDescriptor& descriptor) {
      return TensorView::Contiguous(
          data.data(), {descriptor.shape().begin(), descriptor.shape().end()},
          sizeof(float));
    };
    AttentionRequest request;
    request.query = view(proto.query(), proto.query_descriptor());
    request.key = view(proto.key(), proto.key_descriptor());
    request.value = view(proto.value(), proto.value_descriptor());
    request.return_log_sum_exp = proto.return_log_sum_exp();
    return request;
  }

  static v1::ComputeAttentionResponse ToResponse(const AttentionResult& result) {
    v1::ComputeAttentionResponse response;
    response.set_data_type(v1::DATA_TYPE_FLOAT32);
    response.mutable_output_descriptor()->mutable_shape()->Add(
        result.output_shape.begin(), result.output_shape.end());
    response.mutable_log_sum_exp_descriptor()->mutable_shape()->Add(
        result.log_sum_exp_shape.begin(), result.log_sum_exp_shape.end());
    response.set_output(result.output);
    response.set_log_sum_exp(result.log_sum_exp);
    return response;
  }

  std::vector<RequestMaker> MakeRequests(int count) {
    std::vector<RequestMaker> makers;
    for (int i = 0; i < count; ++i) {
      makers.emplace_back(RequestSpec{.query_tokens = 1 + i % 9,
                                      .key_tokens = 1 + i % 31,
                                      .return_log_sum_exp = true},
                          random_);
    }
    return makers;
  }

  std::unique_ptr<Client> client_;
};

TEST_F(ComputeStreamClientTest, AnswersAreRight) {
  const std::vector<RequestMaker> makers = MakeRequests(200);
  const auto stream = client_->OpenComputeStream();
  std::vector<absl::StatusOr<AttentionResult>> results(makers.size());
  for (size_t i = 0; i < makers.size(); ++i) {
    stream->Send(View(makers[i].request()), [&results, i](auto result) {
      results[i] = std::move(result);
    });
  }
  EXPECT_EQ(stream->Close(), absl::OkStatus());
  for (size_t i = 0; i < makers.size(); ++i) {
    ASSERT_TRUE(results[i].ok()) << results[i].status();
    EXPECT_TRUE(makers[i].Check(ToResponse(*results[i])));
  }
}

// Inputs and results in one region, which may go with the last answer.
TEST_F(ComputeStreamClientTest, TensorsMayLieInSharedMemory) {
  constexpr size_t kSlotBytes = 8 << 10;
  const std::vector<RequestMaker> makers = MakeRequests(50);
  auto region = client_->CreateSharedMemoryRegion(
      {.size_bytes = 2 * kSlotBytes * makers.size()});
  ASSERT_TRUE(region.ok()) << region.status();
  const auto stream = client_->OpenComputeStream();
  std::vector<absl::StatusOr<AttentionResult>> results(makers.size());
  std::vector<AttentionRequest> requests;
  char* next = static_cast<char*>((*region)->data());
  size_t moved_bytes = 0;
  for (size_t i = 0; i < makers.size(); ++i) {
    AttentionRequest request = View(makers[i].request());
    char* place = next;
    for (TensorView* tensor : {&request.query, &request.key, &request.value}) {
      std::memcpy(place, tensor->data, tensor->size_bytes);
      tensor->data = place;
      place += tensor->size_bytes;
      moved_bytes += tensor->size_bytes;
    }
    ASSERT_LE(place, next + kSlotBytes);
    next += kSlotBytes;
    const size_t rows = request.query.size_bytes / (8 * sizeof(float));
    request.output_buffer = {next, request.query.size_bytes};
    request.log_sum_exp_buffer = {next + request.query.size_bytes,
                                  rows * sizeof(float)};
    next += kSlotBytes;
    stream->Send(request, [&results, i](auto result) {
      results[i] = std::move(result);
    });
    requests.push_back(std::move(request));
  }
  EXPECT_EQ(stream->Close(), absl::OkStatus());
  for (size_t i = 0; i < makers.size(); ++i) {
    ASSERT_TRUE(results[i].ok()) << results[i].status();
    EXPECT_TRUE(results[i]->output.empty());
    const auto fetch = [](const ResultBuffer& buffer) {
      return std::string(static_cast<const char*>(buffer.data),
                         buffer.size_bytes);
    };
    results[i]->output = fetch(requests[i].output_buffer);
    results[i]->log_sum_exp = fetch(requests[i].log_sum_exp_buffer);
    EXPECT_TRUE(makers[i].Check(ToResponse(*results[i])));
  }
  EXPECT_EQ(MetricReader(server().metrics())
                .Sum("attention_shared_memory_bytes_total",
                     {{"direction", "received"}}),
            moved_bytes);
}

}  // namespace
}  // namespace attention::test
