// Hostile bytes as a safetensors file: refused with an error that says what is
// wrong, or read into tensors that lie inside the file, have the bytes that their
// shapes say, and cover the data without overlaps.
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/safetensors/safetensors.h"
#include "tests/fuzz/fuzz_target.h"

namespace attention::test {
namespace {

absl::StatusOr<bool> RunSafetensors(absl::string_view input) {
  const auto file = SafetensorsFile::FromBytes(std::string(input));
  if (!file.ok()) {
    if (file.status().code() != absl::StatusCode::kInvalidArgument ||
        file.status().message().empty()) {
      return absl::InternalError(
          absl::StrCat("refused with ", file.status().ToString()));
    }
    return false;
  }
  // Every byte is read, so that AddressSanitizer sees one outside of the file.
  std::string covered;
  for (const auto& [name, tensor] : (*file)->tensors()) {
    __int128 bytes = ElementBytes(tensor.type);
    for (int64_t size : tensor.shape) {
      if (size < 0) return absl::InternalError("a negative size");
      bytes *= size;
      if (bytes > static_cast<__int128>(input.size())) {
        return absl::InternalError(absl::StrCat(name, " is larger than the file"));
      }
    }
    if (bytes != static_cast<__int128>(tensor.bytes.size())) {
      return absl::InternalError(
          absl::StrCat(name, " does not have the bytes of its shape"));
    }
    covered.append(tensor.bytes.data(), tensor.bytes.size());
  }
  uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i) {
    header_bytes = header_bytes << 8 | static_cast<uint8_t>(input[i]);
  }
  if (covered.size() != input.size() - 8 - header_bytes) {
    return absl::InternalError("the tensors do not cover the data");
  }
  return true;
}

std::string File(absl::string_view header, absl::string_view data = "") {
  std::string file;
  for (int i = 0; i < 8; ++i) {
    file += static_cast<char>(header.size() >> (8 * i) & 0xff);
  }
  return absl::StrCat(file, header, data);
}

std::vector<Seed> SafetensorsSeeds() {
  const std::string two = File(
      R"({"__metadata__":{"a":"b"},)"
      R"("q":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
      R"("k":{"dtype":"BF16","shape":[3],"data_offsets":[8,14]}})",
      "12345678abcdef");
  const auto tensor = [](absl::string_view shape, absl::string_view offsets) {
    return File(absl::StrCat(R"({"q":{"dtype":"F32","shape":[)", shape,
                             R"(],"data_offsets":[)", offsets, "]}}"),
                "12345678");
  };
  return {
      {"two_tensors", two, true},
      {"no_tensors", File("{}"), true},
      {"scalar", File(R"({"s":{"dtype":"U8","shape":[],"data_offsets":[0,1]}})",
                      "x"), true},
      {"spaces", File("{}    "), true},
      {"empty", "", false},
      {"truncated_header", two.substr(0, 40), false},
      {"truncated_data", two.substr(0, two.size() - 1), false},
      {"header_of_2_64", std::string(8, '\xff') + "{}", false},
      {"hole", tensor("1", "4,8"), false},
      {"offsets_reversed", tensor("2", "8,0"), false},
      {"offsets_past_the_end", tensor("3", "0,12"), false},
      {"negative_size", tensor("-2", "0,8"), false},
      {"size_overflows", tensor("4611686018427387905,2", "0,8"), false},
      {"size_of_2_64", tensor("18446744073709551616", "0,8"), false},
      {"duplicate_name",
       File(R"({"q":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
            R"("q":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})"),
       false},
      {"deep", File(std::string(10'000, '[')), false},
      {"not_an_object", File("[]"), false},
  };
}

}  // namespace

const FuzzTarget kSafetensorsTarget = {"safetensors", RunSafetensors,
                                       SafetensorsSeeds};

}  // namespace attention::test
