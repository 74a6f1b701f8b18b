// How often a request in a steady stream of equal ones allocates heap memory,
// on any thread: at most the counts that ARCHITECTURE.md ("Hot path") explains.
// A program of its own, because it replaces operator new.
#include <gtest/gtest.h>

#include <string>

#include "attention/v1/attention.pb.h"
#include "tests/server/hot_path/request_path.h"
#include "tests/support/allocation_counter.h"

namespace attention::test {
namespace {

std::string Message() {
  v1::ComputeAttentionRequest request;
  request.set_data_type(v1::DATA_TYPE_FLOAT32);
  for (auto* tensor :
       {request.mutable_query_descriptor(), request.mutable_key_descriptor(),
        request.mutable_value_descriptor()}) {
    for (int64_t size : {1, 16, 4, 32}) tensor->add_shape(size);
  }
  const std::string tensor(1 * 16 * 4 * 32 * sizeof(float), '\0');
  request.set_query(tensor);
  request.set_key(tensor);
  request.set_value(tensor);
  request.set_return_log_sum_exp(true);
  return request.SerializeAsString();
}

constexpr int kRequests = 512;
constexpr int kAtOnce = 64;

struct Case {
  const char* name;
  PathBackend backend;
  // Requests find the device idle and are computed on the thread that brings
  // them, or wait for threads of the device.
  bool is_inline;
  double most;  // allocations per request
};

class AllocationTest : public ::testing::TestWithParam<Case> {};

TEST_P(AllocationTest, SteadyStream) {
  const Case& c = GetParam();
  RequestPath path(c.backend, Message(),
                   c.is_inline ? absl::Hours(1) : absl::ZeroDuration());
  const auto run = [&] {
    if (c.is_inline) return path.RunOneByOne(kRequests);
    size_t bytes = 0;
    for (int i = 0; i < kRequests / kAtOnce; ++i) bytes = path.RunAtOnce(kAtOnce);
    return bytes;
  };
  for (int i = 0; i < 4; ++i) ASSERT_GT(run(), 0u);  // fills pools and caches
  const int64_t before = AllocationsOfAllThreads();
  run();
  const double count =
      static_cast<double>(AllocationsOfAllThreads() - before) / kRequests;
  RecordProperty("allocations_per_request", std::to_string(count));
  EXPECT_LE(count, c.most);
  // gRPC's own are among them, or the counter does not count.
  EXPECT_GE(count, 4);
}

INSTANTIATE_TEST_SUITE_P(
    Paths, AllocationTest,
    // Queued ones share batches as far as they come faster than the device is.
    ::testing::Values(Case{"CpuInline", PathBackend::kCpu, true, 14},
                      Case{"CudaInline", PathBackend::kCuda, true, 17},
                      Case{"CpuQueued", PathBackend::kCpu, false, 15},
                      Case{"CudaQueued", PathBackend::kCuda, false, 18}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace attention::test
