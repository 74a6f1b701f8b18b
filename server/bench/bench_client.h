// The caller that the transport benchmark drives its servers with.
#ifndef ATTENTION_SERVER_BENCH_BENCH_CLIENT_H_
#define ATTENTION_SERVER_BENCH_BENCH_CLIENT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace attention {

struct BenchClientOptions {
  std::string target;
  // "raw": a serialised request whose tensors are sent from where they are, an
  //   answer that is gathered once into the caller's memory.
  // "library": attention::Client, from tensors to tensors.
  // "stream": as "library", with StreamAttention.
  // "steps": every caller keeps a stream open and sends messages on it, on the
  //   library's event loop; "callback_steps": with gRPC's callbacks.
  std::string kind;
  // Calls that are under way at the same time.
  int callers = 1;
  int channels = 1;
  // As Client::Options::poll_time; not for "raw" and "callback_steps".
  std::optional<absl::Duration> poll_time;
  // How long a size is measured each time.
  absl::Duration duration;
  // Further gRPC channel arguments; not for "library" and "stream".
  std::vector<std::pair<std::string, int>> channel_arguments;
};

// Reads sizes from standard input, one per line, and answers each with a line
// "SIZE MEDIAN_LATENCY_US CALLS_PER_SECOND". A size is "4KiB", "16MiB": bytes of
// Q, K, V and O together, of one bf16 sequence with 8 heads of 64; or "decode":
// one query and 512 keys of such heads; for "steps" it is "step", 8 KiB for 4, or
// "reference", 256 bytes for 64. Keeps connections and memory in between,
// so that only the first time needs a warm-up.
absl::Status RunBenchClient(const BenchClientOptions& options);

}  // namespace attention

#endif  // ATTENTION_SERVER_BENCH_BENCH_CLIENT_H_
