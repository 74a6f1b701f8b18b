// Files that programs write their results to.
//
// A file is written next to its place under a temporary name and renamed when
// it is complete: a failure leaves what was there before. Links are followed.
// Devices and pipes are written to in place.
#ifndef ATTENTION_CLIENT_OUTPUT_FILE_OUTPUT_FILE_H_
#define ATTENTION_CLIENT_OUTPUT_FILE_OUTPUT_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace attention {

// Whether WriteOutputFile could begin now, to be asked before long work. Leaves
// nothing behind. Errors as of WriteOutputFile.
absl::Status CheckOutputFile(const std::string& path);

// Replaces the file by the parts, one after the other. Errors have the code of
// the operating system's error and name the path.
absl::Status WriteOutputFile(const std::string& path,
                             absl::Span<const absl::string_view> parts);

}  // namespace attention

#endif  // ATTENTION_CLIENT_OUTPUT_FILE_OUTPUT_FILE_H_
