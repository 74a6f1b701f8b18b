// The program against a real server.
#include <signal.h>

#include <cstdint>
#include <fstream>
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

class AttentionLoadTest : public LoadTest {
 protected:
  // Over both connections of the server.
  static void ExpectEveryAnswerVerified(const std::string& transport,
                                        const Arguments& more = {}) {
    const std::string json_path = File(transport + ".json");
    const auto result =
        RunLoad(SmallRequests() +
                Arguments{BothTargets(), "--transport=" + transport,
                          "--concurrency=6", "--requests=200", "--verify",
                          "--lse", "--json=" + json_path} +
                more);
    EXPECT_EQ(result.exit_code, 0) << result.error << result.output;
    const json report = json::parse(ReadFile(json_path));
    EXPECT_EQ(report["total"]["answered"], 200);
    EXPECT_EQ(report["total"]["verified"], 200);
  }
};

// The server has no GPU, whatever the machine and the build have.
TEST_F(AttentionLoadTest, CudaIpcNeedsCuda) {
  const auto result =
      RunLoad(SmallRequests() + Arguments{Target(), "--transport=cuda_ipc",
                                          "--concurrency=1", "--requests=1"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.error,
              testing::AnyOf(HasSubstr("CUDA"), HasSubstr("cuda")));
}

TEST_F(AttentionLoadTest, AMessageHasItsLimit) {
  const auto result =
      RunLoad(SmallRequests() +
              Arguments{Target(), "--key_length=100000000", "--requests=1"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.error, HasSubstr("--transport"));
  EXPECT_THAT(result.error, HasSubstr("2 GiB"));
}

TEST_F(AttentionLoadTest, ClosedLoopWithEveryAnswerVerified) {
  const std::string json_path = File("closed.json");
  const std::string csv_path = File("closed.csv");
  const auto result = RunLoad(
      SmallRequests() + Arguments{Target(), "--concurrency=6", "--requests=200",
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

TEST_F(AttentionLoadTest, StreamsWithEveryAnswerVerified) {
  ExpectEveryAnswerVerified("stream");
}

TEST_F(AttentionLoadTest, SharedMemoryWithEveryAnswerVerified) {
  ExpectEveryAnswerVerified("shm");

  const auto too_many =
      RunLoad(SmallRequests() + Arguments{Target(), "--transport=shm",
                                          "--rate=1", "--input_memory_mib=1",
                                          "--max_outstanding=1000"});
  EXPECT_EQ(too_many.exit_code, 1);
  EXPECT_THAT(too_many.error, HasSubstr("--max_outstanding"));
}

TEST_F(AttentionLoadTest, OpenStreamsWithEveryAnswerVerified) {
  for (const char* transport : {"inline", "shm"}) {
    for (const char* channels : {"--channels=1", "--channels=3"}) {
      ExpectEveryAnswerVerified(transport, {"--calls=stream", channels});
    }
  }
}

TEST_F(AttentionLoadTest, AStreamThatEndsIsOpenedAnew) {
  const std::string socket = "unix:" + File("restarted.sock");
  const auto start = [&] {
    auto server = std::make_unique<Process>(
        Arguments{ATTENTION_SERVER, "--listen=" + socket,
                  "--metrics_address=", "--backend=cpu", "--log_format=json"});
    std::string line = "{}";
    while (json::parse(line)["message"] != "listening") {
      line = server->ReadErrorLine();
      if (line.empty()) ADD_FAILURE() << "the server ended";
      if (line.empty()) break;
    }
    return server;
  };
  std::unique_ptr<Process> server = start();
  Process load =
      StartLoad(SmallRequests() +
                Arguments{"--server=" + socket, "--calls=stream", "--rate=200",
                          "--duration=1h", "--progress", "--allow_errors=all"});
  const auto await = [&](const char* what) {
    std::string line;
    do {
      line = load.ReadErrorLine();
      ASSERT_NE(line, "") << "attention-load ended";
    } while (line.find(what) == std::string::npos);
  };
  await("p50");  // of answers
  server->Signal(SIGKILL);
  server->Wait();
  await("FAILED");
  server = start();
  await("p50");
  load.Signal(SIGINT);
  EXPECT_EQ(load.Wait().exit_code, 0);
  server->Signal(SIGTERM);
  EXPECT_EQ(server->Wait().exit_code, 0);
}

TEST_F(AttentionLoadTest, OpenLoopOverAMixOfShapesAndTwoTargets) {
  const std::string mix_path = File("mix.json");
  const std::string json_path = File("open.json");
  std::ofstream(mix_path) << R"({"shapes": [
    {"name": "prefill", "weight": 2, "query_length": 24, "mask": "causal"},
    {"name": "decode", "weight": 4, "query_length": 1, "dtype": "bf16"},
    {"name": "ragged", "layout": "thd", "batch": 3, "dtype": "fp16",
     "head_dim_v": 24, "lse": true},
    {"name": "window", "layout": "bhsd", "window_left": 4, "window_right": 2,
     "algorithm": "three_step"}]})";
  const auto result = RunLoad(SmallRequests() +
                              Arguments{BothTargets(), "--rate=400",
                                        "--duration=750ms", "--mix=" + mix_path,
                                        "--verify", "--json=" + json_path});
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

// A run that was to verify and could not is no success.
TEST_F(AttentionLoadTest, VerifyingNothingMakesTheRunFail) {
  const auto decoded =
      RunLoad(SmallHeads() + Arguments{Target(), "--mode=decode", "--context=8",
                                       "--turn_tokens=1000", "--verify_rows=2",
                                       "--requests=2", "--verify=1e-12"});
  EXPECT_EQ(decoded.exit_code, 2);
  EXPECT_THAT(decoded.error, HasSubstr("--verify compared none of 2 answers"));
  const auto attended = RunLoad(
      SmallRequests() + Arguments{Target(), "--requests=3", "--verify=1e-12"});
  EXPECT_EQ(attended.exit_code, 2);
  EXPECT_THAT(attended.error, HasSubstr("--verify compared none of 3 answers"));
  // The first query of a tape is known.
  const auto first =
      RunLoad(SmallHeads() + Arguments{Target(), "--mode=decode", "--context=8",
                                       "--turn_tokens=1000", "--verify_rows=2",
                                       "--requests=1", "--verify"});
  EXPECT_EQ(first.exit_code, 0) << first.error;
}

TEST_F(AttentionLoadTest, ErrorsMakeTheRunFailUnlessAllowed) {
  // A gigaflop and 6 MB in a millisecond: no CPU answers in time.
  const Arguments arguments = {
      Target(),       "--dtype=fp32", "--query_length=512", "--heads=8",
      "--requests=3", "--warmup=0s",  "--timeout=1ms",      "--inputs=1"};
  const std::string json_path = File("errors.json");
  const auto failed = RunLoad(arguments + Arguments{"--json=" + json_path});
  EXPECT_EQ(failed.exit_code, 2);
  EXPECT_THAT(failed.output, HasSubstr("DEADLINE_EXCEEDED: 3"));
  const json total = json::parse(ReadFile(json_path))["total"];
  ExpectConservation(total);
  EXPECT_EQ(total["errors"]["DEADLINE_EXCEEDED"]["count"], 3);
  EXPECT_EQ(total["error_latency_seconds"]["count"], 3);

  const auto other =
      RunLoad(arguments + Arguments{"--allow_errors=UNAVAILABLE"});
  EXPECT_EQ(other.exit_code, 2);
  const auto allowed = RunLoad(
      arguments + Arguments{"--allow_errors=UNAVAILABLE,DEADLINE_EXCEEDED"});
  EXPECT_EQ(allowed.exit_code, 0);
  const auto all = RunLoad(arguments + Arguments{"--allow_errors=all"});
  EXPECT_EQ(all.exit_code, 0);
}

TEST_F(AttentionLoadTest, InterruptReportsWhatWasMeasured) {
  const std::string json_path = File("interrupted.json");
  Process load = StartLoad(SmallRequests() +
                           Arguments{Target(), "--duration=1h", "--progress",
                                     "--json=" + json_path});
  EXPECT_THAT(load.ReadErrorLine(), HasSubstr("done/s"));
  load.Signal(SIGINT);
  const auto result = load.Wait();
  EXPECT_EQ(result.exit_code, 0) << result.error;
  const json report = json::parse(ReadFile(json_path));
  EXPECT_EQ(report["stopped"], true);
  EXPECT_GT(report["total"]["answered"], 0);
}

}  // namespace
}  // namespace attention::loadtest
