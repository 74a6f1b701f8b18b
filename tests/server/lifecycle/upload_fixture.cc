#include "tests/server/lifecycle/upload_fixture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <utility>

namespace attention::test {
namespace {

int64_t TotalBytes(
    const google::protobuf::RepeatedPtrField<v1::ByteRange>& ranges) {
  int64_t bytes = 0;
  for (const v1::ByteRange& range : ranges) bytes += range.byte_size();
  return bytes;
}

}  // namespace

int64_t TotalBytes(const v1::UploadState& state) {
  return TotalBytes(state.query_ranges()) + TotalBytes(state.key_ranges()) +
         TotalBytes(state.value_ranges());
}

bool Has(const v1::UploadState& state,
         const v1::StreamAttentionRequest& chunk) {
  const auto& ranges = chunk.tensor() == v1::TENSOR_QUERY ? state.query_ranges()
                       : chunk.tensor() == v1::TENSOR_KEY
                           ? state.key_ranges()
                           : state.value_ranges();
  const int64_t begin = chunk.byte_offset();
  const int64_t end = begin + static_cast<int64_t>(chunk.data().size());
  return std::any_of(ranges.begin(), ranges.end(), [&](const auto& range) {
    return range.byte_offset() <= begin &&
           end <= range.byte_offset() + range.byte_size();
  });
}

void UploadTest::Start(AttentionServer::Options options) {
  StartServer(std::move(options), &device_, nullptr, &clock_);
}

double UploadTest::Metric(const std::string& name,
                          const MetricReader::Labels& labels) {
  return MetricReader(server().metrics()).Sum(name, labels);
}

void UploadTest::AwaitMetric(const std::string& name, double value) {
  while (Metric(name) != value) std::this_thread::yield();
}

void UploadTest::AwaitNoStreams() {
  AwaitMetric("attention_requests_in_flight", 0);
  // The streams' memory goes with them, a moment later.
  while (device_.used_memory_bytes() != expected_memory_) {
    std::this_thread::yield();
  }
}

void UploadTest::ExpectRefused(const Outcome& outcome, grpc::StatusCode code,
                               const std::string& reason,
                               const std::string& message) {
  EXPECT_EQ(outcome.status.error_code(), code);
  EXPECT_EQ(ReasonOf(outcome.status), reason);
  EXPECT_THAT(outcome.status.error_message(), testing::HasSubstr(message));
}

}  // namespace attention::test
