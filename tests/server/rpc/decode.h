// Shorthands of the tests that decode requests.
#ifndef ATTENTION_TESTS_SERVER_RPC_DECODE_H_
#define ATTENTION_TESTS_SERVER_RPC_DECODE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "attention/v1/attention.pb.h"
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

// Only the status: the payloads are gone.
inline absl::Status DecodeStatus(const v1::ComputeAttentionRequest& request,
                                 const RequestLimits& limits = {}) {
  const std::string message = request.SerializeAsString();
  return DecodeBytes(message, limits).status();
}

}  // namespace attention::test

#endif  // ATTENTION_TESTS_SERVER_RPC_DECODE_H_
