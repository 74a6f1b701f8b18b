// StreamDecode and StreamAppendKeysValues over real connections.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "server/rpc/pipelined_stream.h"
#include "tests/server/lifecycle/session_fixture.h"

namespace attention::test {
namespace {

using Code = grpc::StatusCode;
using DecodeStreamCall =
    std::unique_ptr<grpc::ClientReaderWriter<v1::StreamDecodeRequest,
                                             v1::StreamDecodeResponse>>;

class SessionStreamTest : public SessionTest {
 protected:
  v1::StreamDecodeRequest Message(const std::vector<Step>& steps,
                                  int64_t tag) {
    v1::StreamDecodeRequest message;
    // They have the same fields.
    EXPECT_TRUE(message.ParseFromString(MakeDecode(steps).SerializeAsString()));
    message.set_tag(tag);
    return message;
  }

  std::vector<v1::StreamAppendKeysValuesRequest> Chunks(ModelSession& session,
                                                        int layer, int chunks,
                                                        int tokens) {
    std::vector<v1::StreamAppendKeysValuesRequest> result(chunks);
    for (auto& chunk : result) {
      EXPECT_TRUE(chunk.ParseFromString(
          MakeAppend(session, layer, tokens).SerializeAsString()));
    }
    return result;
  }

  grpc::Status AppendAll(
      const std::vector<v1::StreamAppendKeysValuesRequest>& chunks,
      v1::Session* session = nullptr) {
    const auto context = Context();
    v1::StreamAppendKeysValuesResponse response;
    const auto call = stub().StreamAppendKeysValues(context.get(), &response);
    for (const auto& chunk : chunks) {
      if (!call->Write(chunk)) break;
    }
    call->WritesDone();
    const grpc::Status status = call->Finish();
    if (session != nullptr) *session = response.session();
    return status;
  }
};

TEST_F(SessionStreamTest, PipelinedMessagesAreAnsweredInOrderOfTheirSession) {
  StartSessions();
  std::vector<ModelSession> sessions;
  for (int i = 0; i < 3; ++i) {
    sessions.push_back(Create());
    Append(sessions.back(), 0, 20 * i + 1);
  }
  // More than may be under way, and some for two sessions at once.
  constexpr int kMessages = 4 * kMaxPipelinedMessages;
  struct Sent {
    v1::StreamDecodeRequest message;
    std::vector<int> of;
    std::vector<ModelSession> after;
  };
  std::vector<Sent> sent(kMessages);
  for (int i = 0; i < kMessages; ++i) {
    sent[i].of = {Draw(0, 2)};
    if (Draw(0, 3) == 0) sent[i].of.push_back((sent[i].of[0] + 1) % 3);
    std::vector<Step> steps;
    for (int s : sent[i].of) steps.push_back({&sessions[s], 0, Draw(1, 2)});
    sent[i].message = Message(steps, i);
    for (int s : sent[i].of) sent[i].after.push_back(sessions[s]);
  }
  const auto context = Context();
  const DecodeStreamCall call = stub().StreamDecode(context.get());
  std::thread writer([&] {
    for (const Sent& each : sent) ASSERT_TRUE(call->Write(each.message));
    call->WritesDone();
  });
  std::map<int, int64_t> last_of_session;
  int answers = 0;
  for (v1::StreamDecodeResponse response; call->Read(&response); ++answers) {
    ASSERT_FALSE(response.has_error()) << response.error().DebugString();
    Sent& each = sent[response.tag()];
    std::vector<Step> steps;
    for (size_t k = 0; k < each.of.size(); ++k) {
      steps.push_back({&each.after[k], 0,
                       static_cast<int>(each.message.items(k).token_count())});
      const auto [last, is_first] =
          last_of_session.try_emplace(each.of[k], response.tag());
      EXPECT_TRUE(is_first || last->second < response.tag());
      last->second = response.tag();
    }
    ASSERT_TRUE(CheckDecoded(each.message, response, steps));
  }
  writer.join();
  EXPECT_TRUE(call->Finish().ok());
  EXPECT_EQ(answers, kMessages);
}

TEST_F(SessionStreamTest, AnErrorOfAMessageLeavesTheStreamAlone) {
  StartSessions();
  ModelSession session = Create();
  const auto context = Context();
  const DecodeStreamCall call = stub().StreamDecode(context.get());
  v1::StreamDecodeResponse response;

  v1::StreamDecodeRequest invalid = Message({{&session, 0, 1}}, 1);
  invalid.mutable_query()->pop_back();
  ASSERT_TRUE(call->Write(invalid));
  ASSERT_TRUE(call->Read(&response));
  EXPECT_EQ(response.tag(), 1);
  EXPECT_EQ(response.error().code(), Code::INVALID_ARGUMENT);
  EXPECT_EQ(response.error().reason(), "INVALID_REQUEST");
  EXPECT_TRUE(response.output().empty());

  session = Create();
  v1::StreamDecodeRequest urgent = Message({{&session, 0, 1}}, 2);
  urgent.set_priority(1);
  ASSERT_TRUE(call->Write(urgent));
  ASSERT_TRUE(call->Read(&response));
  EXPECT_EQ(response.error().code(), Code::INVALID_ARGUMENT);

  session = Create();
  v1::StreamDecodeRequest unknown = Message({{&session, 0, 1}}, 3);
  unknown.mutable_items(0)->set_session("sessions/local." +
                                        std::string(32, 'f'));
  ASSERT_TRUE(call->Write(unknown));
  ASSERT_TRUE(call->Read(&response));
  EXPECT_FALSE(response.has_error());
  ASSERT_EQ(response.item_errors_size(), 1);
  EXPECT_EQ(response.item_errors(0).error().reason(), "SESSION_NOT_FOUND");

  session = Create();
  const v1::StreamDecodeRequest good = Message({{&session, 0, 1}}, 4);
  ASSERT_TRUE(call->Write(good));
  ASSERT_TRUE(call->Read(&response));
  EXPECT_EQ(response.tag(), 4);
  EXPECT_TRUE(CheckDecoded(good, response, {{&session, 0, 1}}));
  call->WritesDone();
  EXPECT_FALSE(call->Read(&response));
  EXPECT_TRUE(call->Finish().ok());
}

TEST_F(SessionStreamTest, ACancelledStreamLeavesTheServerServing) {
  StartSessions();
  ModelSession session = Create();
  for (int i = 0; i < 20; ++i) {
    const auto context = Context();
    const DecodeStreamCall call = stub().StreamDecode(context.get());
    ModelSession scratch = session;
    for (int k = 0; k < i; ++k) {
      v1::StreamDecodeRequest message = Message({{&scratch, 0, 1}}, k);
      message.mutable_items(0)->clear_expected_position();
      call->Write(message);
    }
    context->TryCancel();
    EXPECT_EQ(call->Finish().error_code(), Code::CANCELLED);
  }
  ModelSession other = Create();
  Append(other, 0, 3);
}

TEST_F(SessionStreamTest, DrainingEndsOpenStreams) {
  StartSessions();
  ModelSession session = Create();
  const auto context = Context();
  const DecodeStreamCall call = stub().StreamDecode(context.get());
  const v1::StreamDecodeRequest message = Message({{&session, 0, 1}}, 1);
  ASSERT_TRUE(call->Write(message));
  v1::StreamDecodeResponse response;
  ASSERT_TRUE(call->Read(&response));
  std::thread drain([&] { EXPECT_TRUE(server().Drain(absl::Seconds(30))); });
  EXPECT_FALSE(call->Read(&response));
  const grpc::Status status = call->Finish();
  EXPECT_EQ(status.error_code(), Code::UNAVAILABLE) << status.error_message();
  EXPECT_EQ(ReasonOf(status), "DRAINING");
  drain.join();
}

TEST_F(SessionStreamTest, DrainingEndsOpenAppends) {
  StartSessions();
  ModelSession session = Create();
  const auto context = Context();
  v1::StreamAppendKeysValuesResponse response;
  const auto call = stub().StreamAppendKeysValues(context.get(), &response);
  ASSERT_TRUE(call->Write(Chunks(session, 0, 1, 3)[0]));
  // A call that gRPC has not handed over yet would be cut off by the shutdown.
  while (Get(session.name).layer_token_counts(0) < 3) std::this_thread::yield();
  EXPECT_TRUE(server().Drain(absl::Seconds(30)));
  const grpc::Status status = call->Finish();
  EXPECT_EQ(status.error_code(), Code::UNAVAILABLE) << status.error_message();
  EXPECT_EQ(ReasonOf(status), "DRAINING");
}

// Its answers hold the server's memory; nobody else waits for it.
TEST_F(SessionStreamTest, ACallerThatTakesNoAnswersIsLetGo) {
  // Room for all of them: the transport lets go of them when it likes.
  device_options_.host_memory_budget_bytes = 4 * kMemoryBytes;
  StartSessions();
  // Small messages with answers of 1 MiB.
  v1::CreateSessionRequest request;
  v1::SessionConfiguration& configuration = *request.mutable_configuration();
  configuration = Configuration();
  configuration.set_query_head_count(1024);
  configuration.set_kv_head_count(1);
  configuration.set_head_dim_qk(1);
  configuration.set_head_dim_v(256);
  request.mutable_ttl()->set_seconds(24 * 3600);  // outlives what follows
  const std::string name = Create(request).name;
  v1::StreamDecodeRequest message;
  message.add_items()->set_session(name);
  message.mutable_items(0)->set_token_count(1);
  message.set_query(std::string(1024 * sizeof(float), '\0'));
  message.set_key(std::string(sizeof(float), '\0'));
  message.set_value(std::string(256 * sizeof(float), '\0'));

  const auto context = Context();
  const DecodeStreamCall call = stub().StreamDecode(context.get());
  absl::Notification ended;
  std::atomic<int> written = 0;
  std::thread time([&] {
    // Time passes while nothing moves.
    for (int before = -1; !ended.HasBeenNotified(); before = written) {
      std::this_thread::yield();
      if (written != before) continue;
      clock().Advance(absl::Seconds(1));
      server().ReleaseExpired();
    }
  });
  // Far more than the transport and the server hold: fails when the stream ends.
  while (call->Write(message)) ++written;
  ended.Notify();
  time.join();
  EXPECT_LT(written, 100'000);
  v1::StreamDecodeResponse response;
  while (call->Read(&response)) continue;
  EXPECT_EQ(call->Finish().error_code(), Code::CANCELLED);
  ModelSession other = Create();
  Append(other, 0, 3);
}

TEST_F(SessionStreamTest, ChunksOfAnyLayerAreAppended) {
  StartSessions();
  ModelSession session = Create();
  auto chunks = Chunks(session, 0, 20, 7);
  for (auto& chunk : Chunks(session, 1, 15, 3)) chunks.push_back(chunk);
  v1::Session after;
  const grpc::Status status = AppendAll(chunks, &after);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(after.name(), session.name);
  EXPECT_THAT(after.layer_token_counts(), testing::ElementsAre(140, 45));
  for (int layer : {0, 1}) {
    const v1::AttendSessionRequest request = MakeAttend(session, layer, 2);
    v1::AttendSessionResponse response;
    ASSERT_TRUE(Attend(request, &response).ok());
    EXPECT_TRUE(Check(session, layer, request.query(), response.output(),
                      response.log_sum_exp()));
  }
}

TEST_F(SessionStreamTest, ABrokenStreamGoesOnWhereTheSessionIs) {
  StartSessions();
  ModelSession session = Create();
  const auto chunks = Chunks(session, 0, 12, 5);
  {
    const auto context = Context();
    v1::StreamAppendKeysValuesResponse response;
    const auto call = stub().StreamAppendKeysValues(context.get(), &response);
    for (int i = 0; i < 8; ++i) call->Write(chunks[i]);
    context->TryCancel();
    EXPECT_EQ(call->Finish().error_code(), Code::CANCELLED);
  }
  // Chunks that were under way may still arrive in between: then ask again.
  int64_t there = Get(session.name).layer_token_counts(0);
  while (there < 60) {
    ASSERT_EQ(there % 5, 0);
    const grpc::Status status =
        AppendAll({chunks.begin() + there / 5, chunks.end()});
    ASSERT_TRUE(status.ok() || status.error_code() == Code::ALREADY_EXISTS)
        << status.error_message();
    there = Get(session.name).layer_token_counts(0);
  }
  EXPECT_EQ(there, 60);
  const v1::AttendSessionRequest request = MakeAttend(session, 0, 1);
  v1::AttendSessionResponse response;
  ASSERT_TRUE(Attend(request, &response).ok());
  EXPECT_TRUE(Check(session, 0, request.query(), response.output(),
                    response.log_sum_exp()));
}

TEST_F(SessionStreamTest, TheEarliestErrorEndsAnAppend) {
  StartSessions();
  ModelSession session = Create();
  auto chunks = Chunks(session, 0, 6, 2);
  chunks.erase(chunks.begin() + 2);  // a gap
  grpc::Status status = AppendAll(chunks);
  EXPECT_EQ(status.error_code(), Code::OUT_OF_RANGE);
  EXPECT_EQ(ReasonOf(status), "POSITION_GAP");
  EXPECT_EQ(ErrorInfoOf(status).metadata().at("token_count"), "4");
  EXPECT_EQ(Get(session.name).layer_token_counts(0), 4);

  chunks[0].clear_expected_position();
  status = AppendAll({chunks[0]});
  EXPECT_EQ(status.error_code(), Code::INVALID_ARGUMENT);
  ModelSession other = Create();
  status = AppendAll({Chunks(other, 0, 1, 1)[0], Chunks(session, 1, 1, 1)[0]});
  EXPECT_EQ(status.error_code(), Code::INVALID_ARGUMENT);
  EXPECT_EQ(Get(other.name).layer_token_counts(0), 1);
  v1::Session none;
  EXPECT_TRUE(AppendAll({}, &none).ok());
  EXPECT_TRUE(none.name().empty());
}

TEST_F(SessionStreamTest, AnAppendThatStandsStillIsEnded) {
  StartSessions();
  ModelSession session = Create();
  const auto context = Context();
  v1::StreamAppendKeysValuesResponse response;
  const auto call = stub().StreamAppendKeysValues(context.get(), &response);
  ASSERT_TRUE(call->Write(Chunks(session, 0, 1, 1)[0]));
  while (Get(session.name).layer_token_counts(0) < 1) std::this_thread::yield();
  // The chunk may be under way for another moment, and the stream is not idle so
  // long: each step of time is one more chance.
  absl::Notification ended;
  std::thread time([&] {
    while (!ended.HasBeenNotified()) {
      clock().Advance(absl::Seconds(40));
      server().ReleaseExpired();
      std::this_thread::yield();
    }
  });
  const grpc::Status status = call->Finish();
  ended.Notify();
  time.join();
  EXPECT_EQ(status.error_code(), Code::ABORTED) << status.error_message();
  EXPECT_EQ(ReasonOf(status), "STREAM_IDLE");
}

}  // namespace
}  // namespace attention::test
