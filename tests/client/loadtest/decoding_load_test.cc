// --mode=decode against a real server.
#include <signal.h>

#include <filesystem>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/client/loadtest/load_fixture.h"

namespace attention::loadtest {
namespace {

using ::nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

class DecodingLoadTest : public LoadTest {
 protected:
  // Two clients with two sessions each, on two servers' worth of targets.
  static void ExpectDecodingVerified(const Arguments& options) {
    const std::string json_path = File("decode.json");
    const auto result =
        RunLoad(SmallHeads() + options +
                Arguments{BothTargets(), "--mode=decode", "--mask=causal",
                          "--concurrency=2", "--sessions=2", "--layers=4",
                          "--context=150", "--turn_tokens=12", "--requests=200",
                          "--verify", "--verify_rows=100", "--lse",
                          "--json=" + json_path});
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
};

TEST_F(DecodingLoadTest, DecodesWithEveryAnswerVerified) {
  ExpectDecodingVerified({});
}

TEST_F(DecodingLoadTest, DecodesOverAStreamWithEveryAnswerVerified) {
  ExpectDecodingVerified(
      {"--transport=stream", "--layers_per_call=2", "--step_tokens=3"});
}

// Sessions cannot go back, and are made anew.
TEST_F(DecodingLoadTest, DecodesWithAWindowWithEveryAnswerVerified) {
  ExpectDecodingVerified({"--window_left=20", "--dtype=bf16"});
}

TEST_F(DecodingLoadTest, DecodingOptionsAreChecked) {
  const struct {
    Arguments options;
    std::string message;
  } cases[] = {
      {{"--rate=3"}, "--mode=decode is a closed loop"},
      {{"--transport=shm"}, "--transport must be inline or stream"},
      {{"--layers=3", "--layers_per_call=2"}, "must divide --layers"},
      {{"--step_tokens=3"}, "must be a multiple of --step_tokens"},
      {{"--sessions=0"}, "--sessions must be in [1, 1000000]; got 0"},
      {{"--kv_dtype=fp8", "--verify"}, "--kv_dtype=fp8 rounds to"},
      {{"--split_policy=even"},
       "--split_policy must be one of server, fixed, balanced; got \"even\""},
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
    const auto result = RunLoad(Arguments{"--mode=decode", "--requests=1"} +
                                test.options + Arguments{Target()});
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.error, HasSubstr(test.message));
  }
}

// A server that is killed has forgotten its sessions when it comes back.
TEST(AttentionLoadRestartTest, DecodingGoesOnWithRebuiltSessions) {
  for (const std::string transport : {"inline", "stream"}) {
    SCOPED_TRACE(transport);
    const Folder folder;
    const std::string path = folder.File("server.sock");
    const auto start = [&] {
      std::filesystem::remove(path);
      auto server = std::make_unique<Process>(
          Arguments{ATTENTION_SERVER, "--listen=unix:" + path, "--backend=cpu",
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
    Process load = StartLoad(
        SmallHeads() + Arguments{"--server=unix:" + path, "--mode=decode",
                                 "--layers=2", "--transport=" + transport,
                                 "--concurrency=2", "--context=100",
                                 "--turn_tokens=16", "--verify",
                                 "--duration=1h", "--progress",
                                 "--allow_errors=all", "--json=" + json_path});
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
    const auto ended = server->Wait();
    EXPECT_EQ(ended.exit_code, 0) << ended.error;
  }
}

}  // namespace
}  // namespace attention::loadtest
