// Sends to real servers.
#ifndef ATTENTION_CLIENT_LOADTEST_CLIENT_SENDER_H_
#define ATTENTION_CLIENT_LOADTEST_CLIENT_SENDER_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cpp/attention_client.h"
#include "client/loadtest/request_sender.h"
#include "client/loadtest/server_caller.h"

namespace attention::loadtest {

// Servers take turns. Destroying it waits for outstanding calls.
class ClientSender : public RequestSender {
 public:
  struct Options {
    std::vector<std::string> targets;  // not empty
    int channels_per_target = 2;
    absl::Duration timeout = absl::Seconds(60);  // per call
    // Retries would hide refusals, hence none unless asked for.
    int max_attempts = 1;
    std::optional<absl::Duration> poll_time;  // as Client::Options
    Transport transport = Transport::kMessage;
    // Requests are messages of streams, one for each channel.
    bool uses_streams = false;
  };

  // Errors are Client::Create's.
  static absl::StatusOr<std::unique_ptr<ClientSender>> Create(
      const Options& options);

  void Send(const AttentionRequest& request, Client::Done done) override;

  // In the order of the targets.
  std::vector<Client*> clients() const;
  std::vector<ServerCaller*> callers();

  // Asks every server what it is, in the order of the targets. The error of the
  // first that does not answer within `timeout` names the target.
  absl::StatusOr<std::vector<v1::GetServerInfoResponse>> GetServerInfos(
      absl::Duration timeout);

 private:
  explicit ClientSender(const Options& options) : targets_(options.targets) {}

  const std::vector<std::string> targets_;
  std::vector<std::unique_ptr<Client>> clients_;  // one per target
  std::deque<ServerCaller> callers_;              // likewise
  std::atomic<uint64_t> next_{0};
};

}  // namespace attention::loadtest

#endif  // ATTENTION_CLIENT_LOADTEST_CLIENT_SENDER_H_
