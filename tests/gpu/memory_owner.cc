#include "tests/gpu/memory_owner.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

extern char** environ;

namespace attention::test {
namespace {

constexpr char kFlag[] = "--own-memory";

void Check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::cout << "error " << cudaGetErrorString(error) << std::endl;
  std::exit(1);
}

}  // namespace

bool RunAsMemoryOwner(int argc, char** argv) {
  if (argc != 4 || std::string(argv[1]) != kFlag) return false;
  void* data = nullptr;
  const size_t bytes = std::strtoull(argv[2], nullptr, 10);
  Check(cudaSetDevice(0));
  Check(cudaMalloc(&data, bytes));
  Check(cudaMemset(data, std::atoi(argv[3]), bytes));
  Check(cudaDeviceSynchronize());
  cudaIpcMemHandle_t handle;
  Check(cudaIpcGetMemHandle(&handle, data));
  cudaDeviceProp properties;
  Check(cudaGetDeviceProperties(&properties, 0));
  std::cout << absl::BytesToHexString(
                   absl::string_view(handle.reserved, sizeof(handle.reserved)))
            << std::endl
            << absl::BytesToHexString(
                   absl::string_view(properties.uuid.bytes, 16))
            << std::endl;
  for (std::string command; std::getline(std::cin, command);) {
    unsigned char byte = 0;
    if (command == "read") {
      Check(cudaMemcpy(&byte, data, 1, cudaMemcpyDeviceToHost));
    } else {
      Check(cudaFree(data));
    }
    std::cout << static_cast<int>(byte) << std::endl;
  }
  return true;
}

std::unique_ptr<MemoryOwner> MemoryOwner::Start(size_t bytes,
                                                unsigned char fill) {
  int to[2], from[2];
  if (pipe(to) != 0 || pipe(from) != 0) return nullptr;
  std::string program = "/proc/self/exe", flag = kFlag;
  std::string size = absl::StrCat(bytes), value = absl::StrCat(fill);
  char* arguments[] = {program.data(), flag.data(), size.data(), value.data(),
                       nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, to[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, from[1], STDOUT_FILENO);
  for (int fd : {to[1], from[0]}) {
    posix_spawn_file_actions_addclose(&actions, fd);
  }
  auto owner = std::make_unique<MemoryOwner>();
  const int error = posix_spawn(&owner->pid_, program.c_str(), &actions,
                                nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  close(to[0]);
  close(from[1]);
  owner->commands_ = fdopen(to[1], "w");
  owner->answers_ = fdopen(from[0], "r");
  EXPECT_EQ(error, 0);
  owner->handle_ = absl::HexStringToBytes(owner->ReadLine());
  owner->uuid_ = absl::HexStringToBytes(owner->ReadLine());
  EXPECT_EQ(owner->handle_.size(), 64u);
  return owner;
}

MemoryOwner::~MemoryOwner() {
  Kill();
  std::fclose(commands_);
  std::fclose(answers_);
}

void MemoryOwner::Kill() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

int MemoryOwner::Ask(const std::string& command) {
  std::fprintf(commands_, "%s\n", command.c_str());
  std::fflush(commands_);
  return std::atoi(ReadLine().c_str());
}

std::string MemoryOwner::ReadLine() {
  char line[256] = "";
  EXPECT_NE(std::fgets(line, sizeof(line), answers_), nullptr);
  EXPECT_FALSE(absl::StartsWith(line, "error")) << line;
  std::string text = line;
  if (!text.empty()) text.pop_back();
  return text;
}

}  // namespace attention::test
