#include "server/lifecycle/grpc_settings.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "google/protobuf/stubs/logging.h"
#include "grpc/support/log.h"
#include "grpcpp/ext/channelz_service_plugin.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/resource_quota.h"
#include "server/logging/log.h"
#include "server/rpc/unparsed_refusal.h"

namespace attention {
namespace {

int Milliseconds(absl::Duration duration) {
  return static_cast<int>(absl::ToInt64Milliseconds(duration));
}

// One line per place in gRPC's sources and interval: some repeat per
// connection.
void LogGrpcMessage(gpr_log_func_args* args) {
  static RateLimitedLog* const log = new RateLimitedLog();
  if (args->severity != GPR_LOG_SEVERITY_ERROR) return;
  absl::string_view file = args->file;
  file.remove_prefix(file.rfind('/') + 1);
  log->Warn("grpc", absl::StrCat(file, ":", args->line),
            absl::UnknownError(args->message));
}

}  // namespace

void InitializeGrpc() {
  [[maybe_unused]] static const bool once = [] {
    gpr_set_log_function(LogGrpcMessage);
    // Distributions build Abseil with its checks: every lock, gRPC's included,
    // would be entered into one global graph.
    absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
    // Would write a line to stderr for every text that is not UTF-8, as often
    // as callers send one. The request is refused, and that is logged.
    google::protobuf::SetLogHandler(nullptr);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::channelz::experimental::InitChannelzService();
    return true;
  }();
}

void ConfigureServer(int64_t max_message_bytes, size_t max_queued_bytes,
                     grpc::ServerBuilder& builder) {
  // The options module above has checked that the size fits into an int.
  builder.SetMaxReceiveMessageSize(static_cast<int>(max_message_bytes));
  // What is too large to send is refused with a reason before it is computed.
  builder.SetMaxSendMessageSize(-1);

  // A few megabytes of zeros unpack to gigabytes before any limit is checked,
  // and tensors do not compress. Callers that compress get UNIMPLEMENTED.
  for (grpc_compression_algorithm algorithm :
       {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder.SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);

  std::vector<
      std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>>
      interceptors;
  interceptors.push_back(std::make_unique<UnparsedRefusal>());
  builder.experimental().SetInterceptorCreators(std::move(interceptors));

  // A peer that vanished without a word (a lost host, a dropped NAT entry) is
  // found within 80 s, instead of gRPC's 2 h. Clients may ping every 10 s, also
  // while no call is under way, without being thrown out for it.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS,
                             Milliseconds(absl::Seconds(60)));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                             Milliseconds(kPeerTimeout));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(
      GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
      Milliseconds(absl::Seconds(10)));

  // Clients that keep one connection for ever never see new replicas. Calls
  // under way may finish, however long they take.
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS,
                             Milliseconds(absl::Minutes(30)));

  // A connection that sends no HTTP/2 preface is a stray.
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                             Milliseconds(kPeerTimeout));

  // Calls of one connection beyond this wait at the client.
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 4096);

  // Bounds what gRPC holds of messages that are still arriving or waiting.
  // Above it, gRPC slows readers down and in the end refuses calls, where
  // otherwise the process would be killed for its memory.
  grpc::ResourceQuota quota("attention-server");
  quota.Resize(max_queued_bytes + 4 * static_cast<size_t>(max_message_bytes));
  builder.SetResourceQuota(quota);
}

}  // namespace attention
