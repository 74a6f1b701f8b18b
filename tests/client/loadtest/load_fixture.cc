#include "tests/client/loadtest/load_fixture.h"

#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace attention::loadtest {
namespace {

using ::nlohmann::json;

int64_t ErrorCount(const json& stats) {
  int64_t count = 0;
  for (const auto& [code, error] : stats["errors"].items()) {
    count += error["count"].get<int64_t>();
  }
  return count;
}

}  // namespace

Folder::Folder() {
  std::string name = ::testing::TempDir() + "/attention_load_XXXXXX";
  path_ = mkdtemp(name.data());
}

Folder::~Folder() { std::filesystem::remove_all(path_); }

std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

Arguments operator+(Arguments left, const Arguments& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

Arguments SmallHeads() {
  return {"--dtype=fp32", "--heads=4", "--kv_heads=2", "--head_dim=16",
          "--warmup=0s"};
}

Arguments SmallRequests() {
  return SmallHeads() + Arguments{"--query_length=8", "--key_length=24"};
}

Process::Result RunLoad(const Arguments& arguments) {
  return StartLoad(arguments).Wait();
}

Process StartLoad(const Arguments& arguments) {
  return Process(Arguments{ATTENTION_LOAD} + arguments);
}

void ExpectConservation(const json& stats) {
  EXPECT_EQ(stats["sent"].get<int64_t>(),
            stats["answered"].get<int64_t>() +
                stats["mismatched"].get<int64_t>() + ErrorCount(stats));
}

std::unique_ptr<Folder> LoadTest::folder_;
std::unique_ptr<Process> LoadTest::server_;
std::string LoadTest::tcp_;
std::string LoadTest::socket_;

void LoadTest::SetUpTestSuite() {
  folder_ = std::make_unique<Folder>();
  socket_ = "unix:" + File("server.sock");
  server_ = std::make_unique<Process>(
      Arguments{ATTENTION_SERVER, "--listen=127.0.0.1:0," + socket_,
                "--metrics_address=127.0.0.1:0", "--backend=cpu",
                "--log_format=json", "--allow_shared_memory"});
  tcp_.clear();
  for (int listeners = 0; listeners < 2;) {
    const std::string line = server_->ReadErrorLine();
    ASSERT_NE(line, "") << "the server ended";
    const json entry = json::parse(line);
    if (entry["message"] != "listening") continue;
    ++listeners;
    const std::string address = entry["address"];
    if (address.find("unix") == std::string::npos) tcp_ = address;
  }
  ASSERT_NE(tcp_, "");
}

void LoadTest::TearDownTestSuite() {
  server_->Signal(SIGTERM);
  const auto ended = server_->Wait();
  EXPECT_EQ(ended.exit_code, 0) << ended.error;
  server_.reset();
  folder_.reset();
}

}  // namespace attention::loadtest
