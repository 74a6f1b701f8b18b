// Another process that has memory on a GPU.
#ifndef ATTENTION_TESTS_GPU_MEMORY_OWNER_H_
#define ATTENTION_TESTS_GPU_MEMORY_OWNER_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdio>
#include <memory>
#include <string>

namespace attention::test {

// What such a process does, if this is one: the program's main calls it first.
// Returns whether it was.
bool RunAsMemoryOwner(int argc, char** argv);

class MemoryOwner {
 public:
  // Starts this program once more, which allocates `bytes` on GPU 0 and fills
  // them with `fill`. Null, with a failed expectation, when that does not work.
  static std::unique_ptr<MemoryOwner> Start(size_t bytes, unsigned char fill);
  // Kills it.
  ~MemoryOwner();

  const std::string& handle() const { return handle_; }
  const std::string& uuid() const { return uuid_; }

  // The first byte, as that process sees it.
  unsigned char FirstByte() { return static_cast<unsigned char>(Ask("read")); }
  void Free() { Ask("free"); }
  void Kill();

 private:
  int Ask(const std::string& command);
  std::string ReadLine();

  pid_t pid_ = -1;
  std::FILE* commands_ = nullptr;
  std::FILE* answers_ = nullptr;
  std::string handle_;
  std::string uuid_;
};

}  // namespace attention::test

#endif  // ATTENTION_TESTS_GPU_MEMORY_OWNER_H_
