// One client of a decoding load.
#ifndef ATTENTION_CLIENT_LOADTEST_DECODE_CLIENT_H_
#define ATTENTION_CLIENT_LOADTEST_DECODE_CLIENT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/cpp/sessions.h"
#include "client/loadtest/decode_runner.h"

namespace attention::loadtest {

// Used by one thread, which waits while callbacks send step after step: waking
// it for each would be part of every latency.
class DecodeRunner::DecodeClient {
 public:
  // `index` among the clients.
  DecodeClient(DecodeRunner& runner, int index);

  // Opens the sessions and appends their prefixes.
  absl::Status Prepare();
  // Decodes until the run is over.
  void Decode() ABSL_LOCKS_EXCLUDED(mutex_);
  // As far as the server still has them.
  void DeleteSessions();

 private:
  // The tape of a session's layer.
  const Input& Tape(int session, int layer) const;
  // What a session begins with.
  std::vector<LayerTokens> Prefix(int session) const;
  // Whether all layers have exactly as many tokens.
  bool HasPrefix(const Session& session) const;
  // Cuts the sessions back to their prefixes, or makes them anew.
  absl::Status GoBack();
  // Puts the items of the next call and their tensors together.
  void Fill();
  void SendNext();
  void OnAnswer(absl::StatusOr<DecodeResult> result);
  // Compares the rows that the tapes know.
  absl::Status Check(const DecodeResult& result, int64_t& compared) const;
  void EndTurn() ABSL_LOCKS_EXCLUDED(mutex_);

  DecodeRunner& runner_;
  const int index_;
  Sessions& target_;
  std::vector<std::unique_ptr<Session>> sessions_;
  std::unique_ptr<DecodeStream> stream_;  // null: unary calls

  // Of the call under way.
  int layer_ = 0;         // the first one
  int64_t position_ = 0;  // on the tapes, in tokens
  std::string query_, key_, value_;
  DecodeRequest request_;
  Call call_;
  absl::Duration step_begin_;
  bool failed_ = false;

  absl::Mutex mutex_;
  bool turn_ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace attention::loadtest

#endif  // ATTENTION_CLIENT_LOADTEST_DECODE_CLIENT_H_
