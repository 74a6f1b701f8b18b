// Calls about sessions, and what they should make of the model's.
#ifndef ATTENTION_TESTS_SERVER_LIFECYCLE_SESSION_CALLS_FIXTURE_H_
#define ATTENTION_TESTS_SERVER_LIFECYCLE_SESSION_CALLS_FIXTURE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/server/lifecycle/session_fixture.h"

namespace attention::test {

using Code = grpc::StatusCode;

// Whether a call failed so.
inline testing::AssertionResult Failed(const grpc::Status& status, Code code,
                                       const std::string& reason) {
  if (status.error_code() == code && ReasonOf(status) == reason) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure()
         << status.error_code() << " (" << ReasonOf(status)
         << "): " << status.error_message();
}

class SessionCallsTest : public SessionTest {
 protected:
  grpc::Status CreateStatus(const v1::CreateSessionRequest& request,
                            const std::string& owner = "") {
    v1::CreateSessionResponse response;
    return stub().CreateSession(Context(owner).get(), request, &response);
  }

  grpc::Status GetStatus(const std::string& name,
                         const std::string& owner = "") {
    v1::GetSessionRequest request;
    request.set_name(name);
    v1::GetSessionResponse response;
    return stub().GetSession(Context(owner).get(), request, &response);
  }

  grpc::Status Delete(const std::string& name) {
    v1::DeleteSessionRequest request;
    request.set_name(name);
    v1::DeleteSessionResponse response;
    return stub().DeleteSession(Context().get(), request, &response);
  }

  // The model of the fork too.
  ModelSession Fork(const ModelSession& session,
                    std::optional<int64_t> token_count = std::nullopt) {
    v1::ForkSessionRequest request;
    request.set_name(session.name);
    if (token_count.has_value()) request.set_token_count(*token_count);
    v1::ForkSessionResponse response;
    const grpc::Status status =
        stub().ForkSession(Context().get(), request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    ModelSession fork = session;
    fork.name = response.session().name();
    if (token_count.has_value()) Cut(fork, *token_count);
    return fork;
  }

  void Truncate(ModelSession& session, int64_t token_count) {
    v1::TruncateSessionRequest request;
    request.set_name(session.name);
    request.set_token_count(token_count);
    v1::TruncateSessionResponse response;
    const grpc::Status status =
        stub().TruncateSession(Context().get(), request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    Cut(session, token_count);
  }

  static void Cut(ModelSession& session, int64_t token_count) {
    for (ModelSession::Layer& layer : session.layers) {
      layer.tokens = std::min(layer.tokens, token_count);
      layer.key.resize(layer.tokens * kKeyRow);
      layer.value.resize(layer.tokens * kKeyRow);
    }
  }

  void CheckDecode(const std::vector<Step>& steps) {
    const v1::DecodeRequest request = MakeDecode(steps);
    v1::DecodeResponse response;
    const grpc::Status status =
        stub().Decode(Context().get(), request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    ASSERT_TRUE(CheckDecoded(request, response, steps));
  }

  void CheckAttend(const ModelSession& session, int layer, int tokens,
                   std::optional<KeyRange> range = std::nullopt) {
    v1::AttendSessionRequest request = MakeAttend(session, layer, tokens);
    if (range.has_value()) {
      request.mutable_key_range()->set_begin(range->begin);
      request.mutable_key_range()->set_end(range->end);
    }
    v1::AttendSessionResponse response;
    const grpc::Status status = Attend(request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    ASSERT_TRUE(Check(session, layer, request.query(), response.output(),
                      response.log_sum_exp(), range));
  }
};

}  // namespace attention::test

#endif  // ATTENTION_TESTS_SERVER_LIFECYCLE_SESSION_CALLS_FIXTURE_H_
