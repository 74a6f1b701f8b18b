#include "client/cpp/decode_stream.h"

#include <cstdint>
#include <utility>

#include "client/cpp/decode_call.h"
#include "client/cpp/session_impl.h"
#include "client/cpp/session_messages.h"

namespace attention {

void DecodeStreamImpl::Send(const DecodeRequest& request, Done done) {
  const int64_t tag = stream_.NewTag();
  // Positions and messages have one order.
  const auto make_message = [&] {
    absl::StatusOr<grpc::ByteBuffer> message = SerializeStreamDecode(
        request, PositionsOf(request), tag, *caller_.memory);
    if (!message.ok()) return message;
    for (const DecodeItem& item : request.items) {
      static_cast<SessionImpl*>(item.session)
          ->Advance(item.layer, item.token_count);
    }
    return message;
  };
  stream_.Send(tag, make_message,
               [shape = DecodeShape(request), done = std::move(done)](
                   absl::StatusOr<v1::StreamDecodeResponse> response) mutable {
                 std::move(done)(response.ok()
                                     ? ResultOf(*std::move(response), shape)
                                     : response.status());
               });
}

}  // namespace attention
