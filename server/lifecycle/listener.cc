#include "server/lifecycle/listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "server/lifecycle/grpc_settings.h"

namespace attention {
namespace {

absl::Status Invalid(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("listen address \"", text, "\": ", why,
                   "; expected host:port, [ipv6]:port or unix:path"));
}

absl::StatusOr<ListenAddress> ParseUnix(absl::string_view text,
                                        absl::string_view path) {
  absl::ConsumePrefix(&path, "//");  // unix:///path
  if (path.empty()) return Invalid(text, "the path is empty");
  constexpr size_t kMaxPath = sizeof(sockaddr_un::sun_path) - 1;
  if (path.size() > kMaxPath) {
    return Invalid(text, absl::StrCat("the path must be at most ", kMaxPath,
                                      " bytes; got ", path.size()));
  }
  ListenAddress address;
  address.text = absl::StrCat("unix:", path);
  address.path = std::string(path);
  return address;
}

sockaddr_un UnixName(const std::string& path) {
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  path.copy(name.sun_path, sizeof(name.sun_path) - 1);
  return name;
}

// Connects to see whether anyone answers.
bool IsAnswered(const std::string& path) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const auto close_fd = absl::MakeCleanup([fd] { close(fd); });
  const sockaddr_un name = UnixName(path);
  return connect(fd, reinterpret_cast<const sockaddr*>(&name), sizeof(name)) ==
         0;
}

absl::Status RemoveStaleSocket(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) return absl::OkStatus();
  if (!S_ISSOCK(info.st_mode)) {
    return absl::AlreadyExistsError(
        absl::StrCat(path, " exists and is not a socket"));
  }
  if (IsAnswered(path)) {
    return absl::AlreadyExistsError(
        absl::StrCat("another server listens on unix:", path));
  }
  if (unlink(path.c_str()) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("cannot remove ", path, ": ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

void SetOption(int socket, int level, int option, int value) {
  setsockopt(socket, level, option, &value, sizeof(value));
}

// A socket that listens, or -1 and errno.
int OpenSocket(const sockaddr* name, socklen_t size) {
  const int fd =
      socket(name->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  if (name->sa_family != AF_UNIX) {
    SetOption(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    // Connections inherit these.
    SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    SetOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT,
              static_cast<int>(absl::ToInt64Milliseconds(kPeerTimeout)));
  }
  if (name->sa_family == AF_INET6) SetOption(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (bind(fd, name, size) == 0 && listen(fd, SOMAXCONN) == 0) return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

int PortOf(int socket) {
  sockaddr_storage name = {};
  socklen_t size = sizeof(name);
  getsockname(socket, reinterpret_cast<sockaddr*>(&name), &size);
  // The port is at the same place in both families.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&name)->sin_port);
}

// The machine has no such address or not its family.
bool IsAbsent(int error) {
  return error == EADDRNOTAVAIL || error == EAFNOSUPPORT;
}

absl::Status CannotListen(const ListenAddress& address, const char* why) {
  return absl::UnavailableError(
      absl::StrCat("cannot listen on ", address.text, ": ", why));
}

}  // namespace

std::string ListenAddress::Bound(int bound_port) const {
  if (is_unix()) return text;
  return absl::StrContains(host, ':')
             ? absl::StrCat("[", host, "]:", bound_port)
             : absl::StrCat(host, ":", bound_port);
}

absl::StatusOr<ListenAddress> ParseListenAddress(absl::string_view text) {
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "unix:")) return ParseUnix(text, rest);

  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return Invalid(text, "no port");
  ListenAddress address;
  address.text = std::string(text);
  if (!absl::SimpleAtoi(text.substr(colon + 1), &address.port) ||
      address.port < 0 || address.port > 65535) {
    return Invalid(text, "the port must be in [0, 65535]");
  }
  absl::string_view host = text.substr(0, colon);
  const bool bracketed =
      absl::ConsumePrefix(&host, "[") && absl::ConsumeSuffix(&host, "]");
  if (host.empty()) return Invalid(text, "the host is empty");
  if (!bracketed && absl::StrContains(host, ':')) {
    return Invalid(text, "an IPv6 address needs brackets");
  }
  address.host = std::string(host);
  return address;
}

absl::StatusOr<Listener> Listener::Open(const ListenAddress& address) {
  Listener listener;
  const absl::Status status = address.is_unix() ? listener.OpenUnix(address)
                                                : listener.OpenTcp(address);
  if (!status.ok()) return status;
  return listener;
}

Listener::~Listener() {
  if (!path_.empty()) unlink(path_.c_str());
  for (int socket : sockets_) close(socket);
}

absl::Status Listener::OpenUnix(const ListenAddress& address) {
  if (auto s = RemoveStaleSocket(address.path); !s.ok()) return s;
  const sockaddr_un name = UnixName(address.path);
  const int socket =
      OpenSocket(reinterpret_cast<const sockaddr*>(&name), sizeof(name));
  if (socket < 0) return CannotListen(address, std::strerror(errno));
  sockets_.push_back(socket);
  path_ = address.path;
  address_ = address.text;
  return absl::OkStatus();
}

absl::Status Listener::OpenTcp(const ListenAddress& address) {
  const bool is_wildcard = address.host == "0.0.0.0" || address.host == "::";
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* infos = nullptr;
  // Without a host: every address of the machine.
  const int error =
      getaddrinfo(is_wildcard ? nullptr : address.host.c_str(),
                  absl::StrCat(address.port).c_str(), &hints, &infos);
  if (error != 0) return CannotListen(address, gai_strerror(error));
  const auto free_infos = absl::MakeCleanup([infos] { freeaddrinfo(infos); });
  // IPv6 first: its wildcard includes IPv4's.
  int port = address.port;
  int absent = 0;
  for (const int family : {AF_INET6, AF_INET}) {
    for (addrinfo* info = infos; info != nullptr; info = info->ai_next) {
      if (info->ai_family != family) continue;
      if (is_wildcard && !sockets_.empty()) continue;
      reinterpret_cast<sockaddr_in*>(info->ai_addr)->sin_port =
          htons(static_cast<uint16_t>(port));
      const int socket = OpenSocket(info->ai_addr, info->ai_addrlen);
      if (socket < 0 && !IsAbsent(errno)) {
        return CannotListen(address, std::strerror(errno));
      }
      if (socket < 0) {
        absent = errno;
        continue;
      }
      sockets_.push_back(socket);
      port = PortOf(socket);
    }
  }
  if (sockets_.empty()) return CannotListen(address, std::strerror(absent));
  address_ = address.Bound(port);
  return absl::OkStatus();
}

}  // namespace attention
