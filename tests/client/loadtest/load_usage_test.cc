// What the program says when it cannot even begin.
#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/client/loadtest/load_fixture.h"

namespace attention::loadtest {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

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
    Arguments arguments;
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
      {{"--split_policy=fixed"}, "--split_policy is of --mode=decode"},
      {{"--calls=batch"}, "--calls must be one of unary, stream; got"},
      {{"--calls=stream", "--mode=decode"}, "--calls is of --mode=attention"},
      {{"--calls=unary", "--mode=decode"}, "--calls is of --mode=attention"},
      {{"--calls=stream", "--transport=stream"},
       "--transport must be inline, shm or cuda_ipc with --calls=stream"},
      {{"--calls=stream", "--timeout=1s"}, "--timeout is of --calls=unary"},
      {{"--calls=stream", "--max_attempts=1"},
       "--max_attempts is of --calls=unary"},
      {{"--arrival=uniform"}, "--arrival must be one of poisson, constant"},
      {{"--duration=0s"}, "--duration must be at least 1ms; got 0"},
      {{"--warmup=-1s"}, "--warmup must be at least 0; got -1s"},
      {{"--warmup=inf"}, "--warmup must be finite"},
      {{"--threads=-1"}, "--threads must be at least 0"},
      {{"--requests=-1"}, "--requests must be at least 0"},
      {{"--verify=1.5"}, "must be a number in [0, 1], true or false"},
      {{"--verify_rows=0"}, "--verify_rows must be at least 1; got 0"},
      {{"--dtype=int8"}, "--dtype must be one of fp32, fp16, bf16, fp8; got"},
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
