// A POSIX shared memory object as a caller creates one.
#ifndef ATTENTION_TESTS_SERVER_REGIONS_SHARED_MEMORY_OBJECT_H_
#define ATTENTION_TESTS_SERVER_REGIONS_SHARED_MEMORY_OBJECT_H_

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "absl/strings/str_cat.h"

namespace attention::test {

// Removed at the end of its life at the latest.
class SharedMemoryObject {
 public:
  explicit SharedMemoryObject(size_t size) : name_(FreshName()) {
    fd_ = shm_open(name_.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
    EXPECT_GE(fd_, 0);
    Resize(size);
  }

  ~SharedMemoryObject() {
    close(fd_);
    Unlink();
  }

  SharedMemoryObject(const SharedMemoryObject&) = delete;
  SharedMemoryObject& operator=(const SharedMemoryObject&) = delete;

  static std::string FreshName() {
    static std::atomic<int> count{0};
    return absl::StrCat("/attention-test-", getpid(), "-", count++);
  }

  const std::string& name() const { return name_; }

  void Resize(size_t size) {
    EXPECT_EQ(ftruncate(fd_, static_cast<off_t>(size)), 0);
  }

  void Unlink() { shm_unlink(name_.c_str()); }

  size_t size() const {
    struct stat status;
    EXPECT_EQ(fstat(fd_, &status), 0);
    return static_cast<size_t>(status.st_size);
  }

  void Write(size_t offset, const std::string& bytes) {
    EXPECT_EQ(
        pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset)),
        static_cast<ssize_t>(bytes.size()));
  }

  std::string Read(size_t offset, size_t size) const {
    std::string bytes(size, '\0');
    EXPECT_EQ(pread(fd_, bytes.data(), size, static_cast<off_t>(offset)),
              static_cast<ssize_t>(size));
    return bytes;
  }

 private:
  const std::string name_;
  int fd_ = -1;
};

}  // namespace attention::test

#endif  // ATTENTION_TESTS_SERVER_REGIONS_SHARED_MEMORY_OBJECT_H_
