#include "client/loadtest/report.h"

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "client/loadtest/progress_line.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace attention::loadtest {
namespace {

using ::testing::HasSubstr;

// Two shapes, 2 s, 100 right answers of the first at 1...100 ms, 3 mismatches
// at 200 ms and 7 errors of the second.
LoadReport MakeReport() {
  LoadReport report;
  RequestShape first = *RequestShape{.name = "first, \"quoted\""}.Resolve();
  RequestShape second = first;
  second.name = "second";
  second.data_type = DataType::kFloat32;
  report.mix = {{.shape = first, .weight = 2}, {.shape = second}};
  report.plan.rate = 50;
  report.plan.max_outstanding = 64;
  report.plan.warmup = absl::Seconds(1);
  report.targets = {"localhost:1234"};
  v1::GetServerInfoResponse server;
  server.set_version("1.2.3");
  server.set_backend("cpu");
  server.add_devices()->set_name("cpu:0");
  report.servers = {server};

  AttentionResult answer;
  answer.output.resize(1000);
  answer.timings.mutable_compute_duration()->set_nanos(2'000'000);
  answer.timings.mutable_queue_duration()->set_seconds(1);
  answer.timings.set_batch_request_count(4);
  LoadResult& result = report.result;
  result.shapes.resize(2);
  result.elapsed = absl::Seconds(2);
  result.bound_hits = 5;
  for (int i = 1; i <= 100; ++i) {
    result.shapes[0].RecordAnswer(SizeOf(first), answer.timings,
                                  absl::Milliseconds(i), true,
                                  absl::OkStatus());
  }
  for (int i = 0; i < 3; ++i) {
    result.shapes[1].RecordAnswer(SizeOf(second), answer.timings,
                                  absl::Milliseconds(200), true,
                                  absl::DataLossError("output differs"));
  }
  for (int i = 0; i < 7; ++i) {
    result.shapes[1].RecordError(absl::UnavailableError("gone \xff"),
                                 absl::Milliseconds(1));
  }
  result.shapes[0].sent = 100;
  result.shapes[1].sent = 10;
  return report;
}

TEST(ReportTest, JsonHoldsEveryFigure) {
  const LoadReport report = MakeReport();
  const nlohmann::json json = nlohmann::json::parse(ToJson(report));
  EXPECT_EQ(json["servers"][0]["version"], "1.2.3");
  EXPECT_EQ(json["servers"][0]["devices"][0]["name"], "cpu:0");
  EXPECT_EQ(json["load"]["loop"], "open");
  EXPECT_EQ(json["load"]["rate"], 50);
  EXPECT_EQ(json["bound_hits"], 5);
  EXPECT_EQ(json["elapsed_seconds"], 2);

  const auto& total = json["total"];
  EXPECT_EQ(total["sent"], 110);
  EXPECT_EQ(total["answered"], 100);
  EXPECT_EQ(total["mismatched"], 3);
  EXPECT_EQ(total["verified"], 103);
  EXPECT_EQ(total["mismatch_example"], "output differs");
  EXPECT_EQ(total["errors"]["UNAVAILABLE"]["count"], 7);
  EXPECT_EQ(total["errors"].size(), 1u);
  EXPECT_EQ(total["answers_per_second"], 51.5);
  EXPECT_EQ(total["query_tokens_per_second"], 512 * 51.5);
  // 100 answers in bf16 and 3 in fp32, of 512 queries and 16 heads of 128.
  EXPECT_NEAR(total["gigabytes_in_per_second"],
              (100 * 2 + 3 * 4) * (512.0 * 16 * 128) / 2e9, 1e-12);
  EXPECT_EQ(total["mean_batch_requests"], 4);
  EXPECT_NEAR(total["server_mean_seconds"]["compute"], 0.002, 1e-12);
  EXPECT_NEAR(total["server_mean_seconds"]["queue"], 1, 1e-12);

  const auto& latency = json["shapes"][0]["latency_seconds"];
  EXPECT_NEAR(latency["p50"], 0.050, 5e-5);
  EXPECT_NEAR(latency["p99"], 0.099, 1e-4);
  EXPECT_EQ(latency["max"], 0.1);
  EXPECT_EQ(json["shapes"][0]["weight"], 2);
  EXPECT_EQ(json["shapes"][1]["error_latency_seconds"]["count"], 7);
}

TEST(ReportTest, ADecodingLoadShowsItsTokens) {
  LoadReport report = MakeReport();
  EXPECT_FALSE(nlohmann::json::parse(ToJson(report)).contains("decode"));
  DecodeReport& decode = report.decode.emplace();
  decode.plan = {.client_count = 64,
                 .sessions_per_client = 2,
                 .layer_count = 3,
                 .context = 100};
  decode.result.generated_tokens = 1000;
  decode.result.step_latency.Record(absl::Milliseconds(4));
  decode.result.step_latency.Record(absl::Milliseconds(8));
  const auto json = nlohmann::json::parse(ToJson(report))["decode"];
  EXPECT_EQ(json["clients"], 64);
  EXPECT_EQ(json["resident_tokens"], 64 * 2 * 3 * 100);
  EXPECT_EQ(json["tokens_per_second"], 500);
  EXPECT_EQ(json["steps_per_second"], 1);
  EXPECT_EQ(json["step_latency_seconds"]["max"], 0.008);
  const std::string text = ToText(report);
  EXPECT_THAT(text, HasSubstr("64 clients, 2 sessions each, 100 tokens in 3 "
                              "layers, 1 a call, steps of 1 token, Decode; "
                              "38400 tokens resident"));
  EXPECT_THAT(text, HasSubstr("500.0 tokens/s, 1.0 steps/s"));
}

// Splits a line at the commas outside of quotes.
std::vector<std::string> CsvFields(const std::string& line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (char c : line) {
    if (c == '"') quoted = !quoted;
    if (c == ',' && !quoted) {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  return fields;
}

TEST(ReportTest, CsvHasAValuePerColumn) {
  const std::string csv = ToCsv(MakeReport());
  std::vector<std::string> lines = absl::StrSplit(csv, '\n');
  ASSERT_EQ(lines.size(), 5u);  // header, total, two shapes, nothing
  EXPECT_EQ(lines[4], "");
  const std::vector<std::string> header = CsvFields(lines[0]);
  for (int i = 1; i <= 3; ++i) {
    EXPECT_EQ(CsvFields(lines[i]).size(), header.size()) << lines[i];
  }
  const auto column = [&](const std::string& name, int line) {
    const auto fields = CsvFields(lines[line]);
    for (size_t i = 0; i < header.size(); ++i) {
      if (header[i] == name) return fields[i];
    }
    return "no column " + name;
  };
  EXPECT_EQ(column("name", 1), "\"total\"");
  EXPECT_EQ(column("name", 2), "\"first, \"\"quoted\"\"\"");
  EXPECT_EQ(column("errors", 1), "7");
  EXPECT_EQ(column("answers_per_second", 1), "51.5");
  EXPECT_EQ(column("latency_max_seconds", 3), "0.2");
  EXPECT_EQ(column("server_compute_mean_seconds", 2), "0.002");
  EXPECT_EQ(column("mean_batch_requests", 3), "4");
}

TEST(ReportTest, TextShowsErrorsAndMismatches) {
  const std::string text = ToText(MakeReport());
  EXPECT_THAT(text,
              HasSubstr("110 sent, 100 answered, 7 errors, 3 mismatches"));
  EXPECT_THAT(text, HasSubstr("UNAVAILABLE: 7"));
  EXPECT_THAT(text, HasSubstr("output differs"));
  EXPECT_THAT(text, HasSubstr("open loop, 50 requests/s, Poisson arrivals"));
  EXPECT_THAT(text, HasSubstr("5 requests were held back"));
  EXPECT_THAT(text, HasSubstr("p99.9"));
}

TEST(ReportTest, EmptyRunHasNoNan) {
  LoadReport report = MakeReport();
  report.result = LoadResult();
  report.result.shapes.resize(2);
  for (const std::string& text :
       {ToJson(report), ToCsv(report), ToText(report)}) {
    EXPECT_EQ(text.find("nan"), std::string::npos) << text;
    EXPECT_EQ(text.find("null"), std::string::npos) << text;
  }
}

TEST(ProgressLineTest, ShowsRateLatencyAndFailures) {
  LoadRunner::Progress progress;
  progress.since_start = absl::Seconds(12);
  progress.interval = absl::Seconds(2);
  progress.finished = 50;
  progress.outstanding = 3;
  progress.latency.Record(absl::Milliseconds(5));
  EXPECT_EQ(FormatProgress(progress),
            "[  12s] 25 done/s, p50 5 ms, p99 5 ms, 3 outstanding");
  progress.latency = LatencyHistogram();
  progress.failed = 4;
  progress.warming_up = true;
  EXPECT_EQ(FormatProgress(progress),
            "[  12s] 25 done/s, 3 outstanding, 4 FAILED, warming up");
}

}  // namespace
}  // namespace attention::loadtest
