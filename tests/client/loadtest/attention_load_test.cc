// The program against a real server, each in a process of its own.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/client/loadtest/process.h"

namespace attention::loadtest {
namespace {

using ::nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Fast on any machine.
const std::vector<std::string> kSmallHeads = {"--dtype=fp32", "--heads=4",
                                              "--kv_heads=2", "--head_dim=16",
                                              "--warmup=0s"};

class Folder {
 public:
  Folder() {
    std::string name = ::testing::TempDir() + "/attention_load_XXXXXX";
    path_ = mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }

  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

Process::Result RunLoad(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), ATTENTION_LOAD);
  return Process(std::move(arguments)).Wait();
}

std::vector<std::string> operator+(std::vector<std::string> left,
                                   const std::vector<std::string>& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

// 8 KB out, 2 KB in.
const std::vector<std::string> kSmall =
    kSmallHeads +
    std::vector<std::string>{"--query_length=8", "--key_length=24"};

int64_t ErrorCount(const json& stats) {
  int64_t count = 0;
  for (const auto& [code, error] : stats["errors"].items()) {
    count += error["count"].get<int64_t>();
  }
  return count;
}

void ExpectConservation(const json& stats) {
  EXPECT_EQ(stats["sent"].get<int64_t>(),
            stats["answered"].get<int64_t>() +
                stats["mismatched"].get<int64_t>() + ErrorCount(stats));
}

class AttentionLoadTest : public ::testing::Test {
 protected:
  // One server for all tests, on a TCP port and a unix socket.
  static void SetUpTestSuite() {
    folder_ = std::make_unique<Folder>();
    socket_ = "unix:" + folder_->File("server.sock");
    server_ = std::make_unique<Process>(std::vector<std::string>{
        ATTENTION_SERVER, "--listen=127.0.0.1:0," + socket_,
        "--metrics_address=127.0.0.1:0", "--backend=cpu", "--log_format=json",
        "--allow_shared_memory"});
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

  static void TearDownTestSuite() {
    server_->Signal(SIGTERM);
    EXPECT_EQ(server_->Wait().exit_code, 0);
    server_.reset();
    folder_.reset();
  }

  static std::string Target() { return "--server=" + tcp_; }

  static std::unique_ptr<Folder> folder_;
  static std::unique_ptr<Process> server_;
  static std::string tcp_;
  static std::string socket_;

  static void ExpectEveryAnswerVerified(const std::string& transport);
  static void ExpectDecodingVerified(const std::vector<std::string>& options);
};

std::unique_ptr<Folder> AttentionLoadTest::folder_;
std::unique_ptr<Process> AttentionLoadTest::server_;
std::string AttentionLoadTest::tcp_;
std::string AttentionLoadTest::socket_;

// The server has no GPU, whatever the machine and the build have.
TEST_F(AttentionLoadTest, CudaIpcNeedsCuda) {
  const auto result = RunLoad(
      kSmall + std::vector<std::string>{Target(), "--transport=cuda_ipc",
                                        "--concurrency=1", "--requests=1"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.error,
              testing::AnyOf(HasSubstr("CUDA"), HasSubstr("cuda")));
}

TEST_F(AttentionLoadTest, AMessageHasItsLimit) {
  const auto result = RunLoad(
      kSmall + std::vector<std::string>{Target(), "--key_length=100000000",
                                        "--requests=1"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.error, HasSubstr("--transport"));
  EXPECT_THAT(result.error, HasSubstr("2 GiB"));
}

TEST_F(AttentionLoadTest, ClosedLoopWithEveryAnswerVerified) {
  const std::string json_path = folder_->File("closed.json");
  const std::string csv_path = folder_->File("closed.csv");
  const auto result =
      RunLoad(kSmall + std::vector<std::string>{
                           Target(), "--concurrency=6", "--requests=200",
                           "--verify", "--lse", "--mask=causal",
                           "--json=" + json_path, "--csv=" + csv_path});
  EXPECT_EQ(result.exit_code, 0) << result.error << result.output;
  EXPECT_EQ(result.error, "");
  EXPECT_THAT(result.output, HasSubstr("200 sent, 200 answered, 0 errors"));

  const json report = json::parse(ReadFile(json_path));
  const json& total = report["total"];
  EXPECT_EQ(total["sent"], 200);
  EXPECT_EQ(total["answered"], 200);
  EXPECT_EQ(total["verified"], 200);
  EXPECT_EQ(report["servers"][0]["backend"], "cpu");
  EXPECT_EQ(report["load"]["loop"], "closed");
  EXPECT_LE(report["peak_outstanding"], 6);
  EXPECT_GT(total["latency_seconds"]["p50"], 0);
  EXPECT_LE(total["latency_seconds"]["p50"], total["latency_seconds"]["max"]);
  EXPECT_GT(total["server_mean_seconds"]["compute"], 0);
  EXPECT_GE(total["mean_batch_requests"], 1);
  EXPECT_GT(total["gigabytes_out_per_second"], 0);
  EXPECT_THAT(ReadFile(csv_path), HasSubstr("\n\"total\","));
}

// Over both connections of the server.
void AttentionLoadTest::ExpectEveryAnswerVerified(const std::string& transport) {
  const std::string json_path = folder_->File(transport + ".json");
  const auto result =
      RunLoad(kSmall + std::vector<std::string>{
                           "--server=" + tcp_ + "," + socket_,
                           "--transport=" + transport, "--concurrency=6",
                           "--requests=200", "--verify", "--lse",
                           "--json=" + json_path});
  EXPECT_EQ(result.exit_code, 0) << result.error << result.output;
  const json report = json::parse(ReadFile(json_path));
  EXPECT_EQ(report["total"]["answered"], 200);
  EXPECT_EQ(report["total"]["verified"], 200);
}

TEST_F(AttentionLoadTest, StreamsWithEveryAnswerVerified) {
  ExpectEveryAnswerVerified("stream");
}

TEST_F(AttentionLoadTest, SharedMemoryWithEveryAnswerVerified) {
  ExpectEveryAnswerVerified("shm");

  const auto too_many = RunLoad(
      kSmall + std::vector<std::string>{Target(), "--transport=shm",
                                        "--rate=1", "--input_memory_mib=1",
                                        "--max_outstanding=1000"});
  EXPECT_EQ(too_many.exit_code, 1);
  EXPECT_THAT(too_many.error, HasSubstr("--max_outstanding"));
}

TEST_F(AttentionLoadTest, OpenLoopOverAMixOfShapesAndTwoTargets) {
  const std::string mix_path = folder_->File("mix.json");
  const std::string json_path = folder_->File("open.json");
  std::ofstream(mix_path) << R"({"shapes": [
    {"name": "prefill", "weight": 2, "query_length": 24, "mask": "causal"},
    {"name": "decode", "weight": 4, "query_length": 1, "dtype": "bf16"},
    {"name": "ragged", "layout": "thd", "batch": 3, "dtype": "fp16",
     "head_dim_v": 24, "lse": true},
    {"name": "window", "layout": "bhsd", "window_left": 4, "window_right": 2,
     "algorithm": "three_step"}]})";
  const auto result =
      RunLoad(kSmall + std::vector<std::string>{
                           "--server=" + tcp_ + "," + socket_, "--rate=400",
                           "--duration=750ms", "--mix=" + mix_path, "--verify",
                           "--json=" + json_path});
  EXPECT_EQ(result.exit_code, 0) << result.error << result.output;
  const json report = json::parse(ReadFile(json_path));
  const json& total = report["total"];
  ExpectConservation(total);
  EXPECT_EQ(total["answered"], total["sent"]);
  EXPECT_EQ(total["verified"], total["sent"]);
  EXPECT_NEAR(total["sent"].get<double>(), 300, 70);  // four deviations
  ASSERT_EQ(report["shapes"].size(), 4u);
  int64_t sent = 0;
  for (const json& shape : report["shapes"]) {
    ExpectConservation(shape);
    EXPECT_GT(shape["sent"], 0) << shape["name"];
    sent += shape["sent"].get<int64_t>();
  }
  EXPECT_EQ(sent, total["sent"]);
  EXPECT_EQ(total["send_delay_seconds"]["count"], total["sent"]);
  EXPECT_EQ(report["servers"].size(), 2u);
}

// Two clients with two sessions each, on two servers' worth of targets.
void AttentionLoadTest::ExpectDecodingVerified(
    const std::vector<std::string>& options) {
  const std::string json_path = folder_->File("decode.json");
  const auto result = RunLoad(
      kSmallHeads + options +
      std::vector<std::string>{
          "--server=" + tcp_ + "," + socket_, "--mode=decode", "--mask=causal",
          "--concurrency=2", "--sessions=2", "--layers=4", "--context=150",
          "--turn_tokens=12", "--requests=200", "--verify", "--verify_rows=100",
          "--lse", "--json=" + json_path});
  EXPECT_EQ(result.exit_code, 0) << result.error << result.output;
  EXPECT_THAT(result.output, HasSubstr("200 sent, 200 answered, 0 errors"));
  const json report = json::parse(ReadFile(json_path));
  ExpectConservation(report["total"]);
  // Of 4 * 12 rows of a tape so many are known that hardly a query has none.
  EXPECT_GT(report["total"]["verified"], 150);
  EXPECT_EQ(report["decode"]["resident_tokens"], 2 * 2 * 4 * 150);
  EXPECT_GT(report["decode"]["tokens_per_second"], 0);
  EXPECT_GT(report["decode"]["step_latency_seconds"]["count"], 0);
  EXPECT_GE(report["decode"]["step_latency_seconds"]["mean"],
            report["total"]["latency_seconds"]["mean"]);
}

TEST_F(AttentionLoadTest, DecodesWithEveryAnswerVerified) {
  ExpectDecodingVerified({});
}

TEST_F(AttentionLoadTest, DecodesOverAStreamWithEveryAnswerVerified) {
  ExpectDecodingVerified(
      {"--transport=stream", "--layers_per_call=2", "--step_tokens=3"});
}

// Sessions cannot go back, and are made anew.
TEST_F(AttentionLoadTest, DecodesWithAWindowWithEveryAnswerVerified) {
  ExpectDecodingVerified({"--window_left=20", "--dtype=bf16"});
}

TEST_F(AttentionLoadTest, DecodingOptionsAreChecked) {
  const struct {
    std::vector<std::string> options;
    std::string message;
  } cases[] = {
      {{"--rate=3"}, "--mode=decode is a closed loop"},
      {{"--transport=shm"}, "--transport must be inline or stream"},
      {{"--layers=3", "--layers_per_call=2"}, "must divide --layers"},
      {{"--step_tokens=3"}, "must be a multiple of --step_tokens"},
      {{"--sessions=0"}, "--sessions must be in [1, 1000000]; got 0"},
      {{"--kv_dtype=fp8", "--verify"}, "--kv_dtype=fp8 rounds to"},
      {{"--mix=x.json"}, "--mix is of --mode=attention"},
      {{"--query_length=512"}, "--query_length is of --mode=attention"},
      {{"--key_length=9"}, "--key_length is of --mode=attention"},
      {{"--batch", "2"}, "--batch is of --mode=attention"},
      {{"--layout=bshd"}, "--layout is of --mode=attention"},
      {{"-algorithm=auto"}, "--algorithm is of --mode=attention"},
      {{"--window_right=3"}, "--window_right is of --mode=attention"},
      {{"--threads=2"}, "--threads is of --mode=attention"},
      {{"--mask=none"},
       "--mask must be causal with --mode=decode; got "
       "\"none\""},
      {{"--mask=causal_top_left"}, "got \"causal_top_left\""},
      {{"--concurrency=0"}, "--concurrency must be at least 1; got 0"},
      {{"--mode=dance"}, "--mode must be one of attention, decode"}};
  for (const auto& test : cases) {
    const auto result =
        RunLoad(std::vector<std::string>{"--mode=decode", "--requests=1"} +
                test.options + std::vector<std::string>{Target()});
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.error, HasSubstr(test.message));
  }
}

// A run that was to verify and could not is no success.
TEST_F(AttentionLoadTest, VerifyingNothingMakesTheRunFail) {
  const auto decoded =
      RunLoad(kSmallHeads +
              std::vector<std::string>{Target(), "--mode=decode", "--context=8",
                                       "--turn_tokens=1000", "--verify_rows=2",
                                       "--requests=2", "--verify=1e-12"});
  EXPECT_EQ(decoded.exit_code, 2);
  EXPECT_THAT(decoded.error, HasSubstr("--verify compared none of 2 answers"));
  const auto attended =
      RunLoad(kSmall + std::vector<std::string>{Target(), "--requests=3",
                                                "--verify=1e-12"});
  EXPECT_EQ(attended.exit_code, 2);
  EXPECT_THAT(attended.error, HasSubstr("--verify compared none of 3 answers"));
  // The first query of a tape is known.
  const auto first =
      RunLoad(kSmallHeads +
              std::vector<std::string>{Target(), "--mode=decode", "--context=8",
                                       "--turn_tokens=1000", "--verify_rows=2",
                                       "--requests=1", "--verify"});
  EXPECT_EQ(first.exit_code, 0) << first.error;
}

TEST_F(AttentionLoadTest, ErrorsMakeTheRunFailUnlessAllowed) {
  // A gigaflop and 6 MB in a millisecond: no CPU answers in time.
  const std::vector<std::string> arguments = {
      Target(),       "--dtype=fp32", "--query_length=512", "--heads=8",
      "--requests=3", "--warmup=0s",  "--timeout=1ms",      "--inputs=1"};
  const std::string json_path = folder_->File("errors.json");
  const auto failed =
      RunLoad(arguments + std::vector<std::string>{"--json=" + json_path});
  EXPECT_EQ(failed.exit_code, 2);
  EXPECT_THAT(failed.output, HasSubstr("DEADLINE_EXCEEDED: 3"));
  const json total = json::parse(ReadFile(json_path))["total"];
  ExpectConservation(total);
  EXPECT_EQ(total["errors"]["DEADLINE_EXCEEDED"]["count"], 3);
  EXPECT_EQ(total["error_latency_seconds"]["count"], 3);

  const auto other = RunLoad(
      arguments + std::vector<std::string>{"--allow_errors=UNAVAILABLE"});
  EXPECT_EQ(other.exit_code, 2);
  const auto allowed =
      RunLoad(arguments + std::vector<std::string>{
                              "--allow_errors=UNAVAILABLE,DEADLINE_EXCEEDED"});
  EXPECT_EQ(allowed.exit_code, 0);
  const auto all =
      RunLoad(arguments + std::vector<std::string>{"--allow_errors=all"});
  EXPECT_EQ(all.exit_code, 0);
}

TEST_F(AttentionLoadTest, InterruptReportsWhatWasMeasured) {
  const std::string json_path = folder_->File("interrupted.json");
  Process load(std::vector<std::string>{ATTENTION_LOAD} + kSmall +
               std::vector<std::string>{Target(), "--duration=1h", "--progress",
                                        "--json=" + json_path});
  EXPECT_THAT(load.ReadErrorLine(), HasSubstr("done/s"));
  load.Signal(SIGINT);
  const auto result = load.Wait();
  EXPECT_EQ(result.exit_code, 0) << result.error;
  const json report = json::parse(ReadFile(json_path));
  EXPECT_EQ(report["stopped"], true);
  EXPECT_GT(report["total"]["answered"], 0);
}

// A server that is killed has forgotten its sessions when it comes back.
TEST(AttentionLoadRestartTest, DecodingGoesOnWithRebuiltSessions) {
  for (const std::string transport : {"inline", "stream"}) {
    SCOPED_TRACE(transport);
    const Folder folder;
    const std::string path = folder.File("server.sock");
    const auto start = [&] {
      std::filesystem::remove(path);
      auto server = std::make_unique<Process>(std::vector<std::string>{
          ATTENTION_SERVER, "--listen=unix:" + path, "--backend=cpu",
          "--metrics_address=127.0.0.1:0", "--log_format=json"});
      std::string line;
      do {
        line = server->ReadErrorLine();
      } while (!line.empty() && json::parse(line)["message"] != "listening");
      EXPECT_NE(line, "") << "the server ended";
      return server;
    };
    std::unique_ptr<Process> server = start();
    const std::string json_path = folder.File("restart.json");
    Process load(std::vector<std::string>{ATTENTION_LOAD} + kSmallHeads +
                 std::vector<std::string>{
                     "--server=unix:" + path, "--mode=decode", "--layers=2",
                     "--transport=" + transport, "--concurrency=2",
                     "--context=100", "--turn_tokens=16", "--verify",
                     "--duration=1h", "--progress", "--allow_errors=all",
                     "--json=" + json_path});
    const auto read_until = [&](const testing::Matcher<std::string>& matcher) {
      std::string line;
      do {
        line = load.ReadErrorLine();
      } while (!line.empty() && !testing::Value(line, matcher));
      EXPECT_NE(line, "") << "the load ended";
    };
    read_until(HasSubstr("p50"));
    server = nullptr;  // kills it
    read_until(HasSubstr("FAILED"));
    server = start();
    read_until(testing::AllOf(HasSubstr("p50"), Not(HasSubstr("FAILED"))));
    load.Signal(SIGINT);
    const auto result = load.Wait();
    EXPECT_EQ(result.exit_code, 0) << result.error << result.output;
    const json total = json::parse(ReadFile(json_path))["total"];
    ExpectConservation(total);
    EXPECT_EQ(total["mismatched"], 0);
    EXPECT_GT(total["verified"], 0);
    EXPECT_GT(total["errors"]["UNAVAILABLE"]["count"], 0);
    server->Signal(SIGTERM);
    EXPECT_EQ(server->Wait().exit_code, 0);
  }
}

TEST(AttentionLoadUsageTest, AbsentServerIsNamed) {
  const Folder folder;
  const std::string target = "unix:" + folder.File("nobody.sock");
  const auto result = RunLoad(
      {"--server=" + target, "--requests=1", "--connect_timeout=300ms"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.error, HasSubstr("attention-load: " + target));
  EXPECT_EQ(result.output, "");
}

// Without a server the run could not even begin.
TEST(AttentionLoadUsageTest, UnwritableReportsAreFoundOutBeforeTheRun) {
  const Folder folder;
  for (const std::string flag : {"--json=", "--csv="}) {
    const auto result = RunLoad({"--server=unix:" + folder.File("nobody.sock"),
                                 flag + folder.File("none/report")});
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.error,
                HasSubstr(folder.File("none/report") + ": cannot create"));
  }
}

TEST(AttentionLoadUsageTest, FailuresLeaveReportsAsTheyWere) {
  const Folder folder;
  std::ofstream(folder.File("old")) << "old";
  const auto result = RunLoad(
      {"--server=unix:" + folder.File("nobody.sock"), "--connect_timeout=300ms",
       "--json=" + folder.File("old"), "--csv=" + folder.File("new")});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(ReadFile(folder.File("old")), "old");
  EXPECT_FALSE(std::filesystem::exists(folder.File("new")));
}

TEST(AttentionLoadUsageTest, HelpAndVersionAreNoErrors) {
  const auto help = RunLoad({"--rate=5", "--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_EQ(help.error, "");
  EXPECT_THAT(help.output, HasSubstr("Exit status: 0 success"));
  EXPECT_THAT(help.output, HasSubstr("\n  --duration (default 10s)\n"));
  EXPECT_THAT(help.output, HasSubstr("\n  --mix (no default)\n"));
  EXPECT_THAT(help.output, Not(HasSubstr("--flagfile")));
  const auto full = RunLoad({"--helpfull"});
  EXPECT_EQ(full.exit_code, 0);
  EXPECT_THAT(full.output, HasSubstr("\n  --flagfile ("));
  EXPECT_THAT(full.output, HasSubstr("\n  --duration ("));
  const auto version = RunLoad({"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_THAT(version.output, StartsWith("attention-load 0."));
}

TEST(AttentionLoadUsageTest, WrongFlagsAreNamed) {
  const struct {
    std::vector<std::string> arguments;
    const char* expected;
  } cases[] = {
      {{"--rate=5", "--concurrency=2"}, "exclude each other"},
      {{"--rate=-1"}, "--rate must be above 0; got -1"},
      {{"--rate=0"}, "--rate must be above 0; got 0"},
      {{"--concurrency=-1"}, "--concurrency must be at least 1; got -1"},
      {{"--concurrency=0"}, "--concurrency must be at least 1; got 0"},
      {{"--arrival=poisson"}, "--arrival is of an open loop, with --rate"},
      {{"--max_outstanding=9"}, "--max_outstanding is of an open loop"},
      {{"--context=100"}, "--context is of --mode=decode"},
      {{"--kv_dtype=same"}, "--kv_dtype is of --mode=decode"},
      {{"--arrival=uniform"}, "--arrival must be one of poisson, constant"},
      {{"--duration=0s"}, "--duration must be at least 1ms; got 0"},
      {{"--warmup=-1s"}, "--warmup must be at least 0; got -1s"},
      {{"--warmup=inf"}, "--warmup must be finite"},
      {{"--threads=-1"}, "--threads must be at least 0"},
      {{"--requests=-1"}, "--requests must be at least 0"},
      {{"--verify=1.5"}, "must be a number in [0, 1], true or false"},
      {{"--verify_rows=0"}, "--verify_rows must be at least 1; got 0"},
      {{"--dtype=int8"}, "--dtype must be one of fp32, fp16, bf16; got"},
      {{"--layout=sbhd"}, "--layout must be one of bshd, bhsd, thd"},
      {{"--algorithm=fast"}, "--algorithm must be one of auto, streaming"},
      {{"--precision=half"}, "--precision must be one of ieee, tf32"},
      {{"--head_dim=300"}, "head_dim must be in [1, 256]; got 300"},
      {{"--heads=6", "--kv_heads=4"}, "heads must be a multiple of kv_heads"},
      {{"--allow_errors=EVERYTHING"}, "--allow_errors must hold status codes"},
      {{"--progress=maybe"}, "--progress must be one of auto, true, false"},
      {{"--mix=/no/such/mix.json"}, "cannot read the mix file"},
      {{"--channels=0"}, "--channels must be at least 1; got 0"},
      {{"--inputs=0"}, "--inputs must be at least 1; got 0"},
      {{"--timeout=0s"}, "--timeout must be at least 1ms; got 0"},
      {{"now"}, "unexpected argument \"now\""},
      {{"--no_such_flag=1"}, "no_such_flag"},
  };
  for (const auto& test : cases) {
    const auto result = RunLoad(test.arguments);
    EXPECT_EQ(result.exit_code, 1) << test.expected;
    EXPECT_THAT(result.error, HasSubstr(test.expected));
    EXPECT_EQ(result.output, "");
  }
}

}  // namespace
}  // namespace attention::loadtest
