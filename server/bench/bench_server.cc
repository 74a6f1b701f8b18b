#include "server/bench/bench_server.h"

#include <malloc.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "attention/v1/attention.grpc.pb.h"
#include "event_loop/event_loops.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/support/slice.h"
#include "server/bench/null_device.h"
#include "server/bench/stream_echo.h"
#include "server/lifecycle/attention_server.h"
#include "server/lifecycle/grpc_settings.h"
#include "server/lifecycle/host_memory.h"
#include "server/lifecycle/processor_confinement.h"
#include "server/logging/log.h"
#include "server/transport/call_acceptor.h"
#include "server/transport/write_watch.h"

namespace attention {
namespace {

constexpr int64_t kMaxMessageBytes = int64_t{1} << 30;
constexpr size_t kPoolBytes = size_t{4} << 30;

class EchoService
    : public v1::AttentionService::WithRawCallbackMethod_ComputeAttention<
          v1::AttentionService::WithRawCallbackMethod_StreamDecode<
              v1::AttentionService::Service>> {
 public:
  EchoService(MemoryPool* pool, bool gathers)
      : pool_(*pool), gathers_(gathers) {}

  grpc::ServerUnaryReactor* ComputeAttention(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
      grpc::ByteBuffer* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const std::optional<size_t> bytes = AnswerBytesOf(*context);
    if (!bytes.has_value() || (gathers_ && !Gather(*request))) {
      reactor->Finish(
          {grpc::StatusCode::INTERNAL, "not a benchmark's request"});
      return reactor;
    }
    absl::StatusOr<Block> answer = pool_.Allocate(*bytes);
    if (!answer.ok()) {
      reactor->Finish({grpc::StatusCode::RESOURCE_EXHAUSTED,
                       std::string(answer.status().message())});
      return reactor;
    }
    *response = AnswerFrom(*std::move(answer));
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* StreamDecode(
      grpc::CallbackServerContext* context) override {
    return StartStreamEcho(*context, &pool_);
  }

 private:
  bool Gather(const grpc::ByteBuffer& request) {
    absl::StatusOr<Block> staging = pool_.Allocate(request.Length());
    std::vector<grpc::Slice> slices;
    if (!staging.ok() || !request.Dump(&slices).ok()) return false;
    char* to = static_cast<char*>(staging->data());
    for (const grpc::Slice& slice : slices) {
      std::memcpy(to, slice.begin(), slice.size());
      to += slice.size();
    }
    return true;
  }

  MemoryPool& pool_;
  const bool gathers_;
};

class StubService : public v1::AttentionService::CallbackService {
 public:
  explicit StubService(MemoryPool* pool) : pool_(*pool) {}

  grpc::ServerUnaryReactor* ComputeAttention(
      grpc::CallbackServerContext* context,
      const v1::ComputeAttentionRequest* request,
      v1::ComputeAttentionResponse* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const std::string* const inputs[] = {&request->query(), &request->key(),
                                         &request->value()};
    size_t input_bytes = 0;
    for (const std::string* input : inputs) input_bytes += input->size();
    absl::StatusOr<Block> staging = pool_.Allocate(input_bytes);
    // As many query heads as K/V heads: the answer has the query's size.
    absl::StatusOr<Block> output = pool_.Allocate(request->query().size());
    if (!staging.ok() || !output.ok()) {
      reactor->Finish({grpc::StatusCode::RESOURCE_EXHAUSTED, "out of memory"});
      return reactor;
    }
    char* to = static_cast<char*>(staging->data());
    for (const std::string* input : inputs) {
      std::memcpy(to, input->data(), input->size());
      to += input->size();
    }
    response->set_data_type(request->data_type());
    *response->mutable_output_descriptor() = request->query_descriptor();
    response->set_output(output->data(), output->size());
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  MemoryPool& pool_;
};

void PrintAddresses(const std::vector<std::string>& addresses) {
  for (const std::string& address : addresses) std::puts(address.c_str());
  std::fflush(stdout);
}

void WaitForEndOfInput() {
  while (std::getchar() != EOF) {
  }
}

// What servers of the benchmark's own have in common.
class PlainServer {
 public:
  explicit PlainServer(const BenchServerOptions& options)
      : options_(options), ports_(options.listen.size()) {
    InitializeGrpc();
    ConfigureServer(kMaxMessageBytes, kPoolBytes, builder_);
    for (const auto& [name, value] : options.channel_arguments) {
      builder_.AddChannelArgument(name, value);
    }
    for (size_t i = 0; i < ports_.size(); ++i) {
      builder_.AddListeningPort(options.listen[i],
                                grpc::InsecureServerCredentials(), &ports_[i]);
    }
  }

  grpc::ServerBuilder& builder() { return builder_; }

  // Null when it cannot.
  std::unique_ptr<grpc::Server> Start() {
    const ProcessorConfinement confinement(options_.rpc_processors);
    return builder_.BuildAndStart();
  }

  void Serve() const {
    std::vector<std::string> bound;
    for (size_t i = 0; i < ports_.size(); ++i) {
      const std::string& address = options_.listen[i];
      bound.push_back(absl::StartsWith(address, "unix:")
                          ? address
                          : absl::StrCat(address.substr(0, address.rfind(':')),
                                         ":", ports_[i]));
    }
    PrintAddresses(bound);
    WaitForEndOfInput();
  }

 private:
  const BenchServerOptions& options_;
  std::vector<int> ports_;
  grpc::ServerBuilder builder_;
};

absl::Status RunCallbacks(const BenchServerOptions& options,
                          grpc::Service& service) {
  PlainServer plain(options);
  plain.builder().RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = plain.Start();
  if (server == nullptr) return absl::UnavailableError("cannot start");
  plain.Serve();
  server->Shutdown();
  server->Wait();
  return absl::OkStatus();
}

absl::Status RunQueue(const BenchServerOptions& options, MemoryPool* pool) {
  WriteWatch writes(&Clock::Real(), absl::InfiniteDuration());
  CallAcceptor acceptor(StreamEchoMethods(pool), &writes);
  PlainServer plain(options);
  acceptor.Register(plain.builder());
  std::vector<std::unique_ptr<grpc::CompletionQueue>> queues;
  std::vector<grpc::ServerCompletionQueue*> calls;
  for (int i = 0; i < EventLoops::DefaultCount(); ++i) {
    std::unique_ptr<grpc::ServerCompletionQueue> queue =
        plain.builder().AddCompletionQueue();
    calls.push_back(queue.get());
    queues.push_back(std::move(queue));
  }
  const std::unique_ptr<grpc::Server> server = plain.Start();
  if (server == nullptr) return absl::UnavailableError("cannot start");
  const ProcessorConfinement confinement(options.rpc_processors);
  const EventLoops loops(std::move(queues), options.poll_time.value_or(
                                                EventLoop::DefaultPollTime()));
  for (size_t i = 0; i < calls.size(); ++i) {
    acceptor.Start(calls[i], &loops.at(i));
  }
  plain.Serve();
  server->Shutdown(absl::ToChronoTime(absl::Now()));
  acceptor.Stop();
  return absl::OkStatus();
}

absl::Status RunReal(const BenchServerOptions& options, MemoryPool* pool) {
  if (!options.channel_arguments.empty()) {
    return absl::InvalidArgumentError(
        "the server's channel arguments are those of grpc_settings.cc");
  }
  InitializeLog(LogFormat::kText, LogLevel::kWarning);
  Metrics metrics({});
  const std::unique_ptr<Device> device = MakeNullDevice(pool, &metrics);
  AttentionServer::Options server_options;
  server_options.listen = options.listen;
  server_options.drain_delay = absl::ZeroDuration();
  server_options.rpc_processors = options.rpc_processors;
  server_options.poll_time =
      options.poll_time.value_or(server_options.poll_time);
  auto server = AttentionServer::Create(server_options, {device.get()});
  if (!server.ok()) return server.status();
  if (auto s = (*server)->Start(); !s.ok()) return s;
  PrintAddresses((*server)->addresses());
  WaitForEndOfInput();
  (*server)->Drain(absl::Seconds(1));
  return absl::OkStatus();
}

}  // namespace

absl::Status RunBenchServer(const BenchServerOptions& options) {
  TuneAllocator();
  if (options.malloc_arenas > 0) mallopt(M_ARENA_MAX, options.malloc_arenas);
  MemoryPool pool({.name = "host", .budget_bytes = kPoolBytes},
                  MakeHostAllocator());
  if (options.mode == "server") return RunReal(options, &pool);
  if (options.mode == "queue") return RunQueue(options, &pool);
  if (options.mode == "stubs") {
    StubService service(&pool);
    return RunCallbacks(options, service);
  }
  if (options.mode == "echo" || options.mode == "gather") {
    EchoService service(&pool, options.mode == "gather");
    return RunCallbacks(options, service);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("there is no server \"", options.mode, "\""));
}

}  // namespace attention
