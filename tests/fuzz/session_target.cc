// Hostile bytes as each of the messages that use sessions, in whatever fragments:
//   - the scanner takes what protobuf's own parser takes, and finds the same
//     metadata and payloads in it;
//   - the decoder says no with a code and a reason that are documented, or makes
//     works whose every element lies inside its memory, with an answer within the
//     limits.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/stubs/logging.h"
#include "server/rpc/step_decoder.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/wire_properties.h"
#include "tests/server/rpc/fake_sessions.h"
#include "tests/server/rpc/memory_bounds.h"

namespace attention::test {
namespace {

constexpr int64_t kMaxMessageBytes = 1 << 14;

const FakeSessions& Sessions() {
  static const FakeSessions& sessions = *[] {
    google::protobuf::SetLogHandler(nullptr);  // a line for each bad text
    auto* made = new FakeSessions;
    made->Add("a");
    made->Add("b");
    made->Add("far", /*device=*/1);
    return made;
  }();
  return sessions;
}

// The payloads that a message has.
void SetPayloads(const ScannedAppend& scanned,
                 v1::StreamAppendKeysValuesRequest& message) {
  message.set_key(Join(scanned.key));
  message.set_value(Join(scanned.value));
}
void SetPayloads(const ScannedAttend& scanned,
                 v1::AttendSessionRequest& message) {
  message.set_query(Join(scanned.query));
}
void SetPayloads(const ScannedDecode& scanned,
                 v1::StreamDecodeRequest& message) {
  message.set_query(Join(scanned.query));
  message.set_key(Join(scanned.key));
  message.set_value(Join(scanned.value));
}

absl::Status CheckDecoded(const DecodedSteps& decoded) {
  size_t answer_bytes = 0;
  for (const std::unique_ptr<AttentionWork>& work : decoded.works) {
    answer_bytes += work->result_bytes();
    if (auto s = CheckMemoryBounds(*work); !s.ok()) return s;
  }
  if (answer_bytes > static_cast<size_t>(kMaxMessageBytes)) {
    return Broken(absl::StrCat("an answer of ", answer_bytes, " bytes"));
  }
  for (const StepsPlan::Item& item : decoded.plan.items) {
    if (item.status.ok() &&
        item.sequence >=
            static_cast<int>(decoded.works[item.work]->sequences.size())) {
      return Broken("an item is no sequence of its work");
    }
  }
  return absl::OkStatus();
}

// Whether the bytes are a sound request of this type.
template <typename Message>
absl::StatusOr<bool> RunAs(
    const FragmentedMessage& message,
    absl::StatusOr<ScannedMessage<Message>> (*scan)(
        absl::Span<const absl::string_view>, MessageArena&)) {
  MessageArena arena;
  absl::StatusOr<ScannedMessage<Message>> scanned =
      scan(message.fragments(), arena);
  Message expected;
  const absl::StatusOr<bool> valid =
      CheckScan(message.message(), scanned.status(), expected);
  if (!valid.ok() || !*valid) return valid;
  Message found = *scanned->metadata;
  SetPayloads(*scanned, found);
  absl::Status same = CheckFound(found, expected);
  if (!same.ok()) return same;
  RequestLimits limits;
  limits.max_message_bytes = kMaxMessageBytes;
  const absl::StatusOr<DecodedSteps> decoded = DecodeSteps(
      ReadSteps(*std::move(scanned)),
      [](absl::string_view name, int64_t layer) {
        return Sessions().Find(name, layer);
      },
      limits);
  const absl::Status status =
      decoded.ok() ? CheckDecoded(*decoded) : CheckRefusal(decoded.status());
  if (!status.ok()) return status;
  return decoded.ok();
}

absl::StatusOr<bool> RunSession(absl::string_view input) {
  const FragmentedMessage message(input);
  bool accepted = false;
  for (const absl::StatusOr<bool>& result :
       {RunAs(message, &ScanAppendRequest), RunAs(message, &ScanAttendRequest),
        RunAs(message, &ScanDecodeRequest)}) {
    if (!result.ok()) return result.status();
    accepted |= *result;
  }
  return accepted;
}

std::vector<Seed> SessionSeeds() {
  std::vector<Seed> seeds;
  const auto add = [&seeds](const char* name, const auto& message,
                            bool accepted, std::vector<size_t> cuts = {}) {
    seeds.push_back({name,
                     FragmentedMessage::Input(message.SerializeAsString(), cuts),
                     accepted});
  };
  v1::StreamAppendKeysValuesRequest append;
  append.set_session("a");
  append.set_layer(1);
  append.set_token_count(2);
  append.set_expected_position(100);
  append.set_key(std::string(128, 'k'));
  append.set_value(std::string(64, 'v'));
  add("append", append, true);
  add("cut_append", append, true, {1, 3, 4, 20, 150});
  append.mutable_key()->pop_back();
  add("short_append", append, false);

  v1::AttendSessionRequest attend;
  attend.set_session("b");
  attend.set_token_count(1);
  attend.mutable_key_range()->set_end(50);
  attend.set_scale(0.5);
  attend.set_return_log_sum_exp(true);
  attend.set_query(std::string(128, 'q'));
  add("attend", attend, true);
  attend.set_session("unknown");
  add("unknown_session", attend, false);

  v1::StreamDecodeRequest decode;
  for (const char* session : {"a", "far", "unknown", "b"}) {
    v1::DecodeItem& item = *decode.add_items();
    item.set_session(session);
    item.set_token_count(1);
  }
  decode.set_tag(7);
  decode.set_query(std::string(4 * 128, 'q'));
  decode.set_key(std::string(4 * 64, 'k'));
  decode.set_value(std::string(4 * 32, 'v'));
  add("decode", decode, true);
  add("cut_decode", decode, true, {2, 17, 60, 61, 200, 700});
  decode.mutable_items(0)->set_token_count(int64_t{1} << 40);
  add("huge_item", decode, false);
  return seeds;
}

}  // namespace

const FuzzTarget kSessionTarget = {"session", RunSession, SessionSeeds};

}  // namespace attention::test
