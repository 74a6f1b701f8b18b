// Byte counts for people.
#ifndef ATTENTION_CLIENT_CLI_BYTE_FORMAT_H_
#define ATTENTION_CLIENT_CLI_BYTE_FORMAT_H_

#include <cstdint>
#include <string>

namespace attention::cli {

// In powers of 1000: "999 B", "1.5 kB", "34.1 MB", "2.15 GB".
std::string FormatBytes(int64_t bytes);

}  // namespace attention::cli

#endif  // ATTENTION_CLIENT_CLI_BYTE_FORMAT_H_
