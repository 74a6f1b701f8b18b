// Streams to a server with a device and a clock that the test moves.
#ifndef ATTENTION_TESTS_SERVER_LIFECYCLE_UPLOAD_FIXTURE_H_
#define ATTENTION_TESTS_SERVER_LIFECYCLE_UPLOAD_FIXTURE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "attention/v1/attention.pb.h"
#include "tests/server/lifecycle/stream_fixture.h"
#include "tests/server/metrics/metric_reader.h"
#include "tests/support/fake_clock.h"

namespace attention::test {

// An id of an upload.
inline const std::string kUploadId(16, 'u');

// That have arrived.
int64_t TotalBytes(const v1::UploadState& state);
// Whether all of the chunk has.
bool Has(const v1::UploadState& state, const v1::StreamAttentionRequest& chunk);

class UploadTest : public ServerTest {
 protected:
  // Before the device.
  ~UploadTest() override { StopServer(); }

  void Start(AttentionServer::Options options = {});

  double Metric(const std::string& name,
                const MetricReader::Labels& labels = {});
  void AwaitMetric(const std::string& name, double value);
  // Blocks until the server is done with every stream.
  void AwaitNoStreams();

  static void ExpectRefused(const Outcome& outcome, grpc::StatusCode code,
                            const std::string& reason,
                            const std::string& message);

  FakeClock clock_;
  PuppetDevice device_{"puppet:0", 1, size_t{1} << 26};
  size_t expected_memory_ = 0;  // of uploads that wait
};

}  // namespace attention::test

#endif  // ATTENTION_TESTS_SERVER_LIFECYCLE_UPLOAD_FIXTURE_H_
