#include "tests/fuzz/request_seeds.h"

#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "attention/v1/attention.pb.h"

namespace attention::test {
namespace {

using Request = v1::ComputeAttentionRequest;

// Pieces of the wire format, for what protobuf would not write.
enum WireType { kVarint, kFixed64, kBytes, kStartGroup, kEndGroup, kFixed32 };

std::string Varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) {
    bytes += static_cast<char>((value & 0x7f) | 0x80);
  }
  return bytes += static_cast<char>(value);
}

std::string Tag(int field, WireType type) {
  return Varint(static_cast<uint64_t>(field) << 3 | type);
}

std::string BytesField(int field, absl::string_view bytes) {
  return absl::StrCat(Tag(field, kBytes), Varint(bytes.size()), bytes);
}

std::string Groups(int field, int depth, absl::string_view inside = "") {
  std::string bytes(inside);
  for (int i = 0; i < depth; ++i) {
    bytes = absl::StrCat(Tag(field, kStartGroup), bytes, Tag(field, kEndGroup));
  }
  return bytes;
}

// As a message of StreamComputeAttention.
std::string InStream(absl::string_view request) {
  return absl::StrCat(Tag(1, kVarint), Varint(~uint64_t{0}),
                      BytesField(2, request));
}

void SetShape(v1::TensorDescriptor* tensor, std::vector<int64_t> shape,
              std::vector<int64_t> strides = {}) {
  tensor->Clear();
  tensor->mutable_shape()->Add(shape.begin(), shape.end());
  tensor->mutable_strides()->Add(strides.begin(), strides.end());
}

// Two sequences of 2 queries and 3 keys, 2 query heads and 1 K/V head.
Request Example() {
  Request request;
  request.set_data_type(v1::DATA_TYPE_BFLOAT16);
  SetShape(request.mutable_query_descriptor(), {2, 2, 2, 4});
  SetShape(request.mutable_key_descriptor(), {2, 3, 1, 4});
  SetShape(request.mutable_value_descriptor(), {2, 3, 1, 5});
  request.set_query(std::string(2 * 2 * 2 * 4 * 2, 'q'));
  request.set_key(std::string(2 * 3 * 1 * 4 * 2, 'k'));
  request.set_value(std::string(2 * 3 * 1 * 5 * 2, 'v'));
  return request;
}

template <typename Change>
Request With(Change change) {
  Request request = Example();
  change(request);
  return request;
}

Request Options() {
  return With([](Request& r) {
    r.set_mask_type(v1::MASK_TYPE_CAUSAL_BOTTOM_RIGHT);
    r.mutable_sliding_window()->set_left(2);
    r.mutable_sliding_window()->set_right(1);
    r.set_scale(-0.5);
    r.set_precision(v1::PRECISION_TF32);
    r.set_return_log_sum_exp(true);
    r.set_return_weights(true);
    r.set_priority(-7);
  });
}

Request Float8() {
  return With([](Request& r) {
    r.set_data_type(v1::DATA_TYPE_FLOAT8_E4M3);
    for (std::string* tensor :
         {r.mutable_query(), r.mutable_key(), r.mutable_value()}) {
      tensor->resize(tensor->size() / 2);
    }
    for (const float scale : {0.5f, 3e38f}) r.add_query_scales(scale);
    r.add_key_scales(1e-45f);
    r.set_return_log_sum_exp(true);
  });
}

template <typename Change>
std::string Float8With(Change change) {
  Request request = Float8();
  change(request);
  return request.SerializeAsString();
}

// A field of repeated floats as protobuf does not write them: one by one.
std::string UnpackedFloat8() {
  const auto number = [](int field, float value) {
    char bytes[sizeof(float)];
    std::memcpy(bytes, &value, sizeof(float));
    return absl::StrCat(Tag(field, kFixed32),
                        absl::string_view(bytes, sizeof(float)));
  };
  Request packed = Float8();
  packed.clear_query_scales();
  return absl::StrCat(number(23, 1.5f), packed.SerializeAsString(),
                      number(23, 2.5f), number(25, 0.5f));
}

Request HeadsFirst() {
  return With([](Request& r) {
    r.set_layout(v1::LAYOUT_BHSD);
    SetShape(r.mutable_query_descriptor(), {2, 2, 2, 4}, {16, 4, 8, 1});
    SetShape(r.mutable_key_descriptor(), {2, 1, 3, 4}, {12, 0, 4, 1});
    SetShape(r.mutable_value_descriptor(), {2, 1, 3, 5});
    r.set_algorithm(v1::ALGORITHM_THREE_STEP);
  });
}

Request Ragged() {
  return With([](Request& r) {
    r.set_layout(v1::LAYOUT_THD);
    SetShape(r.mutable_query_descriptor(), {4, 2, 4});
    SetShape(r.mutable_key_descriptor(), {6, 1, 4});
    SetShape(r.mutable_value_descriptor(), {6, 1, 5});
    for (int64_t length : {3, 0, 1}) r.add_query_lengths(length);
    for (int64_t length : {1, 5, 0}) r.add_key_lengths(length);
    r.set_return_weights(true);
  });
}

Request Padded() {
  return With([](Request& r) {
    for (int64_t length : {1, 2}) r.add_query_lengths(length);
    for (int64_t length : {0, 3}) r.add_key_lengths(length);
    r.set_return_weights(true);
  });
}

Request InRegions() {
  return With([](Request& r) {
    r.set_region_owner_token(kSeedOwner);
    int64_t offset = 1;
    const auto refer = [&](v1::RegionReference* reference, int64_t size) {
      reference->set_region_name(kSeedRegion);
      reference->set_byte_offset(offset);
      reference->set_byte_size(size);
      offset += size;
    };
    refer(r.mutable_query_reference(), r.query().size());
    refer(r.mutable_key_reference(), r.key().size());
    refer(r.mutable_value_reference(), r.value().size());
    refer(r.mutable_output_reference(), 2 * 2 * 2 * 5 * 2);
    r.clear_query();
    r.clear_key();
    r.clear_value();
  });
}

// Numbers that arithmetic gets wrong, in shapes, strides, lengths and ranges.
void AddNumbers(std::vector<std::pair<std::string, std::string>>& refused) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  for (int64_t number : {kMax, kMax / 2, int64_t{1} << 32, int64_t{-1}, -kMax - 1}) {
    const auto add = [&](absl::string_view name, const Request& request) {
      refused.emplace_back(
          absl::StrCat(name, "_", static_cast<uint64_t>(number)),
          request.SerializeAsString());
    };
    add("shape", With([&](Request& r) {
          r.mutable_query_descriptor()->set_shape(0, number);
        }));
    add("stride", With([&](Request& r) {
          SetShape(r.mutable_key_descriptor(), {2, 3, 1, 4}, {12, number, 4, 1});
        }));
    add("length", With([&](Request& r) {
          r.add_query_lengths(number);
          r.add_query_lengths(number);
        }));
    Request in_regions = InRegions();
    in_regions.mutable_key_reference()->set_byte_offset(number);
    add("region_offset", in_regions);
    in_regions = InRegions();
    in_regions.mutable_key_reference()->set_byte_size(number);
    add("region_size", in_regions);
  }
}

}  // namespace

std::vector<Seed> RequestSeeds() {
  const std::string valid = Example().SerializeAsString();
  Request without_payloads = Example();
  without_payloads.clear_query();
  without_payloads.clear_key();
  without_payloads.clear_value();
  const std::string metadata = without_payloads.SerializeAsString();
  const std::string payloads = valid.substr(metadata.size());
  const std::string query_twice =
      absl::StrCat(BytesField(100, "an earlier query"), valid);
  const std::string too_long = "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01";

  const std::pair<std::string, std::string> accepted[] = {
      {"valid", valid},
      {"options", Options().SerializeAsString()},
      {"heads_first", HeadsFirst().SerializeAsString()},
      {"float8", Float8().SerializeAsString()},
      {"unpacked_scales", UnpackedFloat8()},
      {"ragged", Ragged().SerializeAsString()},
      {"padded", Padded().SerializeAsString()},
      {"in_regions", InRegions().SerializeAsString()},
      {"payload_before_metadata", absl::StrCat(payloads, metadata)},
      {"duplicate_payload", query_twice},
      {"duplicate_field",
       absl::StrCat(Tag(1, kVarint), Varint(v1::DATA_TYPE_FLOAT16), valid)},
      {"merged_submessage",
       absl::StrCat(valid, BytesField(10, absl::StrCat(Tag(1, kVarint), "\x02")))},
      {"unknown_fields",
       absl::StrCat(Tag(103, kVarint), "\x05", Tag(500, kFixed64), "12345678",
                    valid, Tag(77, kFixed32), "1234", BytesField(99, "bytes"))},
      {"unknown_group", absl::StrCat(valid, Groups(500, 3, BytesField(1, "x")))},
      {"wrong_wire_types",
       absl::StrCat(Tag(100, kVarint), "\x05", Tag(101, kFixed32), "1234",
                    Tag(102, kFixed64), "12345678", Groups(100, 1),
                    BytesField(1, "x"), Tag(3, kVarint), "\x01", valid)},
      {"padded_varints",
       absl::StrCat("\x88\x80\x80\x80", absl::string_view("\0", 1), "\x83\x80",
                    absl::string_view("\0", 1), valid)},
      {"wide_enum", absl::StrCat(Tag(1, kVarint), Varint(~uint64_t{0}), valid)},
  };
  std::vector<std::pair<std::string, std::string>> refused = {
      {"empty", ""},
      {"metadata_only", metadata},
      {"payload_only", payloads},
      {"truncated_payload", valid.substr(0, valid.size() - 1)},
      {"truncated_metadata", valid.substr(0, 7)},
      {"truncated_tag", absl::StrCat(valid, "\xa2")},
      {"truncated_length", absl::StrCat(valid, Tag(100, kBytes), "\x80")},
      {"length_past_the_end", absl::StrCat(valid, Tag(100, kBytes), "\x05", "abcd")},
      {"length_of_2_gib",
       absl::StrCat(valid, Tag(100, kBytes), Varint(uint64_t{1} << 31))},
      {"length_of_2_64",
       absl::StrCat(valid, Tag(100, kBytes), Varint(~uint64_t{0}))},
      {"submessage_past_the_end", absl::StrCat(Tag(3, kBytes), "\x7f", valid)},
      {"overlong_tag", absl::StrCat(too_long, valid)},
      {"tag_of_6_bytes", absl::StrCat("\xa2\x86\x80\x80\x80",
                                      absl::string_view("\0\1q", 3), valid)},
      {"overlong_length", absl::StrCat(Tag(100, kBytes), too_long, valid)},
      {"overlong_value", absl::StrCat(Tag(1, kVarint), too_long, valid)},
      {"field_0", absl::StrCat(Tag(0, kBytes), "\x01", "x", valid)},
      {"reserved_wire_type", absl::StrCat("\x0e", valid)},
      {"zero_tag", absl::StrCat(valid, absl::string_view("\0\0", 2))},
      {"open_group", absl::StrCat(valid, Tag(500, kStartGroup))},
      {"closed_group", absl::StrCat(valid, Tag(500, kEndGroup))},
      {"crossed_groups",
       absl::StrCat(Tag(500, kStartGroup), Tag(501, kEndGroup), valid)},
      {"deep_groups", absl::StrCat(valid, Groups(500, 1000))},
      {"text_that_is_not_utf8",
       absl::StrCat(valid, BytesField(17, BytesField(1, "\xc3\x28")))},
      {"unknown_region", With([](Request& r) {
                           r = InRegions();
                           r.mutable_value_reference()->set_region_name("none");
                         }).SerializeAsString()},
      {"too_many_scales", Float8With([](Request& r) { r.add_key_scales(1); })},
      {"scale_of_0", Float8With([](Request& r) { r.set_key_scales(0, 0); })},
      {"scale_of_nan", Float8With([](Request& r) {
         r.set_query_scales(1, std::numeric_limits<float>::quiet_NaN());
       })},
      {"scales_of_bfloat16",
       With([](Request& r) { r.add_value_scales(1); }).SerializeAsString()},
      {"weights_of_float8",
       Float8With([](Request& r) { r.set_return_weights(true); })},
      {"half_a_scale",
       absl::StrCat(Float8().SerializeAsString(), BytesField(25, "ab"))},
      {"answer_too_large", With([](Request& r) {
                             SetShape(r.mutable_query_descriptor(),
                                      {2, 1 << 20, 2, 4}, {0, 0, 0, 0});
                           }).SerializeAsString()},
  };
  AddNumbers(refused);

  std::vector<Seed> seeds;
  for (const auto& [name, message] : accepted) {
    const std::string streamed = InStream(message);
    seeds.push_back({absl::StrCat(name, "_in_stream"),
                     FragmentedMessage::Input(streamed), true});
    seeds.push_back(
        {absl::StrCat(name, "_in_stream_in_fragments"),
         FragmentedMessage::Input(streamed, {1, 11, 12, 13, streamed.size() / 2,
                                             streamed.size() - 3}),
         true});
    seeds.push_back({name, FragmentedMessage::Input(message), true});
    // In the middle of a tag, of a length, of an element; with empty fragments.
    seeds.push_back({absl::StrCat(name, "_in_fragments"),
                     FragmentedMessage::Input(
                         message, {0, 1, 2, metadata.size() + 1,
                                   metadata.size() + 2, metadata.size() + 2,
                                   message.size() - 3}),
                     true});
  }
  seeds.push_back({"request_in_two_fields",
                   FragmentedMessage::Input(
                       absl::StrCat(InStream(metadata), InStream(payloads))),
                   true});
  seeds.push_back({"request_past_the_end",
                   FragmentedMessage::Input(absl::StrCat(
                       Tag(2, kBytes), Varint(valid.size() + 1), valid)),
                   false});
  seeds.push_back({"field_cut_in_two_requests",
                   FragmentedMessage::Input(absl::StrCat(
                       InStream(absl::string_view(valid).substr(0, 5)),
                       InStream(absl::string_view(valid).substr(5)))),
                   false});
  for (const auto& [name, message] : refused) {
    seeds.push_back({absl::StrCat(name, "_in_stream"),
                     FragmentedMessage::Input(InStream(message)), false});
    seeds.push_back({name, FragmentedMessage::Input(message), false});
    seeds.push_back({absl::StrCat(name, "_in_fragments"),
                     FragmentedMessage::Input(
                         message, {1, message.size() / 2, message.size()}),
                     false});
  }
  return seeds;
}

}  // namespace attention::test
