// Sends to servers on this machine with all tensors in memory that they share.
#ifndef ATTENTION_CLIENT_LOADTEST_REGION_SENDER_H_
#define ATTENTION_CLIENT_LOADTEST_REGION_SENDER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cpp/attention_client.h"
#include "client/loadtest/input_set.h"
#include "client/loadtest/request_sender.h"
#include "client/loadtest/server_caller.h"
#include "client/loadtest/shape_mix.h"
#include "client/loadtest/tensor_memory.h"

namespace attention::loadtest {

// Servers take turns. The inputs are copied to each server's region before the
// run; results go to slots of another, one per outstanding request.
class RegionSender : public RequestSender {
 public:
  struct Options {
    int64_t max_outstanding = 1;           // that Send is called with
    int64_t max_bytes = int64_t{1} << 30;  // of results, per server
    // Copy results out of their slots, for whoever looks at them.
    bool copy_results = false;
  };

  // `inputs` are those of `mix`; they and the callers outlive the sender.
  // Errors are those of `make_memory`, and InvalidArgument when
  // max_bytes does not hold the results of max_outstanding requests.
  static absl::StatusOr<std::unique_ptr<RegionSender>> Create(
      const std::vector<ServerCaller*>& callers, const ShapeMix& mix,
      const InputSet& inputs, const Options& options,
      MakeTensorMemory make_memory);

  ~RegionSender() override;

  // A request of `inputs`.
  void Send(const AttentionRequest& request, Client::Done done) override;

 private:
  class Server;

  RegionSender() = default;

  std::vector<std::unique_ptr<Server>> servers_;
  std::atomic<uint64_t> next_{0};
};

}  // namespace attention::loadtest

#endif  // ATTENTION_CLIENT_LOADTEST_REGION_SENDER_H_
