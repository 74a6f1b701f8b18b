#include "client/cli/byte_format.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace attention::cli {

std::string FormatBytes(int64_t bytes) {
  if (bytes < 1000) return absl::StrCat(bytes, " B");
  double value = static_cast<double>(bytes);
  const char* unit = "";
  for (const char* next : {"kB", "MB", "GB", "TB", "PB", "EB"}) {
    if (value < 999.5 && *unit != '\0') break;
    value /= 1000;
    unit = next;
  }
  return absl::StrFormat("%.3g %s", value, unit);
}

}  // namespace attention::cli
