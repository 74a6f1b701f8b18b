// What a decoding load does, and what comes of it.
#ifndef ATTENTION_CLIENT_LOADTEST_DECODE_PLAN_H_
#define ATTENTION_CLIENT_LOADTEST_DECODE_PLAN_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/loadtest/latency_histogram.h"
#include "client/loadtest/load_stats.h"
#include "client/loadtest/request_shape.h"
#include "kernels/paged_params.h"

namespace attention::loadtest {

struct DecodePlan {
  int client_count = 1;
  int sessions_per_client = 1;
  int layer_count = 1;
  int layers_per_call = 1;    // a divisor of layer_count
  int64_t context = 4096;     // tokens that each layer has before
  int64_t step_tokens = 1;    // of each session, in each step
  int64_t turn_tokens = 256;  // a multiple of step_tokens
  KvDataType kv_data_type = KvDataType::kSame;
  std::optional<SplitPolicy> split_policy;  // unset: the server's
  bool reserves = true;   // memory for all tokens of a turn, from the start
  bool streamed = false;  // StreamDecode instead of Decode

  int64_t session_count() const {
    return int64_t{client_count} * sessions_per_client;
  }
  // In all layers of all sessions, when a turn begins.
  int64_t resident_tokens() const {
    return session_count() * layer_count * context;
  }
};

struct DecodeLoadResult {
  LoadResult calls;
  LatencyHistogram step_latency;  // all layers
  int64_t generated_tokens = 0;   // of measured steps, each session's
};

// The shape of a tape: `shape` has heads, dimensions, type and window.
// Resolved. InvalidArgument as RequestShape::Resolve.
absl::StatusOr<RequestShape> TapeShape(const RequestShape& shape,
                                       const DecodePlan& plan);

// Of a call's answer.
AnswerSize SizeOfCall(const RequestShape& tape_shape, const DecodePlan& plan);

// E.g. "64 clients, 1 session each, 4096 tokens in 1 layer".
std::string Describe(const DecodePlan& plan);

}  // namespace attention::loadtest

#endif  // ATTENTION_CLIENT_LOADTEST_DECODE_PLAN_H_
