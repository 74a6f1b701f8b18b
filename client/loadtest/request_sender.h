// Where the load goes.
#ifndef ATTENTION_CLIENT_LOADTEST_REQUEST_SENDER_H_
#define ATTENTION_CLIENT_LOADTEST_REQUEST_SENDER_H_

#include "client/cpp/attention_client.h"

namespace attention::loadtest {

// Thread-safe.
class RequestSender {
 public:
  virtual ~RequestSender() = default;

  // Starts a call and returns. `done` is called exactly once, on any thread,
  // the calling one included. The request outlives the call.
  virtual void Send(const AttentionRequest& request, Client::Done done) = 0;
};

}  // namespace attention::loadtest

#endif  // ATTENTION_CLIENT_LOADTEST_REQUEST_SENDER_H_
