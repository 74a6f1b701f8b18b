// The servers that the transport benchmark compares, each for a process of its
// own. All of them are set up by TuneAllocator and ConfigureServer.
#ifndef ATTENTION_SERVER_BENCH_BENCH_SERVER_H_
#define ATTENTION_SERVER_BENCH_BENCH_SERVER_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace attention {

struct BenchServerOptions {
  // "echo": messages as bytes in and out, nothing touched. Also those of
  //   StreamDecode, each answered at once.
  // "queue": StreamDecode as in "echo", on server/transport.
  // "gather": as "echo", and the request is copied once into a pooled block.
  // "stubs": generated callback stubs; tensors are copied from the message
  //   into a pooled block, and the answer from one into the message.
  // "server": AttentionServer on a device that computes nothing.
  std::string mode;
  // As AttentionServer::Options::listen.
  std::vector<std::string> listen;
  // Further gRPC channel arguments; not for "server".
  std::vector<std::pair<std::string, int>> channel_arguments;
  // glibc's malloc arenas; 0: as TuneAllocator leaves it.
  int malloc_arenas = 0;
  // As AttentionServer::Options::rpc_processors.
  int rpc_processors = 0;
  // As AttentionServer::Options::poll_time, if set; for "server" and
  // "queue".
  std::optional<absl::Duration> poll_time;
};

// The answer's tensor bytes, which the echoes learn from this metadata.
inline constexpr char kAnswerBytesKey[] = "answer-bytes";

// Serves, prints one bound address per line, and returns at the end of the
// standard input.
absl::Status RunBenchServer(const BenchServerOptions& options);

}  // namespace attention

#endif  // ATTENTION_SERVER_BENCH_BENCH_SERVER_H_
