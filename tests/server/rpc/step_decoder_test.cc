#include "server/rpc/step_decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "server/engine/error_reason.h"
#include "tests/server/rpc/fake_sessions.h"
#include "tests/server/rpc/memory_bounds.h"

namespace attention::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kQueryBytes = 128;
constexpr int kKeyBytes = 64;
constexpr int kValueBytes = 32;

// Tensors whose bytes tell tokens apart.
std::string Tokens(int count, int token_bytes, char first) {
  std::string bytes;
  for (int i = 0; i < count; ++i) {
    bytes += std::string(token_bytes, static_cast<char>(first + i));
  }
  return bytes;
}

class StepDecoderTest : public testing::Test {
 protected:
  StepDecoderTest() {
    sessions_.Add("a");
    sessions_.Add("b");
    sessions_.Add("far", /*device=*/1);
  }

  absl::StatusOr<DecodedSteps> Decode(const v1::DecodeRequest& request) {
    message_ = request.SerializeAsString();
    // Cut anywhere.
    const size_t cut = message_.size() / 3;
    fragments_ = {absl::string_view(message_).substr(0, cut),
                  absl::string_view(message_).substr(cut)};
    arena_ = std::make_unique<MessageArena>();
    auto scanned = ScanDecodeRequest(fragments_, *arena_);
    if (!scanned.ok()) return scanned.status();
    return DecodeSteps(ReadSteps(*std::move(scanned)), find_, limits_);
  }

  absl::StatusOr<DecodedSteps> Decode(
      const v1::AppendKeysValuesRequest& request) {
    message_ = request.SerializeAsString();
    fragments_ = {message_};
    arena_ = std::make_unique<MessageArena>();
    auto scanned = ScanAppendRequest(fragments_, *arena_);
    if (!scanned.ok()) return scanned.status();
    return DecodeSteps(ReadSteps(*std::move(scanned)), find_, limits_);
  }

  absl::StatusOr<DecodedSteps> Decode(const v1::AttendSessionRequest& request) {
    message_ = request.SerializeAsString();
    fragments_ = {message_};
    arena_ = std::make_unique<MessageArena>();
    auto scanned = ScanAttendRequest(fragments_, *arena_);
    if (!scanned.ok()) return scanned.status();
    return DecodeSteps(ReadSteps(*std::move(scanned)), find_, limits_);
  }

  // Items of these sessions with 1, 2, ... tokens.
  static v1::DecodeRequest Request(const std::vector<std::string>& sessions) {
    v1::DecodeRequest request;
    int tokens = 0;
    for (size_t i = 0; i < sessions.size(); ++i) {
      v1::DecodeItem& item = *request.add_items();
      item.set_session(sessions[i]);
      item.set_layer(static_cast<int>(i) % 2);
      item.set_token_count(static_cast<int64_t>(i) + 1);
      tokens += static_cast<int>(i) + 1;
    }
    request.set_query(Tokens(tokens, kQueryBytes, 'a'));
    request.set_key(Tokens(tokens, kKeyBytes, 'A'));
    request.set_value(Tokens(tokens, kValueBytes, '0'));
    return request;
  }

  static v1::AppendKeysValuesRequest Append(int tokens) {
    v1::AppendKeysValuesRequest request;
    request.set_session("a");
    request.set_token_count(tokens);
    request.set_key(Tokens(tokens, kKeyBytes, 'A'));
    request.set_value(Tokens(tokens, kValueBytes, '0'));
    return request;
  }

  static v1::AttendSessionRequest Attend(int tokens) {
    v1::AttendSessionRequest request;
    request.set_session("a");
    request.set_token_count(tokens);
    request.set_query(Tokens(tokens, kQueryBytes, 'a'));
    return request;
  }

  template <typename Request>
  void ExpectInvalid(const Request& request, absl::string_view field,
                     absl::string_view value) {
    const absl::Status status = Decode(request).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(ReasonOf(status), error_reason::kInvalidRequest);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(std::string(field)),
                      HasSubstr(absl::StrCat("got ", value))));
  }

  FakeSessions sessions_;
  RequestLimits limits_;
  const std::function<absl::StatusOr<SessionUse>(absl::string_view, int64_t)>
      find_ = [this](absl::string_view name, int64_t layer) {
        return sessions_.Find(name, layer);
      };
  std::string message_;
  std::vector<absl::string_view> fragments_;
  std::unique_ptr<MessageArena> arena_;
};

std::string Join(const Payload& payload) {
  return absl::StrJoin(payload.fragments, "");
}

TEST_F(StepDecoderTest, ItemsOfOneDeviceAreOneWorkOfTheWholeTensors) {
  v1::DecodeRequest request = Request({"a", "b", "a"});
  request.mutable_items(1)->set_expected_position(7);
  request.set_scale(0.25);
  request.set_return_log_sum_exp(true);
  request.set_priority(-3);
  const auto decoded = Decode(request);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  ASSERT_EQ(decoded->works.size(), 1u);
  const AttentionWork& work = *decoded->works[0];
  EXPECT_TRUE(CheckMemoryBounds(work).ok()) << CheckMemoryBounds(work);
  EXPECT_TRUE(work.is_resident());
  EXPECT_EQ(work.paged_config(), FakeSessions::Config().paged);
  EXPECT_EQ(work.required_device, 0);
  EXPECT_EQ(work.priority, -3);
  EXPECT_EQ(Join(work.query), request.query());
  EXPECT_EQ(Join(work.key), request.key());
  EXPECT_EQ(Join(work.value), request.value());
  EXPECT_EQ(work.output_bytes, 6u * 64);
  EXPECT_EQ(work.log_sum_exp_bytes, 6u * 16);
  ASSERT_EQ(work.sequences.size(), 3u);
  ASSERT_EQ(work.kv_steps.size(), 3u);
  // The third begins after 1 + 2 tokens.
  const WorkSequence& third = work.sequences[2];
  EXPECT_EQ(third.query_offset, 3 * 32);
  EXPECT_EQ(third.key_offset, 3 * 16);
  EXPECT_EQ(third.value_offset, 3 * 8);
  EXPECT_EQ(third.output_offset, 3 * 16);
  EXPECT_EQ(third.log_sum_exp_offset, 3 * 4);
  EXPECT_EQ(third.shape.query_length, 3);
  EXPECT_EQ(third.shape.key_length, 103);
  EXPECT_EQ(third.shape.scale, 0.25);
  EXPECT_EQ(work.kv_steps[2].append_length, 3);
  EXPECT_EQ(work.kv_steps[2].query_length, 3);
  EXPECT_FALSE(work.kv_steps[2].expected_position.has_value());
  EXPECT_EQ(work.kv_steps[1].expected_position, 7);
}

TEST_F(StepDecoderTest, EachDeviceGetsTheTokensOfItsItems) {
  const v1::DecodeRequest request =
      Request({"a", "far", "unknown", "b", "far"});
  const auto decoded = Decode(request);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  ASSERT_EQ(decoded->works.size(), 2u);
  // Tokens of the items: 0; 1 2; 3 4 5; 6 7 8 9; 10...14.
  const auto of = [](const std::string& bytes, int token_bytes,
                     const std::vector<std::pair<int, int>>& ranges) {
    std::string result;
    for (auto [begin, end] : ranges) {
      result += bytes.substr(begin * token_bytes, (end - begin) * token_bytes);
    }
    return result;
  };
  const std::vector<std::pair<int, int>> near = {{0, 1}, {6, 10}};
  const std::vector<std::pair<int, int>> far = {{1, 3}, {10, 15}};
  for (int w = 0; w < 2; ++w) {
    const AttentionWork& work = *decoded->works[w];
    const auto& ranges = w == 0 ? near : far;
    EXPECT_TRUE(CheckMemoryBounds(work).ok()) << CheckMemoryBounds(work);
    EXPECT_EQ(work.required_device, w);
    EXPECT_EQ(Join(work.query), of(request.query(), kQueryBytes, ranges));
    EXPECT_EQ(Join(work.key), of(request.key(), kKeyBytes, ranges));
    EXPECT_EQ(Join(work.value), of(request.value(), kValueBytes, ranges));
  }
  EXPECT_EQ(decoded->works[0]->output_bytes, 5u * 64);
  EXPECT_EQ(decoded->works[1]->output_bytes, 7u * 64);
  const auto& items = decoded->plan.items;
  EXPECT_EQ(items[2].status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(items[4].work, 1);
  EXPECT_EQ(items[4].sequence, 1);
}

TEST_F(StepDecoderTest, WithoutAnySessionNothingIsComputed) {
  v1::DecodeRequest request = Request({"x", "y"});
  request.clear_query();  // nobody knows how large it should be
  const auto decoded = Decode(request);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_TRUE(decoded->works.empty());
  for (const StepsPlan::Item& item : decoded->plan.items) {
    EXPECT_EQ(ReasonOf(item.status), error_reason::kSessionNotFound);
  }
}

TEST_F(StepDecoderTest, AppendingAndAttendingAlone) {
  const auto append = Decode(Append(3));
  ASSERT_TRUE(append.ok()) << append.status();
  EXPECT_TRUE(CheckMemoryBounds(*append->works[0]).ok());
  EXPECT_EQ(append->works[0]->kv_steps[0].append_length, 3);
  EXPECT_EQ(append->works[0]->kv_steps[0].query_length, 0);
  EXPECT_EQ(append->works[0]->result_bytes(), 0u);

  v1::AttendSessionRequest request = Attend(2);
  request.mutable_key_range()->set_begin(5);
  request.mutable_key_range()->set_end(50);
  const auto attend = Decode(request);
  ASSERT_TRUE(attend.ok()) << attend.status();
  const AttentionWork& work = *attend->works[0];
  EXPECT_TRUE(CheckMemoryBounds(work).ok());
  EXPECT_EQ(work.kv_steps[0].append_length, 0);
  EXPECT_EQ(work.kv_steps[0].query_length, 2);
  EXPECT_EQ(work.kv_steps[0].key_range->begin, 5);
  EXPECT_EQ(work.kv_steps[0].key_range->end, 50);
  EXPECT_EQ(work.sequences[0].shape.key_length, 100);
  EXPECT_EQ(work.output_bytes, 128u);
}

TEST_F(StepDecoderTest, NamesTheFieldAndTheValue) {
  ExpectInvalid(v1::DecodeRequest(), "number of items", "0");
  v1::DecodeRequest many;
  for (int i = 0; i <= kMaxDecodeItems; ++i)
    many.add_items()->set_token_count(1);
  ExpectInvalid(many, "number of items", "4097");

  v1::DecodeRequest request = Request({"a", "b"});
  request.mutable_items(1)->set_token_count(0);
  ExpectInvalid(request, "items[1].token_count", "0");
  request.mutable_items(1)->set_token_count(int64_t{1} << 31);
  ExpectInvalid(request, "items[1].token_count", "2147483648");
  request.mutable_items(0)->set_token_count((int64_t{1} << 31) - 1);
  request.mutable_items(1)->set_token_count(1);
  ExpectInvalid(request, "sum of token_count", "2147483648");
  request = Request({"a", "b"});
  request.mutable_items(0)->set_expected_position(-1);
  ExpectInvalid(request, "items[0].expected_position", "-1");
  request = Request({"a", "b"});
  request.mutable_items(1)->set_layer(2);
  ExpectInvalid(request, "items[1]: layer", "2");
  request = Request({"a", "b"});
  request.set_scale(std::numeric_limits<double>::infinity());
  ExpectInvalid(request, "scale", "inf");
  request = Request({"a", "b"});
  request.set_priority(101);
  ExpectInvalid(request, "priority", "101");
  request = Request({"a", "b"});
  request.mutable_query()->pop_back();
  ExpectInvalid(request, "query (its size in bytes)", "383");
  request = Request({"a", "b"});
  request.mutable_key()->push_back('x');
  ExpectInvalid(request, "key (its size in bytes)", "193");
  request = Request({"a", "b"});
  request.clear_value();
  ExpectInvalid(request, "value (its size in bytes)", "0");

  v1::AttendSessionRequest attend = Attend(1);
  attend.mutable_key_range()->set_begin(-1);
  ExpectInvalid(attend, "key_range.begin", "-1");
  attend.mutable_key_range()->set_begin(9);
  attend.mutable_key_range()->set_end(8);
  ExpectInvalid(attend, "key_range.end", "8");
  attend.mutable_key_range()->set_end(std::numeric_limits<int64_t>::max());
  ExpectInvalid(attend, "key_range.end must be in [9, 1099511627776]",
                "9223372036854775807");
  attend.mutable_key_range()->set_begin(std::numeric_limits<int64_t>::max());
  ExpectInvalid(attend, "key_range.begin must be in [0, 1099511627776]",
                "9223372036854775807");
}

TEST_F(StepDecoderTest, SessionsOfOneRequestHaveOneConfiguration) {
  SessionConfig other = FakeSessions::Config();
  other.paged.heads.query_head_count = 2;
  sessions_.Add("other", 0, other);
  const absl::Status status = Decode(Request({"a", "other"})).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("items[1].session"));

  // Windows and layer counts may differ.
  SessionConfig window = FakeSessions::Config();
  window.window_left = 10;
  window.layer_count = 3;
  sessions_.Add("window", 0, window);
  EXPECT_TRUE(Decode(Request({"a", "window"})).ok());
}

TEST_F(StepDecoderTest, OneStepFailsAsAWhole) {
  v1::AppendKeysValuesRequest append = Append(1);
  append.set_session("unknown");
  EXPECT_EQ(ReasonOf(Decode(append).status()), error_reason::kSessionNotFound);
  v1::AttendSessionRequest attend = Attend(1);
  attend.set_session("unknown");
  EXPECT_EQ(ReasonOf(Decode(attend).status()), error_reason::kSessionNotFound);
}

TEST_F(StepDecoderTest, LimitsHold) {
  limits_.max_message_bytes = kResponseMetadataBytes + 3 * 64;
  EXPECT_TRUE(Decode(Request({"a", "b"})).ok());
  limits_.max_message_bytes -= 1;
  EXPECT_EQ(ReasonOf(Decode(Request({"a", "b"})).status()),
            error_reason::kRequestTooLarge);
  limits_ = {};
  limits_.max_request_flops = 1;
  EXPECT_EQ(ReasonOf(Decode(Request({"a", "b"})).status()),
            error_reason::kRequestTooLarge);
}

}  // namespace
}  // namespace attention::test
