// Addresses that a server listens on, and their sockets.
#ifndef ATTENTION_SERVER_LIFECYCLE_LISTENER_H_
#define ATTENTION_SERVER_LIFECYCLE_LISTENER_H_

#include <string>
#include <utility>
#include <vector>

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

// The sockets that listen on one address: several where its host has several
// addresses. A wildcard, 0.0.0.0 or [::], means both families.
class Listener {
 public:
  // UNAVAILABLE naming the address and what is wrong with it. Removes the
  // socket file of a server that is gone; anything else that is there stays:
  // ALREADY_EXISTS when a server answers or when it is no socket.
  static absl::StatusOr<Listener> Open(const ListenAddress& address);

  // Closes the sockets and removes their file.
  ~Listener();

  Listener(Listener&& other) noexcept
      : sockets_(std::exchange(other.sockets_, {})),
        address_(std::move(other.address_)),
        path_(std::exchange(other.path_, {})) {}
  Listener& operator=(Listener&&) = delete;

  // Non-blocking.
  const std::vector<int>& sockets() const { return sockets_; }
  // As it was given, with the port that was bound.
  const std::string& address() const { return address_; }

 private:
  Listener() = default;
  absl::Status OpenUnix(const ListenAddress& address);
  absl::Status OpenTcp(const ListenAddress& address);

  std::vector<int> sockets_;
  std::string address_;
  std::string path_;  // of a unix socket, once there is the file
};

}  // namespace attention

#endif  // ATTENTION_SERVER_LIFECYCLE_LISTENER_H_
