// A unary Decode.
#ifndef ATTENTION_CLIENT_CPP_DECODE_CALL_H_
#define ATTENTION_CLIENT_CPP_DECODE_CALL_H_

#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "client/cpp/session_caller.h"
#include "client/cpp/sessions.h"

namespace attention {

// Where the tokens of each item are to go: behind those that its session has
// counted and those of items before it.
std::vector<int64_t> PositionsOf(const DecodeRequest& request);

// Calls `done` exactly once. Of items whose tokens an earlier attempt appended,
// without its answer having arrived, the queries attend to what is there.
void StartDecode(const SessionCaller& caller, const DecodeRequest& request,
                 absl::Duration timeout, Sessions::DecodeDone done);

}  // namespace attention

#endif  // ATTENTION_CLIENT_CPP_DECODE_CALL_H_
