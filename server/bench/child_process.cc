#include "server/bench/child_process.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

namespace attention {
namespace {

[[noreturn]] void Die(const char* what) {
  std::perror(what);
  std::exit(1);
}

}  // namespace

ChildProcess::ChildProcess(
    const std::vector<std::string>& arguments,
    const std::vector<std::pair<std::string, std::string>>& variables) {
  int in[2];
  int out[2];
  if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) Die("pipe2");
  pid_ = fork();
  if (pid_ < 0) Die("fork");
  if (pid_ == 0) {
    dup2(in[0], STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    for (const auto& [name, value] : variables) {
      setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
    }
    char program[] = "/proc/self/exe";
    std::vector<char*> argv = {program};
    for (const std::string& argument : arguments) {
      argv.push_back(const_cast<char*>(argument.c_str()));
    }
    argv.push_back(nullptr);
    execv(program, argv.data());
    Die("execv");
  }
  close(in[0]);
  close(out[1]);
  input_ = in[1];
  output_ = fdopen(out[0], "r");
}

ChildProcess::~ChildProcess() {
  close(input_);
  std::fclose(output_);
  waitpid(pid_, nullptr, 0);
}

void ChildProcess::WriteLine(const std::string& line) {
  const std::string text = line + "\n";
  if (write(input_, text.data(), text.size()) !=
      static_cast<ssize_t>(text.size())) {
    Die("write");
  }
}

std::string ChildProcess::ReadLine() {
  std::string line;
  for (int c; (c = std::fgetc(output_)) != EOF && c != '\n';) {
    line.push_back(static_cast<char>(c));
  }
  return line;
}

}  // namespace attention
