// The command line of attention-server.
#ifndef ATTENTION_SERVER_FLAGS_H_
#define ATTENTION_SERVER_FLAGS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/lifecycle/attention_server.h"
#include "server/logging/log.h"

namespace attention {

// A flag's size in bytes: "1048576", "512KiB", "1.5GiB" (KiB, MiB, GiB, TiB, or
// with powers of ten KB, MB, GB, TB).
struct ByteSize {
  int64_t bytes = 0;
};
bool AbslParseFlag(absl::string_view text, ByteSize* size, std::string* error);
std::string AbslUnparseFlag(ByteSize size);

struct ServerFlags {
  AttentionServer::Options server;
  absl::Duration drain_timeout;
  LogFormat log_format = LogFormat::kText;
  LogLevel log_level = LogLevel::kInfo;
};

// Parses the command line; prints help or the version and exits if asked to, and
// exits with an error for unknown flags and values of the wrong type.
// INVALID_ARGUMENT, naming the flag, the value and the bound, for values out of
// their range.
absl::StatusOr<ServerFlags> ParseServerFlags(int argc, char** argv);

}  // namespace attention

#endif  // ATTENTION_SERVER_FLAGS_H_
