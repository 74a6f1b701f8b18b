#include "tests/server/metrics/metric_reader.h"

#include <prometheus/metric_family.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <set>

namespace attention {
namespace {

MetricReader::Labels LabelsOf(const prometheus::ClientMetric& metric) {
  MetricReader::Labels labels;
  for (const auto& label : metric.label) labels[label.name] = label.value;
  return labels;
}

std::vector<prometheus::ClientMetric> Series(const Metrics& metrics,
                                             const std::string& name) {
  std::vector<prometheus::ClientMetric> series;
  for (const prometheus::MetricFamily& family : metrics.registry()->Collect()) {
    if (family.name != name) continue;
    series.insert(series.end(), family.metric.begin(), family.metric.end());
  }
  return series;
}

std::optional<prometheus::ClientMetric> Find(
    const Metrics& metrics, const std::string& name,
    const MetricReader::Labels& labels) {
  for (const prometheus::ClientMetric& metric : Series(metrics, name)) {
    if (LabelsOf(metric) == labels) return metric;
  }
  return std::nullopt;
}

// Only one of the two is set.
double NumberOf(const prometheus::ClientMetric& metric) {
  return metric.counter.value + metric.gauge.value;
}

}  // namespace

std::optional<double> MetricReader::Value(const std::string& name,
                                          const Labels& labels) const {
  const auto metric = Find(metrics_, name, labels);
  if (!metric.has_value()) return std::nullopt;
  return NumberOf(*metric);
}

double MetricReader::Sum(const std::string& name, const Labels& labels) const {
  double sum = 0;
  for (const prometheus::ClientMetric& metric : Series(metrics_, name)) {
    const Labels present = LabelsOf(metric);
    if (std::includes(present.begin(), present.end(), labels.begin(),
                      labels.end())) {
      sum += NumberOf(metric);
    }
  }
  return sum;
}

std::optional<prometheus::ClientMetric::Histogram> MetricReader::Histogram(
    const std::string& name, const Labels& labels) const {
  const auto metric = Find(metrics_, name, labels);
  if (!metric.has_value()) return std::nullopt;
  return metric->histogram;
}

std::vector<std::string> MetricReader::LabelValues(
    const std::string& name, const std::string& label) const {
  std::set<std::string> values;
  for (const prometheus::ClientMetric& metric : Series(metrics_, name)) {
    const Labels labels = LabelsOf(metric);
    if (const auto it = labels.find(label); it != labels.end()) {
      values.insert(it->second);
    }
  }
  return {values.begin(), values.end()};
}

std::string MetricReader::Text() const {
  return prometheus::TextSerializer().Serialize(metrics_.registry()->Collect());
}

}  // namespace attention
