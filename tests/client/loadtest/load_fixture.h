// The programs attention-load and attention-server, each in a process of its
// own.
#ifndef ATTENTION_TESTS_CLIENT_LOADTEST_LOAD_FIXTURE_H_
#define ATTENTION_TESTS_CLIENT_LOADTEST_LOAD_FIXTURE_H_

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/client/loadtest/process.h"

namespace attention::loadtest {

// Removed with all that is in it when the object goes.
class Folder {
 public:
  Folder();
  ~Folder();

  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

std::string ReadFile(const std::string& path);

using Arguments = std::vector<std::string>;
Arguments operator+(Arguments left, const Arguments& right);

// Fast on any machine.
Arguments SmallHeads();
// The same, with lengths: 8 KB out, 2 KB in.
Arguments SmallRequests();

// Runs attention-load to its end.
Process::Result RunLoad(const Arguments& arguments);
// Starts it.
Process StartLoad(const Arguments& arguments);

// Of statistics in a report: all that was sent has ended in one way.
void ExpectConservation(const nlohmann::json& stats);

// One CPU server for all tests of a suite, on a TCP port and a unix socket.
class LoadTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite();
  static void TearDownTestSuite();

  static std::string File(const std::string& name) {
    return folder_->File(name);
  }
  static std::string Target() { return "--server=" + tcp_; }
  static std::string BothTargets() { return Target() + "," + socket_; }

 private:
  static std::unique_ptr<Folder> folder_;
  static std::unique_ptr<Process> server_;
  static std::string tcp_;
  static std::string socket_;
};

}  // namespace attention::loadtest

#endif  // ATTENTION_TESTS_CLIENT_LOADTEST_LOAD_FIXTURE_H_
