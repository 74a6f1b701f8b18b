// Keys and values that stay on the server; see CreateSession in
// attention.proto.
//
//   auto session = client->sessions().Create(
//       {.data_type = attention::DataType::kBFloat16, .query_head_count = 16,
//        .kv_head_count = 8, .head_dim_qk = 128, .head_dim_v = 128,
//        .layer_count = 28});
//   if (!session.ok()) return session.status();
//   (*session)->Append({.layer = 0, .token_count = n, .key = k, .value = v});
//   (*session)->Attend({.layer = 0, .token_count = n, .query = q});
//
// What decodes, many sessions in one call, is in client/cpp/sessions.h.
//
// A session counts the tokens of each layer here, too, and says with each call
// where they are to go. So a call that failed may be repeated as it is,
// whatever became of it on the server: tokens are appended at most once. A
// layer has one writer; who wants to go on with what another one wrote opens
// the session, or calls Refresh.
//
// A session that is gone. A server that restarts has forgotten its sessions,
// and so has one whose device failed or where the session expired:
// IsSessionGone then recognises the error. Keys and values are the caller's to
// keep, or to compute anew: Rebuild makes the session again from them.
// WRONG_REPLICA is another case: the session is where ErrorFact(status,
// "replica") says, and a client of that server opens it by its name.
#ifndef ATTENTION_CLIENT_CPP_SESSION_H_
#define ATTENTION_CLIENT_CPP_SESSION_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "attention/v1/attention.pb.h"
#include "client/cpp/attention_client.h"
#include "kernels/attention_params.h"
#include "kernels/paged_params.h"

namespace attention {

// See SessionConfiguration and CreateSessionRequest in attention.proto.
struct SessionOptions {
  DataType data_type = DataType::kBFloat16;
  int32_t query_head_count = 1;
  int32_t kv_head_count = 1;
  int32_t head_dim_qk = 128;
  int32_t head_dim_v = 128;
  int32_t layer_count = 1;
  MaskKind mask = MaskKind::kCausalBottomRight;
  std::optional<int64_t> window_left;
  int64_t sink_token_count = 0;
  Precision precision = Precision::kIeee;
  KvDataType kv_data_type = KvDataType::kSame;
  std::vector<float> key_scales;  // of kFloat8E4M3, one per K/V head
  std::vector<float> value_scales;
  std::optional<SplitPolicy> split_policy;  // unset: the server's
  int64_t reserved_token_count = 0;
  std::optional<absl::Duration> ttl;  // unset: the server's
};

// Keys and values of consecutive tokens of one layer, contiguous, in the
// session's data type. The caller keeps them until the call has returned.
struct LayerTokens {
  int32_t layer = 0;
  int64_t token_count = 0;
  const void* key = nullptr;    // [token_count, kv_head_count, head_dim_qk]
  const void* value = nullptr;  // [token_count, kv_head_count, head_dim_v]
};

// Queries for what a layer has; they are its last tokens, for the mask.
struct LayerQueries {
  struct KeyRange {
    int64_t begin = 0;
    int64_t end = 0;
  };

  int32_t layer = 0;
  int64_t token_count = 1;
  const void* query = nullptr;  // [token_count, query_head_count, head_dim_qk]
  std::optional<KeyRange> key_range;  // unset: all
  std::optional<double> scale;        // default 1 / sqrt(head_dim_qk)
  bool return_log_sum_exp = false;
  int32_t priority = 0;
};

// Destroy sessions before their client, and after all calls that use them. That
// leaves the session where it is; Delete forgets it on the server.
//
// Methods are thread-safe. Calls that append to one layer come one after the
// other; a DecodeStream allows more. Errors are the server's, unless said
// otherwise.
class Session {
 public:
  struct ForkOptions {
    std::optional<int64_t> token_count;  // unset: all that each layer has
    int64_t reserved_token_count = 0;
    std::optional<absl::Duration> ttl;  // unset: as this one's
  };

  virtual ~Session() = default;

  // "sessions/...", for Sessions::Open.
  virtual std::string name() const = 0;
  virtual const SessionOptions& options() const = 0;

  // Tokens of a layer, 0...layer_count - 1, after all calls that succeeded.
  virtual int64_t token_count(int32_t layer) const = 0;

  // Appends tokens to one layer, or to several, in this order. What exceeds a
  // megabyte or concerns several parts is streamed; a stream that breaks goes
  // on where it was.
  virtual absl::Status Append(absl::Span<const LayerTokens> parts,
                              const Client::CallOptions& call = {}) = 0;
  absl::Status Append(const LayerTokens& tokens,
                      const Client::CallOptions& call = {}) {
    return Append(absl::MakeConstSpan(&tokens, 1), call);
  }

  // The output is [token_count, query_head_count, head_dim_v], as
  // MergeAttentionStates takes it.
  virtual absl::StatusOr<AttentionResult> Attend(
      const LayerQueries& queries, const Client::CallOptions& call = {}) = 0;

  // A new session with the same tokens, which shares memory with this one.
  virtual absl::StatusOr<std::unique_ptr<Session>> Fork(
      const ForkOptions& options, const Client::CallOptions& call = {}) = 0;

  // Leaves each layer `token_count` tokens at most.
  virtual absl::Status Truncate(int64_t token_count,
                                const Client::CallOptions& call = {}) = 0;

  // Starts the time to live anew, and may change it.
  virtual absl::Status Renew(std::optional<absl::Duration> ttl = std::nullopt,
                             const Client::CallOptions& call = {}) = 0;

  // OK also when the server has no such session any more.
  virtual absl::Status Delete(const Client::CallOptions& call = {}) = 0;

  // What the server says of the session. Counts tokens as it does from now on.
  virtual absl::StatusOr<v1::Session> Refresh(
      const Client::CallOptions& call = {}) = 0;

  // Makes the session anew, with these options and another name, and appends
  // `history` to it: from its first token, the tokens of each layer in order.
  // Deletes the old one if it is there. After an error, repeat it.
  virtual absl::Status Rebuild(absl::Span<const LayerTokens> history,
                               const Client::CallOptions& call = {}) = 0;
};

// Whether the error says that a session's tokens are gone: it is not there, or
// its contents are unknown. Rebuild helps.
bool IsSessionGone(const absl::Status& status);

}  // namespace attention

#endif  // ATTENTION_CLIENT_CPP_SESSION_H_
