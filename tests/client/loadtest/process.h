// A child process of a test.
#ifndef ATTENTION_TESTS_CLIENT_LOADTEST_PROCESS_H_
#define ATTENTION_TESTS_CLIENT_LOADTEST_PROCESS_H_

#include <sys/types.h>

#include <cstdio>
#include <string>
#include <vector>

namespace attention::loadtest {

// Killed, if it still runs, and reaped when the object goes. Output beyond a
// pipe's 64 KiB that nobody reads would block the process.
class Process {
 public:
  // `arguments[0]` is the program's path. A failure to start is a test failure.
  explicit Process(std::vector<std::string> arguments);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // The next line of standard error without its end; empty at the end of file.
  std::string ReadErrorLine();

  void Signal(int signal);

  struct Result {
    int exit_code = -1;  // 128 + signal if killed by one
    std::string output;  // all of standard output
    std::string error;   // what is left of standard error
  };
  // Waits for the process to end.
  Result Wait();

 private:
  pid_t pid_ = -1;
  std::FILE* output_ = nullptr;
  std::FILE* error_ = nullptr;
};

}  // namespace attention::loadtest

#endif  // ATTENTION_TESTS_CLIENT_LOADTEST_PROCESS_H_
