// Addresses that a server listens on.
#ifndef ATTENTION_SERVER_LIFECYCLE_LISTENER_H_
#define ATTENTION_SERVER_LIFECYCLE_LISTENER_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace attention {

struct ListenAddress {
  // "host:port", or "unix:path".
  std::string text;
  // Of a TCP address, else empty.
  std::string host;  // without the brackets of IPv6
  int port = 0;      // 0: any free port
  // Of a unix socket, else empty.
  std::string path;

  bool is_unix() const { return !path.empty(); }
  // As `text`, with the port that was bound.
  std::string Bound(int bound_port) const;
};

// INVALID_ARGUMENT naming the address when it is none of "host:port",
// "[ipv6]:port", "unix:path" and "unix:///path".
absl::StatusOr<ListenAddress> ParseListenAddress(absl::string_view text);

// Removes the socket file of a server that is gone. Anything else that is there
// stays: ALREADY_EXISTS when a server answers or when it is no socket.
absl::Status RemoveStaleSocket(const std::string& path);

// Why the address cannot be bound, for a message: gRPC does not say. Empty when
// nothing is wrong with it (any more).
std::string DiagnoseBindFailure(const ListenAddress& address);

}  // namespace attention

#endif  // ATTENTION_SERVER_LIFECYCLE_LISTENER_H_
