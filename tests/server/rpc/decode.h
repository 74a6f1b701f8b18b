// Shorthands of the tests that decode requests.
#ifndef ATTENTION_TESTS_SERVER_RPC_DECODE_H_
#define ATTENTION_TESTS_SERVER_RPC_DECODE_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "attention/v1/attention.pb.h"
#include "server/rpc/request_decoder.h"
#include "server/rpc/response_parts.h"

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
  const PayloadHeader header(message.kRequestFieldNumber, request.size());
  return absl::StrCat(
      message.SerializeAsString(),
      absl::string_view(reinterpret_cast<const char*>(header.data()),
                        header.size()),
      request);
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
