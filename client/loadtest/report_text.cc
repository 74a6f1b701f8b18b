#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "client/loadtest/report.h"
#include "client/loadtest/report_numbers.h"

namespace attention::loadtest {
namespace {

double Milliseconds(absl::Duration duration) {
  return absl::ToDoubleMilliseconds(duration);
}

std::string CsvQuoted(absl::string_view text) {
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\"", "\"\""}}), "\"");
}

void AppendCsvLine(absl::string_view name, absl::string_view shape,
                   const LoadStats& stats, absl::Duration elapsed,
                   std::string& csv) {
  const Rates rates(stats, elapsed);
  const ServerMeans means(stats);
  absl::StrAppend(&csv, CsvQuoted(name), ",", CsvQuoted(shape), ",",
                  absl::ToDoubleSeconds(elapsed), ",", stats.sent, ",",
                  stats.answered, ",", stats.verified, ",", stats.mismatched,
                  ",", stats.error_count());
  const auto append = [&csv](double value) {
    absl::StrAppendFormat(&csv, ",%.9g", value);
  };
  append(rates.answers);
  append(rates.query_tokens);
  append(rates.gigabytes_out);
  append(rates.gigabytes_in);
  append(rates.teraflops);
  append(absl::ToDoubleSeconds(stats.latency.Mean()));
  for (const auto& percentile : kPercentiles) {
    append(absl::ToDoubleSeconds(stats.latency.Percentile(percentile.percent)));
  }
  append(absl::ToDoubleSeconds(stats.latency.max()));
  append(absl::ToDoubleSeconds(stats.send_delay.Percentile(99)));
  append(absl::ToDoubleSeconds(means.queue));
  append(absl::ToDoubleSeconds(means.copy_in));
  append(absl::ToDoubleSeconds(means.compute));
  append(absl::ToDoubleSeconds(means.copy_out));
  append(means.batch_requests);
  absl::StrAppend(&csv, "\n");
}

std::string LatencyLine(const LatencyHistogram& histogram) {
  if (histogram.count() == 0) return "none";
  std::string line =
      absl::StrFormat("mean %.3f", Milliseconds(histogram.Mean()));
  for (const auto& [name, percent] : kPercentiles) {
    absl::StrAppendFormat(&line, "  %s %.3f", name,
                          Milliseconds(histogram.Percentile(percent)));
  }
  absl::StrAppendFormat(&line, "  max %.3f ms", Milliseconds(histogram.max()));
  return line;
}

std::string LoadLine(const LoadPlan& plan) {
  std::string line =
      plan.rate.has_value()
          ? absl::StrFormat(
                "open loop, %g requests/s, %s arrivals, %s", *plan.rate,
                plan.arrival == Arrival::kPoisson ? "Poisson" : "constant",
                plan.max_outstanding == 0
                    ? "any number outstanding"
                    : absl::StrCat("at most ", plan.max_outstanding,
                                   " outstanding"))
          : absl::StrCat("closed loop, concurrency ", plan.max_outstanding);
  if (plan.requests > 0) {
    absl::StrAppend(&line, ", ", plan.requests, " requests");
  } else {
    absl::StrAppend(&line, ", ", absl::FormatDuration(plan.duration));
  }
  absl::StrAppend(&line, " after ", absl::FormatDuration(plan.warmup),
                  " of warm-up");
  return line;
}

std::string DecodeLines(const DecodeReport& decode, absl::Duration elapsed) {
  const DecodeRates rates(decode.result, elapsed);
  return absl::StrFormat(
      "sessions    %s; %d tokens resident\n"
      "decoding    %.1f tokens/s, %.1f steps/s\n"
      "step        %s\n",
      Describe(decode.plan), decode.plan.resident_tokens(), rates.tokens,
      rates.steps, LatencyLine(decode.result.step_latency));
}

}  // namespace

std::string ToCsv(const LoadReport& report) {
  std::string csv =
      "name,shape,elapsed_seconds,sent,answered,verified,mismatched,errors,"
      "answers_per_second,query_tokens_per_second,gigabytes_out_per_second,"
      "gigabytes_in_per_second,teraflops_per_second,latency_mean_seconds";
  for (const auto& percentile : kPercentiles) {
    absl::StrAppend(&csv, ",latency_", percentile.name, "_seconds");
  }
  absl::StrAppend(&csv,
                  ",latency_max_seconds,send_delay_p99_seconds,"
                  "server_queue_mean_seconds,server_copy_in_mean_seconds,"
                  "server_compute_mean_seconds,server_copy_out_mean_seconds,"
                  "mean_batch_requests\n");
  const LoadResult& result = report.result;
  AppendCsvLine("total", "", result.Total(), result.elapsed, csv);
  for (size_t i = 0; i < report.mix.size(); ++i) {
    const RequestShape& shape = report.mix[i].shape;
    AppendCsvLine(shape.name, Describe(shape), result.shapes[i], result.elapsed,
                  csv);
  }
  return csv;
}

std::string ToText(const LoadReport& report) {
  const LoadResult& result = report.result;
  const LoadStats total = result.Total();
  const Rates rates(total, result.elapsed);
  const ServerMeans means(total);
  const bool open = report.plan.rate.has_value();

  std::string text;
  for (size_t i = 0; i < report.targets.size(); ++i) {
    absl::StrAppendFormat(&text, "server      %s: version %s, %s\n",
                          report.targets[i], report.servers[i].version(),
                          report.servers[i].backend());
  }
  absl::StrAppendFormat(&text, "load        %s\n", LoadLine(report.plan));
  absl::StrAppendFormat(
      &text, "requests    %d sent, %d answered, %d errors, %d mismatches%s\n",
      total.sent, total.answered, total.error_count(), total.mismatched,
      result.stopped ? " (stopped early)" : "");
  if (total.verified > 0) {
    absl::StrAppendFormat(&text,
                          "verified    %d answers against the reference\n",
                          total.verified);
  }
  for (const auto& [code, error] : total.errors) {
    absl::StrAppendFormat(&text, "error       %s: %d, e.g. \"%s\"\n",
                          absl::StatusCodeToString(code), error.count,
                          error.example);
  }
  if (total.mismatched > 0) {
    absl::StrAppendFormat(&text, "mismatch    %s\n", total.mismatch_example);
  }
  absl::StrAppendFormat(
      &text,
      "rate        %.1f answers/s, %.0f query tokens/s, %.3f GB/s out, "
      "%.3f GB/s in, %.4g TFLOP/s over %.2f s\n",
      rates.answers, rates.query_tokens, rates.gigabytes_out,
      rates.gigabytes_in, rates.teraflops,
      absl::ToDoubleSeconds(result.elapsed));
  absl::StrAppendFormat(&text, "latency     %s\n", LatencyLine(total.latency));
  if (report.decode.has_value()) {
    text += DecodeLines(*report.decode, result.elapsed);
  }
  if (open) {
    absl::StrAppendFormat(&text,
                          "send delay  %s\n"
                          "outstanding at most %d; %d requests were held back "
                          "by --max_outstanding\n",
                          LatencyLine(total.send_delay), result.max_outstanding,
                          result.bound_hits);
  }
  absl::StrAppendFormat(
      &text,
      "mean split  queue %.3f  copy in %.3f  compute %.3f  copy out %.3f  "
      "elsewhere %.3f ms\n"
      "mean batch  %.2f requests, %.2f sequences\n",
      Milliseconds(means.queue), Milliseconds(means.copy_in),
      Milliseconds(means.compute), Milliseconds(means.copy_out),
      Milliseconds(means.elsewhere), means.batch_requests,
      means.batch_sequences);
  for (size_t i = 0; i < report.mix.size(); ++i) {
    const LoadStats& stats = result.shapes[i];
    absl::StrAppendFormat(&text, "shape       %s (%s)\n",
                          report.mix[i].shape.name,
                          Describe(report.mix[i].shape));
    if (report.mix.size() == 1) continue;
    absl::StrAppendFormat(
        &text,
        "            %d sent, %d errors, %d mismatches, %.1f answers/s\n",
        stats.sent, stats.error_count(), stats.mismatched,
        Rates(stats, result.elapsed).answers);
    absl::StrAppendFormat(&text, "            %s\n",
                          LatencyLine(stats.latency));
  }
  return text;
}

}  // namespace attention::loadtest
