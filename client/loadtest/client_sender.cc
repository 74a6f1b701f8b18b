#include "client/loadtest/client_sender.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace attention::loadtest {

absl::StatusOr<std::unique_ptr<ClientSender>> ClientSender::Create(
    const Options& options) {
  auto sender = std::unique_ptr<ClientSender>(new ClientSender(options));
  for (const std::string& target : options.targets) {
    absl::StatusOr<std::unique_ptr<Client>> client =
        Client::Create({.target = target,
                        .channel_count = options.channels_per_target,
                        .timeout = options.timeout,
                        .max_attempts = options.max_attempts,
                        .poll_time = options.poll_time});
    if (!client.ok()) return client.status();
    sender->clients_.push_back(*std::move(client));
    sender->callers_.emplace_back(
        sender->clients_.back().get(),
        ServerCaller::Options{.transport = options.transport,
                              .stream_count = options.uses_streams
                                                  ? options.channels_per_target
                                                  : 0});
  }
  return sender;
}

void ClientSender::Send(const AttentionRequest& request, Client::Done done) {
  const uint64_t turn = next_.fetch_add(1, std::memory_order_relaxed);
  callers_[turn % callers_.size()].Call(request, std::move(done));
}

std::vector<Client*> ClientSender::clients() const {
  std::vector<Client*> clients;
  for (const auto& client : clients_) clients.push_back(client.get());
  return clients;
}

std::vector<ServerCaller*> ClientSender::callers() {
  std::vector<ServerCaller*> callers;
  for (ServerCaller& caller : callers_) callers.push_back(&caller);
  return callers;
}

absl::StatusOr<std::vector<v1::GetServerInfoResponse>>
ClientSender::GetServerInfos(absl::Duration timeout) {
  std::vector<v1::GetServerInfoResponse> infos;
  for (size_t i = 0; i < clients_.size(); ++i) {
    absl::StatusOr<v1::GetServerInfoResponse> info =
        clients_[i]->GetServerInfo({.timeout = timeout});
    if (!info.ok()) {
      return absl::Status(
          info.status().code(),
          absl::StrCat(targets_[i], ": ", info.status().message()));
    }
    infos.push_back(*std::move(info));
  }
  return infos;
}

}  // namespace attention::loadtest
