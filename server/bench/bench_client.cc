#include "server/bench/bench_client.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "client/cpp/attention_client.h"
#include "client/cpp/messages.h"
#include "client/cpp/request_serializer.h"
#include "event_loop/event_loop.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/security/credentials.h"
#include "server/bench/bench_server.h"
#include "server/bench/step_callers.h"

namespace attention {
namespace {

constexpr int64_t kHeads = 8;
constexpr int64_t kHeadDim = 64;
constexpr int64_t kTokenBytes = kHeads * kHeadDim * 2;
constexpr int kMinCalls = 5;
constexpr char kMethod[] = "/attention.v1.AttentionService/ComputeAttention";

// A request and the memory of its tensors.
struct Problem {
  int64_t queries = 0;
  int64_t keys = 0;
  std::vector<char> query;
  std::vector<char> key;
  std::vector<char> value;

  AttentionRequest Request() const {
    AttentionRequest request;
    request.data_type = DataType::kBFloat16;
    const auto view = [](const std::vector<char>& data, int64_t tokens) {
      return TensorView::Contiguous(data.data(), {1, tokens, kHeads, kHeadDim},
                                    2);
    };
    request.query = view(query, queries);
    request.key = view(key, keys);
    request.value = view(value, keys);
    return request;
  }
};

absl::StatusOr<Problem> MakeProblem(const std::string& size) {
  Problem problem;
  absl::string_view text = size;
  int64_t unit = 1024;
  if (size == "decode") {
    problem.queries = 1;
    problem.keys = 512;
  } else {
    if (absl::ConsumeSuffix(&text, "MiB")) {
      unit <<= 10;
    } else if (!absl::ConsumeSuffix(&text, "KiB")) {
      return absl::InvalidArgumentError(absl::StrCat("not a size: ", size));
    }
    int64_t count = 0;
    if (!absl::SimpleAtoi(text, &count) || count * unit < 4 * kTokenBytes) {
      return absl::InvalidArgumentError(absl::StrCat("not a size: ", size));
    }
    problem.queries = problem.keys = count * unit / (4 * kTokenBytes);
  }
  problem.query.assign(problem.queries * kTokenBytes, 1);
  problem.key.assign(problem.keys * kTokenBytes, 2);
  problem.value.assign(problem.keys * kTokenBytes, 3);
  return problem;
}

// One of the callers; makes one call after the other.
class Caller {
 public:
  virtual ~Caller() = default;
  virtual absl::Status Call() = 0;
};

class RawCaller : public Caller {
 public:
  RawCaller(std::shared_ptr<grpc::Channel> channel, grpc::ByteBuffer request,
            size_t answer_bytes)
      : stub_(std::move(channel)),
        request_(std::move(request)),
        answer_bytes_(absl::StrCat(answer_bytes)),
        answer_(answer_bytes + 4096) {}

  absl::Status Call() override {
    grpc::ClientContext context;
    context.AddMetadata(kAnswerBytesKey, answer_bytes_);
    grpc::ByteBuffer response;
    grpc::Status status;
    absl::Notification done;
    stub_.UnaryCall(&context, kMethod, grpc::StubOptions(), &request_,
                    &response, [&](grpc::Status s) {
                      status = std::move(s);
                      done.Notify();
                    });
    done.WaitForNotification();
    if (!status.ok()) return absl::UnknownError(status.error_message());
    std::vector<grpc::Slice> slices;
    if (response.Length() > answer_.size() || !response.Dump(&slices).ok()) {
      return absl::InternalError("not the answer that was asked for");
    }
    char* to = answer_.data();
    for (const grpc::Slice& slice : slices) {
      std::memcpy(to, slice.begin(), slice.size());
      to += slice.size();
    }
    return absl::OkStatus();
  }

 private:
  grpc::GenericStub stub_;
  const grpc::ByteBuffer request_;
  const std::string answer_bytes_;
  std::vector<char> answer_;
};

class LibraryCaller : public Caller {
 public:
  LibraryCaller(std::shared_ptr<Client> client, Transport transport,
                AttentionRequest request)
      : client_(std::move(client)),
        transport_(transport),
        request_(std::move(request)) {}

  absl::Status Call() override {
    return client_->Compute(request_, {.transport = transport_}).status();
  }

 private:
  const std::shared_ptr<Client> client_;
  const Transport transport_;
  const AttentionRequest request_;
};

using Callers = std::vector<std::unique_ptr<Caller>>;

struct Traffic {
  Problem problem;
  Callers callers;  // they read the problem's tensors
  std::unique_ptr<StepCallers> step_callers;  // in place of both
};

using Channels = std::vector<std::shared_ptr<grpc::Channel>>;

Channels MakeChannels(const BenchClientOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  for (const auto& [name, value] : options.channel_arguments) {
    arguments.SetInt(name, value);
  }
  Channels channels;
  for (int i = 0; i < options.channels; ++i) {
    channels.push_back(grpc::CreateCustomChannel(
        options.target, grpc::InsecureChannelCredentials(), arguments));
  }
  return channels;
}

absl::StatusOr<Callers> MakeCallers(const BenchClientOptions& options,
                                    const Problem& problem) {
  Callers callers;
  if (options.kind == "library" || options.kind == "stream") {
    const Transport transport = options.kind == "stream" ? Transport::kStream
                                                         : Transport::kMessage;
    auto client = Client::Create(
        {.target = options.target,
         .channel_count = options.channels,
         .poll_time = options.poll_time});
    if (!client.ok()) return client.status();
    const std::shared_ptr<Client> shared = *std::move(client);
    for (int i = 0; i < options.callers; ++i) {
      callers.push_back(
          std::make_unique<LibraryCaller>(shared, transport,
                                          problem.Request()));
    }
    return callers;
  }
  const Channels channels = MakeChannels(options);
  const auto memory = RequestMemory::Create(0);
  auto request = SerializeRequest(problem.Request(), RegionTable(), *memory);
  if (!request.ok()) return request.status();
  for (int i = 0; i < options.callers; ++i) {
    callers.push_back(std::make_unique<RawCaller>(
        channels[i % channels.size()], *request, problem.query.size()));
  }
  return callers;
}

// Lets every caller call for `duration`, at least kMinCalls times; returns the
// latencies.
absl::StatusOr<std::vector<absl::Duration>> CallFor(absl::Duration duration,
                                                    const Callers& callers) {
  absl::Mutex mutex;
  absl::Status failure;
  std::vector<absl::Duration> latencies;
  std::vector<std::thread> threads;
  const absl::Time end = absl::Now() + duration;
  for (const auto& caller : callers) {
    threads.emplace_back([&, caller = caller.get()] {
      absl::Status status;
      std::vector<absl::Duration> own;
      while (status.ok() && (own.size() < kMinCalls || absl::Now() < end)) {
        const absl::Time start = absl::Now();
        status = caller->Call();
        own.push_back(absl::Now() - start);
      }
      absl::MutexLock lock(&mutex);
      failure.Update(status);
      latencies.insert(latencies.end(), own.begin(), own.end());
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (!failure.ok()) return failure;
  return latencies;
}

absl::StatusOr<StepSize> StepSizeOf(const std::string& size) {
  // What a token of 16 query and 8 K/V heads of 128 in bf16 takes, and what a
  // call takes whose tensors are elsewhere.
  if (size == "step") return StepSize{8192, 4096};
  if (size == "reference") return StepSize{256, 64};
  return absl::InvalidArgumentError(absl::StrCat("not a size: ", size));
}

absl::Status MakeTraffic(const BenchClientOptions& options,
                         const std::string& size, Traffic& traffic) {
  if (options.kind == "steps" || options.kind == "callback_steps") {
    const absl::StatusOr<StepSize> step = StepSizeOf(size);
    if (!step.ok()) return step.status();
    traffic.step_callers = StepCallers::Create(
        MakeChannels(options), options.callers, *step,
        options.kind == "callback_steps",
        options.poll_time.value_or(EventLoop::DefaultPollTime()));
    return absl::OkStatus();
  }
  absl::StatusOr<Problem> problem = MakeProblem(size);
  if (!problem.ok()) return problem.status();
  traffic.problem = *std::move(problem);
  auto made = MakeCallers(options, traffic.problem);
  if (!made.ok()) return made.status();
  traffic.callers = *std::move(made);
  return absl::OkStatus();
}

}  // namespace

absl::Status RunBenchClient(const BenchClientOptions& options) {
  std::map<std::string, Traffic> traffic;
  for (std::string size; std::getline(std::cin, size);) {
    const auto [entry, is_new] = traffic.try_emplace(size);
    Traffic& of_size = entry->second;
    const auto call = [&] {
      return of_size.step_callers != nullptr
                 ? of_size.step_callers->CallFor(options.duration)
                 : CallFor(options.duration, of_size.callers);
    };
    if (is_new) {
      if (auto s = MakeTraffic(options, size, of_size); !s.ok()) return s;
      if (auto warm_up = call(); !warm_up.ok()) return warm_up.status();
    }
    const absl::Time start = absl::Now();
    auto latencies = call();
    if (!latencies.ok()) return latencies.status();
    const absl::Duration elapsed = absl::Now() - start;
    const auto middle = latencies->begin() + latencies->size() / 2;
    std::nth_element(latencies->begin(), middle, latencies->end());
    std::printf("%s %.2f %.2f\n", size.c_str(),
                absl::ToDoubleMicroseconds(*middle),
                latencies->size() / absl::ToDoubleSeconds(elapsed));
    std::fflush(stdout);
  }
  return absl::OkStatus();
}

}  // namespace attention
