// Shorthands of the tests that decode requests.
#ifndef ATTENTION_TESTS_SERVER_RPC_DECODE_H_
#define ATTENTION_TESTS_SERVER_RPC_DECODE_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "attention/v1/attention.pb.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "server/rpc/request_decoder.h"

namespace attention::test {

// `message` must outlive the work.
inline absl::StatusOr<DecodedRequest> DecodeBytes(
    absl::string_view message, const RequestLimits& limits = {}) {
  MessageArena arena;
  absl::StatusOr<ScannedRequest> scanned = ScanRequest({&message, 1}, arena);
  if (!scanned.ok()) return scanned.status();
  return DecodeRequest(*std::move(scanned), limits);
}

// A request within a message of a stream, even one that cannot be parsed.
inline std::string WithinStream(absl::string_view request) {
  v1::StreamComputeAttentionRequest message;
  message.set_tag(-1);
  std::string bytes = message.SerializeAsString();
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream out(&stream);
    out.WriteTag(message.kRequestFieldNumber << 3 | 2);
    out.WriteVarint32(static_cast<uint32_t>(request.size()));
  }
  return absl::StrCat(bytes, request);
}

// As DecodeBytes, of a message of a stream.
inline absl::StatusOr<DecodedRequest> DecodeStreamBytes(
    absl::string_view message, const RequestLimits& limits = {}) {
  MessageArena arena;
  absl::StatusOr<ScannedStreamCompute> scanned =
      ScanStreamComputeRequest({&message, 1}, arena);
  if (!scanned.ok()) return scanned.status();
  return DecodeRequest(std::move(scanned->request), limits);
}

// Only the status: the payloads are gone.
inline absl::Status DecodeStatus(const v1::ComputeAttentionRequest& request,
                                 const RequestLimits& limits = {}) {
  const std::string message = request.SerializeAsString();
  return DecodeBytes(message, limits).status();
}

}  // namespace attention::test

#endif  // ATTENTION_TESTS_SERVER_RPC_DECODE_H_
