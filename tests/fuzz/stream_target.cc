// A message of StreamAttention, taken apart. Properties: the scanner takes what
// protobuf takes, and finds in it what protobuf finds.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "attention/v1/attention.pb.h"
#include "server/rpc/request_scanner.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/wire_properties.h"

namespace attention::test {
namespace {

using Request = v1::StreamAttentionRequest;

absl::StatusOr<bool> RunStream(absl::string_view input) {
  const FragmentedMessage message(input);
  MessageArena arena;
  const absl::StatusOr<ScannedStreamRequest> scanned =
      ScanStreamRequest(message.fragments(), arena);
  Request expected;
  const absl::StatusOr<bool> valid =
      CheckScan(message.message(), scanned.status(), expected);
  if (!valid.ok() || !*valid) return valid;
  Request found = *scanned->metadata;
  if (!found.data().empty()) return Broken("the chunk is among the metadata");
  found.set_data(Join(scanned->data));
  absl::Status same = CheckFound(found, expected);
  if (!same.ok()) return same;
  return true;
}

std::vector<Seed> StreamSeeds() {
  std::vector<Seed> seeds;
  const auto add = [&seeds](const char* name, absl::string_view message,
                            bool accepted, std::vector<size_t> cuts = {}) {
    seeds.push_back({name, FragmentedMessage::Input(message, cuts), accepted});
  };
  Request chunk;
  chunk.set_tensor(v1::TENSOR_VALUE);
  chunk.set_byte_offset(1234567);
  chunk.set_data("some bytes of a tensor");
  const std::string plain = chunk.SerializeAsString();
  add("chunk", plain, true);
  add("cut_chunk", plain, true, {1, 5, 9, 12});
  add("truncated_chunk", absl::string_view(plain).substr(0, plain.size() - 3),
      false);
  // The last payload wins, and the metadata of both is merged.
  add("two_chunks", plain + plain, true);
  add("unknown_field",
      plain +
          "\x1a\x03"
          "abc",
      true);
  // Field 100 as a varint; a length past the end.
  add("wrong_type", "\xa0\x06\x05", true);
  add("length_past_the_end",
      "\xa2\x06\x7f"
      "abc",
      false);
  add("empty", "", true);

  Request first;
  v1::StreamAttentionStart& start = *first.mutable_start();
  start.set_query_byte_size(64);
  start.set_upload_id("sixteen bytes or more");
  v1::ComputeAttentionRequest& request = *start.mutable_request();
  request.set_data_type(v1::DATA_TYPE_FLOAT32);
  for (int extent : {1, 2, 2, 4}) {
    request.mutable_query_descriptor()->add_shape(extent);
  }
  request.set_scale(0.5);
  const std::string opening = first.SerializeAsString();
  add("start", opening, true, {3, 20});
  // The data comes first; the start has payloads that it must not have.
  add("data_before_start", plain + opening, true);
  request.set_query("inline");
  add("start_with_payload", first.SerializeAsString(), true);
  return seeds;
}

}  // namespace

const FuzzTarget kStreamTarget = {"stream", RunStream, StreamSeeds};

}  // namespace attention::test
