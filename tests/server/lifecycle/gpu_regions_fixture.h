// A server with fake GPUs, which reach the tensors of requests without a copy
// by the server's processors.
#ifndef ATTENTION_TESTS_SERVER_LIFECYCLE_GPU_REGIONS_FIXTURE_H_
#define ATTENTION_TESTS_SERVER_LIFECYCLE_GPU_REGIONS_FIXTURE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "attention/v1/attention.grpc.pb.h"
#include "tests/server/engine/fake_cuda_runtime.h"
#include "tests/server/lifecycle/server_fixture.h"
#include "tests/server/metrics/metric_reader.h"

namespace attention::test {

class GpuRegionsTest : public ServerTest {
 protected:
  void Start(AttentionServer::Options options = {}) {
    if (!options.shared_memory.has_value()) options.shared_memory.emplace();
    options.devices.warm_up = false;
    StartServer(options, nullptr, &cuda_);
    stub_ = v1::AttentionService::NewStub(channel());
  }

  // Before the GPUs go.
  void TearDown() override { StopServer(); }

  static void Refer(const std::string& region, size_t offset, size_t size,
                    v1::RegionReference* reference) {
    reference->set_region_name(region);
    reference->set_byte_offset(static_cast<int64_t>(offset));
    reference->set_byte_size(static_cast<int64_t>(size));
  }

  // Tensors of 400 KB each, the output too, that take little to compute.
  RequestMaker LargeRequest() {
    RequestSpec spec;
    spec.batch = 20;
    spec.query_tokens = 50;
    spec.key_tokens = 50;
    spec.query_heads = 10;
    spec.kv_heads = 10;
    spec.head_dim_qk = 10;
    spec.head_dim_v = 10;
    spec.return_log_sum_exp = true;
    return RequestMaker(spec, random_);
  }

  double Metric(const std::string& name) {
    return MetricReader(server().metrics()).Sum(name);
  }

  const std::string token_ = std::string(32, 't');
  FakeCudaRuntime cuda_{2};
  std::unique_ptr<v1::AttentionService::Stub> stub_;
};

}  // namespace attention::test

#endif  // ATTENTION_TESTS_SERVER_LIFECYCLE_GPU_REGIONS_FIXTURE_H_
