// Reads single values out of a Metrics object, as a scrape would see them.
#ifndef ATTENTION_TESTS_SERVER_METRICS_METRIC_READER_H_
#define ATTENTION_TESTS_SERVER_METRICS_METRIC_READER_H_

#include <prometheus/client_metric.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "server/metrics/metrics.h"

namespace attention {

class MetricReader {
 public:
  using Labels = std::map<std::string, std::string>;

  // `metrics` must outlive the reader. Every call collects anew.
  explicit MetricReader(const Metrics& metrics) : metrics_(metrics) {}

  // Value of the counter or gauge with exactly these labels; nullopt when there
  // is no such series.
  std::optional<double> Value(const std::string& name,
                              const Labels& labels = {}) const;

  // Sum over the series of a counter or gauge that have at least these labels.
  double Sum(const std::string& name, const Labels& labels = {}) const;

  // The histogram with exactly these labels; nullopt when there is none.
  std::optional<prometheus::ClientMetric::Histogram> Histogram(
      const std::string& name, const Labels& labels = {}) const;

  // The distinct values of one label.
  std::vector<std::string> LabelValues(const std::string& name,
                                       const std::string& label) const;

  // The whole scrape in the text format.
  std::string Text() const;

 private:
  const Metrics& metrics_;
};

}  // namespace attention

#endif  // ATTENTION_TESTS_SERVER_METRICS_METRIC_READER_H_
