// Another process that runs this program.
#ifndef ATTENTION_SERVER_BENCH_CHILD_PROCESS_H_
#define ATTENTION_SERVER_BENCH_CHILD_PROCESS_H_

#include <sys/types.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace attention {

// Ends its standard input, and waits for it, when destroyed.
class ChildProcess {
 public:
  // With the arguments after the program's name, and with variables added to
  // the environment. Ends the calling program if no process can be started.
  ChildProcess(
      const std::vector<std::string>& arguments,
      const std::vector<std::pair<std::string, std::string>>& variables);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Gives it a line, without the line break, to read.
  void WriteLine(const std::string& line);

  // The next line of its standard output, without the line break. Empty at the
  // end.
  std::string ReadLine();

 private:
  pid_t pid_ = 0;
  int input_ = -1;
  FILE* output_ = nullptr;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_BENCH_CHILD_PROCESS_H_
