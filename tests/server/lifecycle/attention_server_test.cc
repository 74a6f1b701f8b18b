// Starting, stopping, health, reflection, channelz, listeners.
#include "server/lifecycle/attention_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "grpcpp/generic/generic_stub.h"
#include "tests/server/lifecycle/server_fixture.h"

namespace attention::test {
namespace {

using ::grpc::health::v1::Health;
using ::grpc::health::v1::HealthCheckRequest;
using ::grpc::health::v1::HealthCheckResponse;
using ::testing::_;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;

// By thread of this process that polls for gRPC: how many processors it may
// use.
std::map<int, int> ProcessorsOfPollers() {
  std::map<int, int> processors;
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    const int thread = std::stoi(task.path().filename());
    cpu_set_t allowed;
    if (name != "event_loop" ||
        sched_getaffinity(thread, sizeof(allowed), &allowed) != 0) {
      continue;
    }
    processors[thread] = CPU_COUNT(&allowed);
  }
  return processors;
}

constexpr char kService[] = "attention.v1.AttentionService";

class AttentionServerTest : public ServerTest {
 protected:
  // SERVING and so on; fails when the call fails.
  HealthCheckResponse::ServingStatus CheckHealth(const std::string& service) {
    grpc::ClientContext context;
    HealthCheckRequest request;
    request.set_service(service);
    HealthCheckResponse response;
    const grpc::Status status =
        Health::NewStub(channel())->Check(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.status();
  }

  // Calls any method that answers one message with one message (a stream of one
  // is the same on the wire). Types are looked up by name: the distribution has
  // no headers for reflection and channelz, but the libraries hold their types.
  std::string CallByName(const std::string& method, const std::string& type,
                         const std::string& field, const std::string& reply) {
    const auto make = [](const std::string& name) {
      const auto* descriptor =
          google::protobuf::DescriptorPool::generated_pool()
              ->FindMessageTypeByName(name);
      EXPECT_NE(descriptor, nullptr) << name;
      return std::unique_ptr<google::protobuf::Message>(
          google::protobuf::MessageFactory::generated_factory()
              ->GetPrototype(descriptor)
              ->New());
    };
    const auto request = make(type);
    if (!field.empty()) {
      request->GetReflection()->SetString(
          request.get(), request->GetDescriptor()->FindFieldByName(field), "");
    }
    const grpc::Slice slice(request->SerializeAsString());
    const grpc::ByteBuffer request_bytes(&slice, 1);
    grpc::ByteBuffer reply_bytes;
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(60)));
    grpc::GenericStub stub(channel());
    grpc::Status status;
    absl::Notification done;
    stub.UnaryCall(&context, method, {}, &request_bytes, &reply_bytes,
                   [&](grpc::Status s) {
                     status = std::move(s);
                     done.Notify();
                   });
    done.WaitForNotification();
    EXPECT_TRUE(status.ok()) << method << ": " << status.error_message();
    std::vector<grpc::Slice> slices;
    if (!reply_bytes.Dump(&slices).ok()) return "";
    std::string bytes;
    for (const grpc::Slice& s : slices) {
      bytes.append(reinterpret_cast<const char*>(s.begin()), s.size());
    }
    const auto message = make(reply);
    EXPECT_TRUE(message->ParseFromString(bytes));
    return message->DebugString();
  }
};

TEST_F(AttentionServerTest, ReportsHealthPerService) {
  StartServer();
  EXPECT_EQ(CheckHealth(""), HealthCheckResponse::SERVING);
  EXPECT_EQ(CheckHealth(kService), HealthCheckResponse::SERVING);
  server().StopServing();
  EXPECT_EQ(CheckHealth(""), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(CheckHealth(kService), HealthCheckResponse::NOT_SERVING);

  grpc::ClientContext context;
  HealthCheckRequest request;
  request.set_service("nobody");
  HealthCheckResponse response;
  EXPECT_EQ(Health::NewStub(channel())
                ->Check(&context, request, &response)
                .error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST_F(AttentionServerTest, KeepsOnlyTheThreadsOfGrpcTogether) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  if (CPU_COUNT(&before) < 2) GTEST_SKIP() << "there is one processor";
  ASSERT_TRUE(ProcessorsOfPollers().empty());
  StartServer({.rpc_processors = 1});
  cpu_set_t after;
  ASSERT_EQ(sched_getaffinity(0, sizeof(after), &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&after, &before));
  EXPECT_TRUE(Call(SmallRequest()).status.ok());
  EXPECT_THAT(ProcessorsOfPollers(), AllOf(Not(IsEmpty()), Each(Pair(_, 1))));
}

TEST_F(AttentionServerTest, WatchFollowsTheStatusAndEndsWithTheServer) {
  StartServer();
  const auto stub = Health::NewStub(channel());
  grpc::ClientContext context;
  HealthCheckRequest request;
  request.set_service(kService);
  const auto watch = stub->Watch(&context, request);
  HealthCheckResponse response;
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  server().StopServing();
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);

  // An open Watch does not hold the server up.
  const absl::Time start = absl::Now();
  EXPECT_TRUE(server().Drain(absl::Minutes(5)));
  EXPECT_LT(absl::Now() - start, absl::Minutes(1));
  EXPECT_FALSE(watch->Read(&response));
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(AttentionServerTest, WatchOfAnUnknownServiceStaysOpen) {
  StartServer();
  const auto stub = Health::NewStub(channel());
  grpc::ClientContext context;
  HealthCheckRequest request;
  request.set_service("nobody");
  const auto watch = stub->Watch(&context, request);
  HealthCheckResponse response;
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVICE_UNKNOWN);
  context.TryCancel();
  EXPECT_FALSE(watch->Read(&response));
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(AttentionServerTest, ListsItsServicesByReflection) {
  StartServer();
  const std::string services = CallByName(
      "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
      "grpc.reflection.v1alpha.ServerReflectionRequest", "list_services",
      "grpc.reflection.v1alpha.ServerReflectionResponse");
  EXPECT_THAT(services,
              AllOf(HasSubstr(kService), HasSubstr("grpc.health.v1.Health"),
                    HasSubstr("grpc.channelz.v1.Channelz")));
}

TEST_F(AttentionServerTest, CountsItsCallsInChannelz) {
  StartServer();
  ASSERT_TRUE(Call(SmallRequest()).status.ok());
  const std::string servers =
      CallByName("/grpc.channelz.v1.Channelz/GetServers",
                 "grpc.channelz.v1.GetServersRequest", "",
                 "grpc.channelz.v1.GetServersResponse");
  EXPECT_THAT(servers, HasSubstr("calls_succeeded"));
}

TEST_F(AttentionServerTest, RemovesItsSocketFile) {
  StartServer();
  EXPECT_EQ(access(socket_path().c_str(), F_OK), 0);
  server().Drain(absl::Seconds(30));
  EXPECT_NE(access(socket_path().c_str(), F_OK), 0);
}

TEST_F(AttentionServerTest, ReplacesTheSocketOfADeadServer) {
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  socket_path().copy(name.sun_path, sizeof(name.sun_path) - 1);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
  close(fd);  // the file stays
  ASSERT_EQ(access(socket_path().c_str(), F_OK), 0);
  StartServer();
  EXPECT_TRUE(Call(*Connect(unix_address()), SmallRequest()).status.ok());
}

TEST_F(AttentionServerTest, DoesNotTakeOverALiveServersAddresses) {
  StartServer();
  for (const std::string& taken : {tcp_address(), unix_address()}) {
    AttentionServer::Options options;
    options.listen = {"127.0.0.1:0", taken};
    options.devices.backend = Backend::kCpu;
    auto second = AttentionServer::Create(options);
    ASSERT_TRUE(second.ok()) << second.status();
    const absl::Status status = (*second)->Start();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr(taken));
  }
  EXPECT_TRUE(Call(SmallRequest()).status.ok());
  EXPECT_TRUE(Call(*Connect(unix_address()), SmallRequest()).status.ok());
}

TEST_F(AttentionServerTest, SaysWhyAPortCannotBeBound) {
  StartServer();
  AttentionServer::Options options;
  options.listen = {tcp_address()};
  options.devices.backend = Backend::kCpu;
  auto second = AttentionServer::Create(options);
  ASSERT_TRUE(second.ok());
  const absl::Status status = (*second)->Start();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("Address already in use"));
}

TEST_F(AttentionServerTest, KeepsAFileThatIsNoSocket) {
  std::ofstream(socket_path()) << "precious";
  AttentionServer::Options options;
  options.listen = {"unix:" + socket_path()};
  options.devices.backend = Backend::kCpu;
  auto server = AttentionServer::Create(options);
  ASSERT_TRUE(server.ok());
  EXPECT_EQ((*server)->Start().code(), absl::StatusCode::kAlreadyExists);
  std::string content;
  std::ifstream(socket_path()) >> content;
  EXPECT_EQ(content, "precious");
}

TEST(AttentionServerOptionsTest, NamesWhatIsOutOfRange) {
  const auto create = [](auto change) {
    AttentionServer::Options options;
    options.devices.backend = Backend::kCpu;
    change(options);
    return std::string(AttentionServer::Create(options).status().message());
  };
  EXPECT_THAT(create([](auto& o) { o.max_message_bytes = 1023; }),
              AllOf(HasSubstr("max_message_bytes"), HasSubstr("1023")));
  EXPECT_THAT(create([](auto& o) { o.max_message_bytes = int64_t{1} << 31; }),
              HasSubstr("2147483648"));
  EXPECT_THAT(create([](auto& o) { o.max_request_flops = -1; }),
              HasSubstr("max_request_flops"));
  EXPECT_THAT(create([](auto& o) { o.listen.clear(); }), HasSubstr("listen"));
  EXPECT_THAT(create([](auto& o) { o.drain_delay = -absl::Seconds(1); }),
              HasSubstr("drain_delay"));
  EXPECT_THAT(create([](auto& o) { o.scheduling.max_batch_requests = 0; }),
              HasSubstr("max_batch_requests"));
}

}  // namespace
}  // namespace attention::test
