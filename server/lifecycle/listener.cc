#include "server/lifecycle/listener.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

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

// Connects to see whether anyone answers.
bool IsAnswered(const std::string& path) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const auto close_fd = absl::MakeCleanup([fd] { close(fd); });
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  path.copy(name.sun_path, sizeof(name.sun_path) - 1);
  return connect(fd, reinterpret_cast<sockaddr*>(&name), sizeof(name)) == 0;
}

int TryBind(const addrinfo& info) {
  const int fd = socket(info.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  const auto close_fd = absl::MakeCleanup([fd] { close(fd); });
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  return bind(fd, info.ai_addr, info.ai_addrlen) == 0 ? 0 : errno;
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

std::string DiagnoseBindFailure(const ListenAddress& address) {
  if (address.is_unix()) {
    const std::string folder =
        address.path.substr(0, address.path.rfind('/') + 1);
    return access(folder.empty() ? "." : folder.c_str(), W_OK) == 0
               ? ""
               : std::strerror(errno);
  }
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* infos = nullptr;
  const int error = getaddrinfo(address.host.c_str(),
                                absl::StrCat(address.port).c_str(), &hints,
                                &infos);
  if (error != 0) return gai_strerror(error);
  const auto free_infos = absl::MakeCleanup([infos] { freeaddrinfo(infos); });
  for (const addrinfo* info = infos; info != nullptr; info = info->ai_next) {
    if (const int e = TryBind(*info); e != 0) return std::strerror(e);
  }
  return "";
}

}  // namespace attention
