// The command line of attention-load.
#ifndef ATTENTION_CLIENT_LOADTEST_OPTIONS_H_
#define ATTENTION_CLIENT_LOADTEST_OPTIONS_H_

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/loadtest/client_sender.h"
#include "client/loadtest/decode_plan.h"
#include "client/loadtest/input_set.h"
#include "client/loadtest/load_runner.h"
#include "client/loadtest/shape_mix.h"

namespace attention::loadtest {

// Where tensors lie when they are sent.
enum class Placement { kOwnMemory, kSharedMemory, kCudaIpc };

struct LoadOptions {
  LoadPlan plan;
  // --mode=decode; `mix` then has the shape of the tapes.
  std::optional<DecodePlan> decode;
  ShapeMix mix;
  InputSet::Options inputs;
  ClientSender::Options sender;
  Placement placement = Placement::kOwnMemory;
  int cuda_device = 0;  // of Placement::kCudaIpc
  absl::Duration connect_timeout;
  std::string json_path;  // empty: none
  std::string csv_path;   // empty: none
  bool show_progress = false;
  bool all_errors_allowed = false;
  std::set<absl::StatusCode> allowed_errors;

  // OK when the run is a success: no mismatch, no error other than the allowed
  // ones, and answers compared if any were to be.
  absl::Status Verdict(const LoadStats& total) const;
};

// Parses and checks the command line, and reads the mix file. InvalidArgument
// or NotFound naming flag, value and bound. Like
// ParseProgramFlags it exits with 1 when a flag is unknown or has no value of
// its type, and with 0 after --help and --version.
absl::StatusOr<LoadOptions> ParseCommandLine(int argc, char** argv);

}  // namespace attention::loadtest

#endif  // ATTENTION_CLIENT_LOADTEST_OPTIONS_H_
