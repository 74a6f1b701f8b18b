// Opens sessions, and decodes: appends tokens to layers of sessions and attends
// to all that is there then, in one step.
//
//   attention::DecodeRequest request;
//   request.items = {{a.get(), layer}, {b.get(), layer}};
//   request.query = q;  // [2, query_head_count, head_dim_qk]
//   request.key = k;    // [2, kv_head_count, head_dim_qk]
//   request.value = v;  // [2, kv_head_count, head_dim_v]
//   absl::StatusOr<attention::DecodeResult> result =
//       client->sessions().Decode(request);
//
// The server computes steps of all its callers together.
#ifndef ATTENTION_CLIENT_CPP_SESSIONS_H_
#define ATTENTION_CLIENT_CPP_SESSIONS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/v1/attention.pb.h"
#include "client/cpp/attention_client.h"
#include "client/cpp/session.h"

namespace attention {

// A step of one layer of a session.
struct DecodeItem {
  Session* session = nullptr;
  int32_t layer = 0;
  int64_t token_count = 1;
};

// Steps of sessions of one head configuration. The items' tokens lie one after
// the other, contiguous, in the sessions' data type; T is the sum of their
// counts. Sessions and tensors stay until the call has returned, or its
// callback was called.
struct DecodeRequest {
  std::vector<DecodeItem> items;
  const void* query = nullptr;  // [T, query_head_count, head_dim_qk]
  const void* key = nullptr;    // [T, kv_head_count, head_dim_qk]
  const void* value = nullptr;  // [T, kv_head_count, head_dim_v]
  std::optional<double> scale;  // default 1 / sqrt(head_dim_qk)
  bool return_log_sum_exp = false;
  int32_t priority = 0;
};

struct DecodeResult {
  // One per item. Errors have the server's message, reason and facts.
  std::vector<absl::Status> statuses;
  std::string output;  // [T, query_head_count, head_dim_v]; 0 where failed
  std::string
      log_sum_exp;  // fp32 [T, query_head_count]; empty unless asked for
  v1::ComputeAttentionTimings timings;
};

// Steps that do not wait for each other: those of one session keep their order,
// those of different sessions overtake. Thread-safe. Destroying it cancels what
// is under way and waits until each callback has returned; do so before the
// client, and not in a callback.
class DecodeStream {
 public:
  using Done = absl::AnyInvocable<void(absl::StatusOr<DecodeResult>)>;

  virtual ~DecodeStream() = default;

  // Counts the items' tokens as appended at once, so that the next step may
  // follow. `done` is called exactly once, on a thread of the client's, or
  // before this returns when the stream has ended; it may Send, but must not
  // block. The server takes ServerLimits.max_pipelined_messages at a time,
  // further ones wait in this process. Tensors may go as soon as this has
  // returned.
  //
  // Steps are not repeated. After an error of a step or of the stream, wait for
  // what is under way, then Refresh its sessions: what the server did not
  // append is to be sent again.
  virtual void Send(const DecodeRequest& request, Done done) = 0;

  // Waits for every answer, and ends the stream. OK unless it broke.
  virtual absl::Status Close() = 0;
};

// The sessions of a client's tenant. Thread-safe; belongs to its client.
class Sessions {
 public:
  using DecodeDone = absl::AnyInvocable<void(absl::StatusOr<DecodeResult>)>;

  virtual ~Sessions() = default;

  // Errors are the server's. An answer that got lost leaves a session behind,
  // which expires.
  virtual absl::StatusOr<std::unique_ptr<Session>> Create(
      const SessionOptions& options, const Client::CallOptions& call = {}) = 0;

  // A session that was created by anybody of the tenant, with all its tokens.
  virtual absl::StatusOr<std::unique_ptr<Session>> Open(
      const std::string& name, const Client::CallOptions& call = {}) = 0;

  // All of the tenant's, without their layers' counts of tokens.
  virtual absl::StatusOr<std::vector<v1::Session>> List(
      const Client::CallOptions& call = {}) = 0;

  // One step per item, in one call. Errors that concern all items are the
  // call's, others those of their items. A call that is sent again appends
  // nothing twice: where the tokens are there already, and only the answer got
  // lost, the queries attend to them.
  virtual absl::StatusOr<DecodeResult> Decode(
      const DecodeRequest& request, const Client::CallOptions& call = {}) = 0;

  // As Decode, without waiting; as Client::ComputeAsync. One step of a layer at
  // a time.
  virtual void DecodeAsync(const DecodeRequest& request, DecodeDone done,
                           const Client::CallOptions& call = {}) = 0;

  // A stream over one connection. The timeout is of the whole stream, by
  // default infinite.
  virtual std::unique_ptr<DecodeStream> OpenDecodeStream(
      const Client::CallOptions& call = {}) = 0;
};

}  // namespace attention

#endif  // ATTENTION_CLIENT_CPP_SESSIONS_H_
