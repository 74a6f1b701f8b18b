#include <string>

#include "client/loadtest/report.h"
#include "client/loadtest/report_numbers.h"
#include "nlohmann/json.hpp"

namespace attention::loadtest {
namespace {

using Json = nlohmann::ordered_json;

Json LatencyJson(const LatencyHistogram& histogram) {
  Json json = {{"count", histogram.count()},
               {"mean", absl::ToDoubleSeconds(histogram.Mean())},
               {"min", absl::ToDoubleSeconds(histogram.min())}};
  for (const auto& [name, percent] : kPercentiles) {
    json[name] = absl::ToDoubleSeconds(histogram.Percentile(percent));
  }
  json["max"] = absl::ToDoubleSeconds(histogram.max());
  return json;
}

Json StatsJson(const LoadStats& stats, absl::Duration elapsed) {
  Json errors = Json::object();
  for (const auto& [code, error] : stats.errors) {
    errors[absl::StatusCodeToString(code)] = {{"count", error.count},
                                              {"example", error.example}};
  }
  const Rates rates(stats, elapsed);
  const ServerMeans means(stats);
  Json json = {{"sent", stats.sent},
               {"answered", stats.answered},
               {"verified", stats.verified},
               {"mismatched", stats.mismatched},
               {"errors", errors},
               {"latency_seconds", LatencyJson(stats.latency)},
               {"error_latency_seconds", LatencyJson(stats.error_latency)},
               {"send_delay_seconds", LatencyJson(stats.send_delay)},
               {"answers_per_second", rates.answers},
               {"query_tokens_per_second", rates.query_tokens},
               {"gigabytes_out_per_second", rates.gigabytes_out},
               {"gigabytes_in_per_second", rates.gigabytes_in},
               {"teraflops_per_second", rates.teraflops},
               {"server_mean_seconds",
                {{"queue", absl::ToDoubleSeconds(means.queue)},
                 {"copy_in", absl::ToDoubleSeconds(means.copy_in)},
                 {"compute", absl::ToDoubleSeconds(means.compute)},
                 {"copy_out", absl::ToDoubleSeconds(means.copy_out)},
                 {"elsewhere", absl::ToDoubleSeconds(means.elsewhere)}}},
               {"mean_batch_requests", means.batch_requests},
               {"mean_batch_sequences", means.batch_sequences}};
  if (stats.mismatched > 0) json["mismatch_example"] = stats.mismatch_example;
  return json;
}

Json DecodeJson(const DecodeReport& decode, absl::Duration elapsed) {
  const DecodePlan& plan = decode.plan;
  const DecodeRates rates(decode.result, elapsed);
  return {{"clients", plan.client_count},
          {"sessions_per_client", plan.sessions_per_client},
          {"layers", plan.layer_count},
          {"layers_per_call", plan.layers_per_call},
          {"context_tokens", plan.context},
          {"step_tokens", plan.step_tokens},
          {"turn_tokens", plan.turn_tokens},
          {"reserves", plan.reserves},
          {"streamed", plan.streamed},
          {"resident_tokens", plan.resident_tokens()},
          {"tokens_per_second", rates.tokens},
          {"steps_per_second", rates.steps},
          {"step_latency_seconds", LatencyJson(decode.result.step_latency)}};
}

}  // namespace

std::string ToJson(const LoadReport& report) {
  const LoadPlan& plan = report.plan;
  const LoadResult& result = report.result;

  Json servers = Json::array();
  for (size_t i = 0; i < report.targets.size(); ++i) {
    Json devices = Json::array();
    for (const v1::DeviceInfo& device : report.servers[i].devices()) {
      devices.push_back({{"name", device.name()}, {"model", device.model()}});
    }
    servers.push_back({{"target", report.targets[i]},
                       {"version", report.servers[i].version()},
                       {"backend", report.servers[i].backend()},
                       {"devices", devices}});
  }
  Json load = {{"loop", plan.rate.has_value() ? "open" : "closed"}};
  if (plan.rate.has_value()) {
    load["rate"] = *plan.rate;
    load["arrival"] =
        plan.arrival == Arrival::kPoisson ? "poisson" : "constant";
  }
  load["max_outstanding"] = plan.max_outstanding;
  load["warmup_seconds"] = absl::ToDoubleSeconds(plan.warmup);
  if (plan.requests > 0) {
    load["requests"] = plan.requests;
  } else {
    load["duration_seconds"] = absl::ToDoubleSeconds(plan.duration);
  }
  load["verified_fraction"] = plan.verified_fraction;
  load["seed"] = plan.seed;

  Json shapes = Json::array();
  for (size_t i = 0; i < report.mix.size(); ++i) {
    Json shape = {{"name", report.mix[i].shape.name},
                  {"shape", Describe(report.mix[i].shape)},
                  {"weight", report.mix[i].weight}};
    shape.update(StatsJson(result.shapes[i], result.elapsed));
    shapes.push_back(std::move(shape));
  }
  Json json = {{"servers", servers},
               {"load", load},
               {"elapsed_seconds", absl::ToDoubleSeconds(result.elapsed)},
               {"stopped", result.stopped},
               {"warmup_sent", result.warmup_sent},
               {"peak_outstanding", result.max_outstanding},
               {"bound_hits", result.bound_hits},
               {"total", StatsJson(result.Total(), result.elapsed)},
               {"shapes", shapes}};
  if (report.decode.has_value()) {
    json["decode"] = DecodeJson(*report.decode, result.elapsed);
  }
  // Server messages are not ours: replace what is no UTF-8 rather than throw.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace attention::loadtest
