#include "tests/client/loadtest/process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "gtest/gtest.h"

extern char** environ;

namespace attention::loadtest {
namespace {

std::string ReadAll(std::FILE* file) {
  std::string text;
  for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) {
    text += static_cast<char>(c);
  }
  return text;
}

}  // namespace

Process::Process(std::vector<std::string> arguments) {
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);

  int output[2], error[2];
  EXPECT_EQ(pipe2(output, O_CLOEXEC), 0);
  EXPECT_EQ(pipe2(error, O_CLOEXEC), 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, output[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, error[1], STDERR_FILENO);
  const int result =
      posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(output[1]);
  close(error[1]);
  output_ = fdopen(output[0], "r");
  error_ = fdopen(error[0], "r");
  if (result != 0) {
    pid_ = -1;
    ADD_FAILURE() << argv[0] << ": " << std::strerror(result);
  }
}

Process::~Process() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  std::fclose(output_);
  std::fclose(error_);
}

std::string Process::ReadErrorLine() {
  std::string line;
  for (int c = std::fgetc(error_); c != EOF && c != '\n';
       c = std::fgetc(error_)) {
    line += static_cast<char>(c);
  }
  return line;
}

void Process::Signal(int signal) {
  ASSERT_GT(pid_, 0);
  ASSERT_EQ(kill(pid_, signal), 0);
}

Process::Result Process::Wait() {
  Result result;
  if (pid_ <= 0) return result;
  result.error = ReadAll(error_);
  result.output = ReadAll(output_);
  int status = 0;
  EXPECT_EQ(waitpid(std::exchange(pid_, -1), &status, 0) > 0, true);
  result.exit_code =
      WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

}  // namespace attention::loadtest
