#include "server/logging/log.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

namespace attention {
namespace {

const absl::Time kTime = absl::FromUnixMicros(1'790'000'000'123'456);

TEST(LogTest, WritesText) {
  EXPECT_EQ(FormatLogLine(LogFormat::kText, kTime, LogLevel::kInfo, "listening",
                          {{"address", "127.0.0.1:1"}, {"empty", ""}}),
            "2026-09-21T14:13:20.123456Z info listening address=127.0.0.1:1 "
            "empty=\"\"");
}

TEST(LogTest, QuotesWhatIsNotPlain) {
  EXPECT_EQ(FormatLogLine(LogFormat::kText, kTime, LogLevel::kError, "m",
                          {{"a", "two words"}, {"b", "line\nbreak"},
                           {"c", "\"x\""}}),
            "2026-09-21T14:13:20.123456Z error m a=\"two words\" "
            "b=\"line\\nbreak\" c=\"\\\"x\\\"\"");
}

TEST(LogTest, WritesJsonThatParsesWhateverTheValues) {
  const std::vector<std::string> values = {
      "", "plain", "\"quoted\"", "line\nbreak\ttab", "back\\slash",
      std::string("\0zero", 5), "\x01\x1f", "umlaut \xc3\xa4", "\xff\xfe{}%s"};
  for (const std::string& value : values) {
    const std::string line = FormatLogLine(
        LogFormat::kJson, kTime, LogLevel::kWarning, value, {{"key", value}});
    EXPECT_EQ(line.find('\n'), std::string::npos);
    const auto json = nlohmann::json::parse(line);
    EXPECT_EQ(json["time"], "2026-09-21T14:13:20.123456Z");
    EXPECT_EQ(json["level"], "warning");
    if (value.find('\xff') == std::string::npos) {
      EXPECT_EQ(json["message"], value);
      EXPECT_EQ(json["key"], value);
    }
  }
}

TEST(RateLimitedLogTest, LetsOneLineThroughPerClassAndInterval) {
  RateLimitedLog log(absl::Seconds(10));
  EXPECT_EQ(log.Admit("a", kTime), 0);
  EXPECT_EQ(log.Admit("a", kTime + absl::Seconds(1)), -1);
  EXPECT_EQ(log.Admit("a", kTime + absl::Seconds(9)), -1);
  EXPECT_EQ(log.Admit("b", kTime + absl::Seconds(9)), 0);
  EXPECT_EQ(log.Admit("a", kTime + absl::Seconds(10)), 2);
  EXPECT_EQ(log.Admit("a", kTime + absl::Seconds(20)), 0);
}

TEST(RateLimitedLogTest, LosesNoCount) {
  RateLimitedLog log(absl::Seconds(10));
  EXPECT_EQ(log.Admit("a", kTime), 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&log] {
      for (int i = 0; i < 1000; ++i) log.Admit("a", kTime);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(log.Admit("a", kTime + absl::Seconds(10)), 4000);
}

}  // namespace
}  // namespace attention
