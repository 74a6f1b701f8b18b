// What `attend` sends: a file's tensors, with flags and the file's metadata.
#ifndef ATTENTION_CLIENT_CLI_ATTEND_INPUT_H_
#define ATTENTION_CLIENT_CLI_ATTEND_INPUT_H_

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/arguments.h"
#include "client/cpp/attention_client.h"
#include "client/cpp/float8.h"
#include "client/safetensors/safetensors.h"

namespace attention::cli {

struct AttendInput {
  std::unique_ptr<SafetensorsFile> file;
  std::array<Float8Tensor, 3> rounded;  // with --dtype=fp8
  AttentionRequest request;             // views into `file` or `rounded`
  // What was taken from the metadata because no flag says otherwise, e.g.
  // "layout=bhsd"; empty when nothing was.
  std::vector<std::string> from_metadata;
};

// The flags that say what to compute.
std::vector<FlagSpec> AttendInputFlags();

// Flags win over metadata. Usage errors for wrong flags; otherwise errors of
// the file: unreadable, without one of the tensors, or tensors of a wrong type
// or rank. Scales of F8_E4M3 are in tensors whose names have "_scales" at the
// end, or 1.
absl::StatusOr<AttendInput> ReadAttendInput(const Arguments& arguments);

// As in flags and metadata, e.g. "bhsd".
std::string LayoutName(Layout layout);

SafetensorsType ToSafetensorsType(DataType data_type);

}  // namespace attention::cli

#endif  // ATTENTION_CLIENT_CLI_ATTEND_INPUT_H_
