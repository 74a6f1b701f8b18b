// Requests that do not wait for each other.
#include "client/cpp/compute_stream.h"

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "attention/v1/attention.grpc.pb.h"
#include "gmock/gmock.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "tests/client/cpp/client_fixture.h"
#include "tests/client/cpp/fake_server.h"

namespace attention {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Request = v1::StreamComputeAttentionRequest;
using Response = v1::StreamComputeAttentionResponse;
using Call = grpc::ServerReaderWriter<Response, Request>;

// A server whose streams go as a test says.
class StreamServer : private v1::AttentionService::Service {
 public:
  // Runs on the server's threads; may block.
  using Handler = std::function<grpc::Status(grpc::ServerContext*, Call*)>;

  explicit StreamServer(Handler handler) : handler_(std::move(handler)) {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    target_ = absl::StrCat("127.0.0.1:", port);
  }
  ~StreamServer() override { server_->Shutdown(); }

  const std::string& target() const { return target_; }

  // The answer whose output is the query.
  static Response Echo(const Request& request) {
    Response response;
    response.set_tag(request.tag());
    FakeServer::Echo(nullptr, request.request(), response.mutable_response());
    return response;
  }

  static grpc::Status EchoAll(grpc::ServerContext*, Call* call) {
    for (Request request; call->Read(&request);) call->Write(Echo(request));
    return grpc::Status::OK;
  }

 private:
  grpc::Status StreamComputeAttention(grpc::ServerContext* context,
                                      Call* call) override {
    return handler_(context, call);
  }

  const Handler handler_;
  std::string target_;
  std::unique_ptr<grpc::Server> server_;
};

class ComputeStreamTest : public AttentionClientTest {
 protected:
  // Different for each index.
  static std::string Bytes(int index) {
    return absl::StrCat("request: ", 1'000'000 + index);
  }
};

TEST_F(ComputeStreamTest, EveryRequestGetsItsOwnAnswer) {
  StreamServer server(StreamServer::EchoAll);
  const auto client = Connect(server.target());
  const auto stream = client->OpenComputeStream();
  std::atomic<int> right = 0;
  for (int i = 0; i < 300; ++i) {
    const std::string bytes = Bytes(i);  // may go at once
    stream->Send(MakeRequest(bytes), [&right, i](auto result) {
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_THAT(result->output_shape, ElementsAre(1, 8, 1, 1));
      right += result->output == Bytes(i);
    });
  }
  EXPECT_TRUE(stream->IsOpen());
  EXPECT_EQ(stream->Close(), absl::OkStatus());
  EXPECT_FALSE(stream->IsOpen());
  EXPECT_EQ(right, 300);
}

TEST_F(ComputeStreamTest, AnswersMayComeInAnyOrder) {
  StreamServer server([](grpc::ServerContext*, Call* call) {
    std::vector<Request> requests(5);
    for (Request& request : requests) EXPECT_TRUE(call->Read(&request));
    for (auto it = requests.rbegin(); it != requests.rend(); ++it) {
      call->Write(StreamServer::Echo(*it));
    }
    return grpc::Status::OK;
  });
  const auto client = Connect(server.target());
  const auto stream = client->OpenComputeStream();
  std::vector<int> order;  // callbacks run one after the other
  for (int i = 0; i < 5; ++i) {
    stream->Send(MakeRequest(Bytes(i)), [&order, i](auto result) {
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(result->output, Bytes(i));
      order.push_back(i);
    });
  }
  EXPECT_EQ(stream->Close(), absl::OkStatus());
  EXPECT_THAT(order, ElementsAre(4, 3, 2, 1, 0));
}

TEST_F(ComputeStreamTest, ACallbackSendsTheNextRequest) {
  StreamServer server(StreamServer::EchoAll);
  const auto client = Connect(server.target());
  const auto stream = client->OpenComputeStream();
  absl::Notification finished;
  int answers = 0;
  std::function<void()> send = [&] {
    stream->Send(request_, [&](auto result) {
      ASSERT_TRUE(result.ok()) << result.status();
      ++answers < 50 ? send() : finished.Notify();
    });
  };
  send();
  finished.WaitForNotification();
}

TEST_F(ComputeStreamTest, SendsWhoseCallsTheyAre) {
  std::string tenant;
  StreamServer server([&](grpc::ServerContext* context, Call* call) {
    const auto found = context->client_metadata().find("attention-tenant");
    if (found != context->client_metadata().end()) {
      tenant = {found->second.data(), found->second.size()};
    }
    return StreamServer::EchoAll(context, call);
  });
  const auto client = Connect(server.target(), {.tenant = "someone"});
  const auto stream = client->OpenComputeStream();
  stream->Send(request_, [](auto) {});
  EXPECT_EQ(stream->Close(), absl::OkStatus());
  EXPECT_EQ(tenant, "someone");
}

TEST_F(ComputeStreamTest, AnErrorOfARequestLeavesTheOthersAlone) {
  StreamServer server([](grpc::ServerContext*, Call* call) {
    for (Request request; call->Read(&request);) {
      Response response = StreamServer::Echo(request);
      if (request.tag() % 2 == 1) {
        response.clear_response();
        response.mutable_error()->set_code(grpc::StatusCode::NOT_FOUND);
        response.mutable_error()->set_message("no such region");
        response.mutable_error()->set_reason("INVALID_REQUEST");
      }
      call->Write(response);
    }
    return grpc::Status::OK;
  });
  const auto client = Connect(server.target());
  const auto stream = client->OpenComputeStream();
  std::vector<absl::Status> statuses(4);
  for (int i = 0; i < 4; ++i) {
    stream->Send(request_, [&statuses, i](auto result) {
      statuses[i] = result.status();
    });
  }
  EXPECT_EQ(stream->Close(), absl::OkStatus());
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(statuses[i].ok(), i % 2 == 0);
    if (i % 2 == 0) continue;
    EXPECT_TRUE(absl::IsNotFound(statuses[i]));
    EXPECT_EQ(statuses[i].message(), "no such region");
    EXPECT_EQ(ErrorReason(statuses[i]), "INVALID_REQUEST");
  }
}

TEST_F(ComputeStreamTest, RequestsThatCannotBeSentAreRefusedAtOnce) {
  StreamServer server(StreamServer::EchoAll);
  const auto client = Connect(server.target());
  const auto stream = client->OpenComputeStream();
  AttentionRequest outside = request_;
  char elsewhere[16];
  outside.output_buffer = {elsewhere, sizeof(elsewhere)};
  AttentionRequest large = request_;
  large.query.size_bytes = size_t{1} << 31;
  for (const AttentionRequest& request : {outside, large}) {
    bool called = false;
    stream->Send(request, [&](auto result) {
      EXPECT_TRUE(absl::IsInvalidArgument(result.status()));
      called = true;
    });
    EXPECT_TRUE(called);
  }
  EXPECT_TRUE(stream->IsOpen());
  EXPECT_EQ(stream->Close(), absl::OkStatus());
}

TEST_F(ComputeStreamTest, ABrokenStreamAnswersEveryRequest) {
  StreamServer server([](grpc::ServerContext*, Call* call) {
    Request request;
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(call->Read(&request));
      call->Write(StreamServer::Echo(request));
    }
    EXPECT_TRUE(call->Read(&request));
    return FakeServer::Error(grpc::StatusCode::UNAVAILABLE, "going away",
                             "DRAINING");
  });
  const auto client = Connect(server.target());
  const auto stream = client->OpenComputeStream();
  absl::Mutex mutex;
  int answered = 0;
  std::vector<std::string> reasons;
  for (int i = 0; i < 10; ++i) {
    stream->Send(request_, [&](auto result) {
      absl::MutexLock lock(&mutex);
      if (result.ok()) {
        ++answered;
      } else {
        // Who learns of the end may open another stream.
        EXPECT_FALSE(stream->IsOpen());
        reasons.push_back(ErrorReason(result.status()));
      }
    });
  }
  EXPECT_EQ(stream->Close().code(), absl::StatusCode::kUnavailable);
  absl::MutexLock lock(&mutex);
  EXPECT_EQ(answered, 2);
  EXPECT_EQ(reasons.size(), 8u);
  EXPECT_THAT(reasons, Each(testing::AnyOf("DRAINING", IsEmpty())));
  absl::Status late;
  stream->Send(request_, [&](auto result) { late = result.status(); });
  EXPECT_EQ(ErrorReason(late), "DRAINING");
}

TEST_F(ComputeStreamTest, AnAnswerToNothingBreaksTheStream) {
  StreamServer server([](grpc::ServerContext*, Call* call) {
    Request request;
    EXPECT_TRUE(call->Read(&request));
    Response response = StreamServer::Echo(request);
    response.set_tag(response.tag() + 1);
    call->Write(response);
    while (call->Read(&request)) continue;
    return grpc::Status::OK;
  });
  const auto client = Connect(server.target());
  const auto stream = client->OpenComputeStream();
  absl::Status status;
  stream->Send(request_, [&](auto result) { status = result.status(); });
  EXPECT_TRUE(absl::IsInternal(stream->Close()));
  EXPECT_TRUE(absl::IsInternal(status)) << status;
}

// Its error is the request's alone.
TEST_F(ComputeStreamTest, AnAnswerThatContradictsItselfLeavesTheOthersAlone) {
  StreamServer server([](grpc::ServerContext*, Call* call) {
    for (Request request; call->Read(&request);) {
      Response response = StreamServer::Echo(request);
      if (request.tag() == 0) response.mutable_response()->clear_output();
      call->Write(response);
    }
    return grpc::Status::OK;
  });
  const auto client = Connect(server.target());
  const auto stream = client->OpenComputeStream();
  absl::Status first, second;
  stream->Send(request_, [&](auto result) { first = result.status(); });
  stream->Send(request_, [&](auto result) { second = result.status(); });
  EXPECT_EQ(stream->Close(), absl::OkStatus());
  EXPECT_TRUE(absl::IsInternal(first)) << first;
  EXPECT_EQ(second, absl::OkStatus());
}

TEST_F(ComputeStreamTest, ItsTimeoutIsOfTheWholeStream) {
  StreamServer server([&](grpc::ServerContext* context, Call*) {
    while (!context->IsCancelled()) std::this_thread::yield();
    return grpc::Status::OK;
  });
  const auto client = Connect(server.target());
  const auto stream =
      client->OpenComputeStream({.timeout = absl::Milliseconds(50)});
  absl::Status status;
  stream->Send(request_, [&](auto result) { status = result.status(); });
  EXPECT_TRUE(absl::IsDeadlineExceeded(stream->Close()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
}

TEST_F(ComputeStreamTest, DestructionAnswersEveryRequest) {
  absl::Notification arrived;
  StreamServer server([&](grpc::ServerContext*, Call* call) {
    Request request;
    EXPECT_TRUE(call->Read(&request));
    arrived.Notify();
    while (call->Read(&request)) continue;
    return grpc::Status::OK;
  });
  const auto client = Connect(server.target());
  auto stream = client->OpenComputeStream();
  absl::BlockingCounter answers(3);
  for (int i = 0; i < 3; ++i) {
    stream->Send(request_, [&](auto result) {
      EXPECT_TRUE(absl::IsCancelled(result.status())) << result.status();
      answers.DecrementCount();
    });
  }
  arrived.WaitForNotification();
  stream = nullptr;
  answers.Wait();
}

TEST_F(ComputeStreamTest, AnUnreachableServerBreaksTheStream) {
  const auto nobody = Connect("unix:/nonexistent/socket");
  const auto stream = nobody->OpenComputeStream();
  absl::Status status;
  stream->Send(request_, [&](auto result) { status = result.status(); });
  EXPECT_TRUE(absl::IsUnavailable(stream->Close()));
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
}

// Many at once, on threads of the caller's, as one client's streams and calls
// are used.
TEST_F(ComputeStreamTest, StreamsAreSharedByThreads) {
  constexpr int kThreads = 4;
  constexpr int kRequests = 200;
  StreamServer server(StreamServer::EchoAll);
  const auto client = Connect(server.target(), {.channel_count = 2});
  std::vector<std::unique_ptr<ComputeStream>> streams;
  for (int i = 0; i < 2; ++i) streams.push_back(client->OpenComputeStream());
  std::atomic<int> right = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRequests; ++i) {
        const int index = t * kRequests + i;
        streams[index % 2]->Send(MakeRequest(Bytes(index)),
                                 [&right, index](auto result) {
                                   right += result.ok() &&
                                            result->output ==
                                                Bytes(index);
                                 });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& stream : streams) {
    EXPECT_EQ(stream->Close(), absl::OkStatus());
  }
  EXPECT_EQ(right, kThreads * kRequests);
}

}  // namespace
}  // namespace attention
