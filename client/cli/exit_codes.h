// What attention-cli exits with; a promise to scripts.
#ifndef ATTENTION_CLIENT_CLI_EXIT_CODES_H_
#define ATTENTION_CLIENT_CLI_EXIT_CODES_H_

namespace attention::cli {

enum ExitCode : int {
  kExitOk = 0,
  kExitFailed = 1,       // a file, the connection or the server failed
  kExitUsage = 2,        // the command line is wrong; nothing was done
  kExitCheckFailed = 3,  // the answer is outside of the tolerance
};

}  // namespace attention::cli

#endif  // ATTENTION_CLIENT_CLI_EXIT_CODES_H_
