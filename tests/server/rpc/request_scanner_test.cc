#include "server/rpc/request_scanner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/util/message_differencer.h"
#include "server/engine/error_reason.h"

namespace attention {
namespace {

using ::google::protobuf::util::MessageDifferencer;
using Request = v1::ComputeAttentionRequest;
using StreamRequest = v1::StreamComputeAttentionRequest;
using ::testing::ElementsAre;

std::string Join(const Payload& payload) {
  return absl::StrJoin(payload.fragments, "");
}

// A scanned message and what keeps its metadata.
struct Scan {
  explicit Scan(absl::Span<const absl::string_view> fragments)
      : result(ScanRequest(fragments, arena)) {}
  // The message must outlive the payloads.
  explicit Scan(absl::string_view message) : Scan({&message, 1}) {}
  explicit Scan(std::string&& message) = delete;

  bool ok() const { return result.ok(); }
  absl::Status status() const { return result.status(); }
  const ScannedRequest& operator*() const { return *result; }
  const ScannedRequest* operator->() const { return &*result; }

  MessageArena arena;
  absl::StatusOr<ScannedRequest> result;
};

Request Example() {
  Request request;
  request.set_data_type(v1::DATA_TYPE_FLOAT16);
  request.mutable_query_descriptor()->add_shape(300);
  request.mutable_query_descriptor()->add_strides(1);
  request.add_query_lengths(5);
  request.add_query_lengths(1 << 20);
  request.set_scale(-0.5);
  request.mutable_sliding_window()->set_left(0);
  request.set_return_weights(true);
  request.set_query(std::string(200, 'q'));
  request.set_key(std::string("k\0\xff", 3));
  request.set_value(std::string(1, 'v'));
  return request;
}

// What the scanner makes of a message, as a message.
Request Reassemble(const ScannedRequest& scanned) {
  Request request = *scanned.metadata;
  request.set_query(Join(scanned.query));
  request.set_key(Join(scanned.key));
  request.set_value(Join(scanned.value));
  return request;
}

TEST(RequestScannerTest, AgreesWithProtobufHoweverTheMessageIsCut) {
  const Request request = Example();
  const std::string message = request.SerializeAsString();
  for (size_t first = 0; first <= message.size(); ++first) {
    for (size_t length : {size_t{0}, size_t{1}, size_t{7}, message.size()}) {
      const absl::string_view whole = message;
      const std::vector<absl::string_view> fragments = {
          whole.substr(0, first), whole.substr(first, length),
          whole.substr(std::min(first + length, whole.size()))};
      const Scan scanned(fragments);
      ASSERT_TRUE(scanned.ok()) << scanned.status() << " cut at " << first;
      EXPECT_TRUE(MessageDifferencer::Equals(Reassemble(*scanned), request))
          << "cut at " << first << " and " << length << " later";
    }
  }
}

TEST(RequestScannerTest, PointsIntoTheMessageInsteadOfCopying) {
  const std::string message = Example().SerializeAsString();
  const Scan scanned(message);
  ASSERT_TRUE(scanned.ok());
  ASSERT_EQ(scanned->query.fragments.size(), 1u);
  EXPECT_GE(scanned->query.fragments[0].data(), message.data());
  EXPECT_LE(scanned->query.fragments[0].data(), message.data() + message.size());
  EXPECT_TRUE(scanned->metadata->query().empty());
}

TEST(RequestScannerTest, LeavesOutEmptyFragments) {
  const std::string message = Example().SerializeAsString();
  const absl::string_view whole = message;
  const size_t in_query = message.find("qqq") + 10;
  const std::vector<absl::string_view> fragments = {
      whole.substr(0, in_query), "", "", whole.substr(in_query)};
  const Scan scanned(fragments);
  ASSERT_TRUE(scanned.ok());
  EXPECT_THAT(scanned->query.fragments,
              ElementsAre(std::string(10, 'q'), std::string(190, 'q')));
}

TEST(RequestScannerTest, ReadsAnEmptyMessage) {
  for (const auto& fragments : {std::vector<absl::string_view>{},
                                std::vector<absl::string_view>{"", ""}}) {
    const Scan scanned(fragments);
    ASSERT_TRUE(scanned.ok());
    EXPECT_EQ(scanned->query.size_bytes(), 0u);
    EXPECT_EQ(scanned->metadata->ByteSizeLong(), 0u);
  }
}

TEST(RequestScannerTest, TakesFieldsInAnyOrderAndTheLastPayload) {
  Request first;
  first.set_query("old");
  first.mutable_sliding_window()->set_left(1);
  Request second;
  second.set_query("new");
  second.mutable_sliding_window()->set_right(2);
  const std::string message =
      absl::StrCat(first.SerializeAsString(), second.SerializeAsString());
  const Scan scanned(message);
  ASSERT_TRUE(scanned.ok());
  EXPECT_EQ(Join(scanned->query), "new");
  EXPECT_EQ(scanned->metadata->sliding_window().left(), 1);
  EXPECT_EQ(scanned->metadata->sliding_window().right(), 2);
}

TEST(RequestScannerTest, SkipsUnknownFieldsAndWrongWireTypes) {
  const std::string unknown = {
      '\xa0', '\x06', '\x05',                   // field 100 as a varint
      '\xba', '\x3e', '\x02', 'h', 'i',         // field 999 with 2 bytes
      '\xa3', '\x1f', '\x08', '\x01', '\xa4', '\x1f'};  // group 500
  const Request request = Example();
  const std::string message =
      absl::StrCat(unknown, request.SerializeAsString(), unknown);
  const Scan scanned(message);
  ASSERT_TRUE(scanned.ok()) << scanned.status();
  EXPECT_TRUE(MessageDifferencer::Equals(Reassemble(*scanned), request));
}

TEST(RequestScannerTest, RefusesWhatProtobufRefuses) {
  const std::string message = Example().SerializeAsString();
  // Every proper prefix that protobuf refuses, and garbage.
  for (size_t size = 0; size < message.size(); ++size) {
    const std::string prefix = message.substr(0, size);
    EXPECT_EQ(Scan(prefix).ok(), Request().ParseFromString(prefix)) << size;
  }
  for (const std::string& garbage :
       {std::string("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
        std::string("\x0c"), std::string("\xa2\x06\xff\xff\xff\xff\x0f"),
        std::string("\x00\x00", 2), std::string("\x02\x01x")}) {
    ASSERT_FALSE(Request().ParseFromString(garbage));
    const absl::Status status = Scan(garbage).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ReasonOf(status), error_reason::kInvalidRequest);
  }
}

// Each in one piece and cut everywhere: protobuf's CodedInputStream takes some of
// them, depending on where a piece ends.
TEST(RequestScannerTest, TakesVarintsOfTheLengthsThatProtobufTakes) {
  const auto padded = [](std::string bytes, size_t size) {
    for (char& byte : bytes) byte |= static_cast<char>(0x80);
    bytes.resize(size - 1, static_cast<char>(0x80));
    return bytes += '\0';
  };
  for (size_t size = 3; size <= 11; ++size) {
    for (const std::string& message :
         {absl::StrCat(padded("\xa2\x06", size), "\x01q"),  // tag of the query
          absl::StrCat("\xa2\x06", padded("\x01", size), "q"),
          absl::StrCat("\xa0\x1f", padded("\x01", size)),  // unknown field
          absl::StrCat("\xa3\x1f", padded("\x08", size), "\x01\xa4\x1f"),
          absl::StrCat("\xa3\x1f\x0a", padded("\x01", size), "x\xa4\x1f")}) {
      const bool valid = Request().ParseFromString(message);
      EXPECT_EQ(Scan(message).ok(), valid) << absl::CHexEscape(message);
      std::vector<absl::string_view> bytes;
      for (const char& byte : message) bytes.emplace_back(&byte, 1);
      EXPECT_EQ(Scan(bytes).ok(), valid) << absl::CHexEscape(message);
    }
  }
}

TEST(RequestScannerTest, TakesGroupsAsDeepAsProtobufTakes) {
  for (const int depth : {99, 100, 101, 1000}) {
    std::string message;
    for (int i = 0; i < depth; ++i) message += "\xa3\x1f";
    for (int i = 0; i < depth; ++i) message += "\xa4\x1f";
    EXPECT_EQ(Scan(message).ok(), Request().ParseFromString(message)) << depth;
    EXPECT_EQ(Scan(message).ok(), depth <= 100) << depth;
  }
}

// A scanned message of a stream, as Scan.
struct StreamScan {
  explicit StreamScan(absl::Span<const absl::string_view> fragments)
      : result(ScanStreamComputeRequest(fragments, arena)) {}
  explicit StreamScan(absl::string_view message) : StreamScan({&message, 1}) {}
  explicit StreamScan(std::string&& message) = delete;

  MessageArena arena;
  absl::StatusOr<ScannedStreamCompute> result;
};

StreamRequest StreamExample(int64_t tag) {
  StreamRequest message;
  message.set_tag(tag);
  *message.mutable_request() = Example();
  return message;
}

StreamRequest Reassemble(const ScannedStreamCompute& scanned) {
  StreamRequest message;
  message.set_tag(scanned.tag);
  *message.mutable_request() = Reassemble(scanned.request);
  return message;
}

TEST(StreamRequestScannerTest, AgreesWithProtobufHoweverTheMessageIsCut) {
  for (const int64_t tag : {int64_t{0}, int64_t{-1}, int64_t{1} << 62}) {
    const StreamRequest request = StreamExample(tag);
    const std::string message = request.SerializeAsString();
    const absl::string_view whole = message;
    for (size_t cut = 0; cut <= message.size(); ++cut) {
      const std::vector<absl::string_view> fragments = {
          whole.substr(0, cut), "", whole.substr(cut, 2),
          whole.substr(std::min(cut + 2, whole.size()))};
      const StreamScan scan(fragments);
      ASSERT_TRUE(scan.result.ok())
          << scan.result.status() << " cut at " << cut;
      EXPECT_TRUE(MessageDifferencer::Equals(Reassemble(*scan.result), request))
          << "cut at " << cut;
    }
  }
}

TEST(StreamRequestScannerTest, PointsIntoTheMessageInsteadOfCopying) {
  const std::string message = StreamExample(3).SerializeAsString();
  const StreamScan scan(message);
  ASSERT_TRUE(scan.result.ok());
  const Payload& query = scan.result->request.query;
  ASSERT_EQ(query.fragments.size(), 1u);
  EXPECT_EQ(query.fragments[0].data(), message.data() + message.find("qqq"));
  EXPECT_TRUE(scan.result->request.metadata->query().empty());
}

TEST(StreamRequestScannerTest, MergesRequestsAsProtobufDoes) {
  StreamRequest first = StreamExample(1);
  StreamRequest second;
  second.set_tag(2);
  second.mutable_request()->set_query("new");
  second.mutable_request()->add_query_lengths(7);
  second.mutable_request()->mutable_sliding_window()->set_right(4);
  const std::string message =
      absl::StrCat(first.SerializeAsString(), "\x12", std::string(1, '\0'),
                   second.SerializeAsString());
  StreamRequest expected;
  ASSERT_TRUE(expected.ParseFromString(message));
  const StreamScan scan(message);
  ASSERT_TRUE(scan.result.ok()) << scan.result.status();
  EXPECT_TRUE(MessageDifferencer::Equals(Reassemble(*scan.result), expected));
  EXPECT_EQ(Join(scan.result->request.query), "new");
}

// What is missing in one request cannot come from the next one.
TEST(StreamRequestScannerTest, RefusesARequestThatIsCutInTwo) {
  const std::string request = Example().SerializeAsString();
  const auto within = [](absl::string_view bytes) {
    return absl::StrCat("\x12", std::string(1, static_cast<char>(bytes.size())),
                        bytes);
  };
  for (size_t cut = 1; cut < 100; ++cut) {
    const std::string message =
        absl::StrCat(within(absl::string_view(request).substr(0, cut)),
                     within(absl::string_view(request).substr(cut, 27)));
    EXPECT_EQ(StreamScan(message).result.ok(),
              StreamRequest().ParseFromString(message))
        << cut;
  }
}

TEST(StreamRequestScannerTest, RefusesWhatProtobufRefuses) {
  const std::string message = StreamExample(5).SerializeAsString();
  int refused = 0;
  for (size_t size = 0; size < message.size(); ++size) {
    const std::string prefix = message.substr(0, size);
    const StreamScan scan(prefix);
    ASSERT_EQ(scan.result.ok(), StreamRequest().ParseFromString(prefix))
        << size;
    if (scan.result.ok()) continue;
    ++refused;
    EXPECT_EQ(scan.result.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ReasonOf(scan.result.status()), error_reason::kInvalidRequest);
  }
  EXPECT_GT(refused, 200);
  // Lengths of the request that are one more, or as much as can be said.
  const size_t at = message.find('\x12') + 1;
  for (const std::string& length :
       {std::string(1, static_cast<char>(message[at] + 1)) + message[at + 1],
        std::string("\xff\xff\xff\xff\x0f"),
        std::string("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")}) {
    const std::string longer =
        absl::StrCat(message.substr(0, at), length, message.substr(at + 2));
    EXPECT_FALSE(StreamScan(longer).result.ok());
    EXPECT_FALSE(StreamRequest().ParseFromString(longer));
  }
}

TEST(StreamRequestScannerTest, ReadsOtherWireTypesAsUnknownFields) {
  const std::string message =
      absl::StrCat("\x0a\x02hi", "\x10\x05", "\x13\x14",  // tag, request
                   StreamExample(6).SerializeAsString());
  StreamRequest expected;
  ASSERT_TRUE(expected.ParseFromString(message));
  const StreamScan scan(message);
  ASSERT_TRUE(scan.result.ok()) << scan.result.status();
  EXPECT_TRUE(
      MessageDifferencer::Equals(Reassemble(*scan.result), StreamExample(6)));
  const StreamScan empty{absl::string_view()};
  ASSERT_TRUE(empty.result.ok());
  EXPECT_EQ(empty.result->tag, 0);
  EXPECT_EQ(empty.result->request.metadata->ByteSizeLong(), 0u);
}

TEST(StreamRequestScannerTest, TakesGroupsAsDeepAsProtobufTakes) {
  for (const int depth : {97, 98, 99, 100, 101}) {
    std::string groups;
    for (int i = 0; i < depth; ++i) groups += "\xa3\x1f";
    for (int i = 0; i < depth; ++i) groups += "\xa4\x1f";
    const auto within = [](absl::string_view field, absl::string_view bytes) {
      return absl::StrCat(
          field, std::string(1, static_cast<char>(bytes.size() | 0x80)),
          std::string(1, static_cast<char>(bytes.size() >> 7)), bytes);
    };
    for (const std::string& message :
         {groups, within("\x12", groups),
          within("\x12", within("\x1a", groups))}) {
      EXPECT_EQ(StreamScan(message).result.ok(),
                StreamRequest().ParseFromString(message))
          << depth << " in " << message.size();
    }
  }
}

TEST(StreamRequestScannerTest, BoundsTheMetadataOfAllRequestsTogether) {
  StreamRequest part;
  for (size_t i = 0; i <= kMaxMetadataBytes / 2; ++i) {
    part.mutable_request()->add_query_lengths(0);
  }
  const std::string half = part.SerializeAsString();
  EXPECT_TRUE(StreamScan(half).result.ok());
  const std::string message = half + half;
  const StreamScan scan(message);
  EXPECT_EQ(scan.result.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(scan.result.status()), error_reason::kRequestTooLarge);
}

TEST(RequestScannerTest, BoundsTheMetadata) {
  Request request;
  for (size_t i = 0; i <= kMaxMetadataBytes; ++i) request.add_query_lengths(0);
  const std::string message = request.SerializeAsString();
  const absl::Status status = Scan(message).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(status), error_reason::kRequestTooLarge);
}

TEST(RequestScannerTest, DoesNotCountUnknownFieldsAsMetadata) {
  // Field 999 with more bytes than the metadata may have.
  const size_t size = kMaxMetadataBytes + 1;
  std::string message = "\xba\x3e";
  for (size_t rest = size; ; rest >>= 7) {
    message += static_cast<char>((rest & 0x7f) | (rest >= 0x80 ? 0x80 : 0));
    if (rest < 0x80) break;
  }
  message += std::string(size, 'x');
  message += Example().SerializeAsString();
  const Scan scanned(message);
  ASSERT_TRUE(scanned.ok()) << scanned.status();
  EXPECT_EQ(scanned->query.size_bytes(), 200u);
}

}  // namespace
}  // namespace attention
