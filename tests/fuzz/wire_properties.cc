#include "tests/fuzz/wire_properties.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "server/engine/error_reason.h"

namespace attention::test {
namespace {

std::string Canonical(google::protobuf::Message& message) {
  message.DiscardUnknownFields();
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream output(&stream);
    output.SetSerializationDeterministic(true);
    message.SerializeToCodedStream(&output);
  }
  return bytes;
}

}  // namespace

absl::Status Broken(absl::string_view what) {
  return absl::InternalError(what);
}

std::string Join(const Payload& payload) {
  return absl::StrJoin(payload.fragments, "");
}

absl::Status CheckRefusal(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kNotFound:
      break;
    default:
      return Broken(absl::StrCat("refused with ", status.ToString()));
  }
  if (status.message().empty() || ReasonOf(status).empty()) {
    return Broken("refused without saying why");
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> CheckScan(const std::string& bytes,
                               const absl::Status& scan,
                               google::protobuf::Message& expected) {
  const bool valid = expected.ParseFromString(bytes);
  if (valid != scan.ok()) {
    return Broken(
        valid ? absl::StrCat("protobuf takes what the scanner refuses: ",
                             scan.ToString())
              : "the scanner takes what protobuf refuses");
  }
  if (valid) return true;
  if (absl::Status status = CheckRefusal(scan); !status.ok()) return status;
  return false;
}

absl::Status CheckFound(google::protobuf::Message& found,
                        google::protobuf::Message& expected) {
  if (Canonical(found) == Canonical(expected)) return absl::OkStatus();
  return Broken(absl::StrCat("the scanner found\n", found.DebugString(),
                             "where protobuf finds\n", expected.DebugString()));
}

}  // namespace attention::test
