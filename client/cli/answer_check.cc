#include "client/cli/answer_check.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/attention_params.h"
#include "kernels/float_convert.h"
#include "kernels/reference/reference_attention.h"
#include "kernels/reference/tolerance.h"
#include "kernels/validation.h"

namespace attention::cli {
namespace {

// A contiguous tensor of four dimensions, in elements.
struct Geometry {
  int64_t batch, tokens, heads, dims;
  int64_t batch_stride, token_stride, head_stride;

  int64_t Offset(int64_t b, int64_t token, int64_t head) const {
    return b * batch_stride + token * token_stride + head * head_stride;
  }
};

Geometry GeometryOf(const std::vector<int64_t>& shape, Layout layout) {
  if (layout == Layout::kBshd) {
    return {shape[0],
            shape[1],
            shape[2],
            shape[3],
            shape[1] * shape[2] * shape[3],
            shape[2] * shape[3],
            shape[3]};
  }
  return {shape[0],
          shape[2],
          shape[1],
          shape[3],
          shape[1] * shape[2] * shape[3],
          shape[3],
          shape[2] * shape[3]};
}

absl::Status CheckShape(absl::string_view name,
                        const std::vector<int64_t>& expected,
                        const std::vector<int64_t>& actual) {
  if (expected == actual) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(
      "the answer's ", name, " has shape [", absl::StrJoin(actual, ", "),
      "]; expected [", absl::StrJoin(expected, ", "), "]"));
}

double Difference(double expected, double actual) {
  if (std::isnan(expected) && std::isnan(actual)) return 0;
  if (expected == actual) return 0;
  const double difference = std::abs(expected - actual);
  return std::isfinite(difference) ? difference
                                   : std::numeric_limits<double>::infinity();
}

reference::Tolerance ToleranceOf(const AttentionRequest& request) {
  return reference::ToleranceOf(request.data_type, request.precision);
}

// 0 / 0 counts as within the tolerance: a tolerance of 0 is met exactly.
double InUnitsOf(double error, double tolerance) {
  return error == 0 ? 0 : error / tolerance;
}

class Checker {
 public:
  Checker(const AttentionRequest& request, const AttentionResult& result)
      : request_(request),
        result_(result),
        query_(GeometryOf(request.query.shape, request.layout)),
        key_(GeometryOf(request.key.shape, request.layout)),
        value_(GeometryOf(request.value.shape, request.layout)),
        output_(GeometryOf(result.output_shape, request.layout)) {}

  // What one (sequence, head) adds to the report.
  struct Part {
    CheckReport report;
    double max_abs_output = 0;
    double worst_log_sum_exp = 0;  // in units of its tolerance
  };

  Part CheckHead(int64_t b, int64_t head) const {
    const HeadConfig config = {.data_type = request_.data_type,
                               .head_dim_qk = static_cast<int32_t>(query_.dims),
                               .head_dim_v = static_cast<int32_t>(value_.dims),
                               .query_head_count = 1,
                               .kv_head_count = 1,
                               .mask = request_.mask};
    const int64_t kv_head = head / (query_.heads / key_.heads);
    Sequence sequence;
    sequence.query = Address(request_.query, query_.Offset(b, 0, head));
    sequence.key = Address(request_.key, key_.Offset(b, 0, kv_head));
    sequence.value = Address(request_.value, value_.Offset(b, 0, kv_head));
    sequence.query_strides.token = query_.token_stride;
    sequence.key_strides.token = key_.token_stride;
    sequence.value_strides.token = value_.token_stride;
    sequence.query_length = query_.tokens;
    sequence.key_length = key_.tokens;
    sequence.scale = request_.scale.value_or(
        1.0 / std::sqrt(static_cast<double>(query_.dims)));
    sequence.query_scales = ScaleOf(request_.query_scales, head);
    sequence.key_scales = ScaleOf(request_.key_scales, kv_head);
    sequence.value_scales = ScaleOf(request_.value_scales, kv_head);
    sequence.window_left = request_.window_left.value_or(kUnlimitedWindow);
    sequence.window_right = request_.window_right.value_or(kUnlimitedWindow);
    const bool want_weights = request_.return_weights;
    return Compare(b, head,
                   reference::ComputeAttention(config, sequence, want_weights));
  }

  int64_t head_count() const { return query_.heads; }
  int64_t part_count() const { return query_.batch * query_.heads; }

 private:
  const void* Address(const TensorView& tensor, int64_t element) const {
    return static_cast<const char*>(tensor.data) +
           element * ElementBytes(request_.data_type);
  }

  static const float* ScaleOf(const std::vector<float>& scales, int64_t head) {
    return scales.empty() ? nullptr : &scales[head];
  }

  Part Compare(int64_t b, int64_t head,
               const reference::SequenceResult& expected) const {
    Part part;
    for (int64_t i = 0; i < query_.tokens; ++i) {
      for (int64_t d = 0; d < output_.dims; ++d) {
        const double value = expected.output[i * output_.dims + d];
        const double actual =
            LoadAsFloat(result_.data_type, result_.output.data(),
                        output_.Offset(b, i, head) + d);
        part.report.output_error =
            std::max(part.report.output_error, Difference(value, actual));
        if (std::isfinite(value)) {
          part.max_abs_output = std::max(part.max_abs_output, std::abs(value));
        }
      }
      if (request_.return_log_sum_exp)
        CompareLogSumExp(b, head, i, expected, &part);
    }
    if (request_.return_weights) {
      const int64_t count = query_.tokens * key_.tokens;
      const int64_t first = (b * query_.heads + head) * count;
      for (int64_t i = 0; i < count; ++i) {
        const double actual =
            LoadAsFloat(result_.data_type, result_.weights.data(), first + i);
        part.report.weights_error = std::max(
            part.report.weights_error, Difference(expected.weights[i], actual));
      }
    }
    return part;
  }

  void CompareLogSumExp(int64_t b, int64_t head, int64_t i,
                        const reference::SequenceResult& expected,
                        Part* part) const {
    // The output's offset without its last dimension.
    const int64_t index =
        output_.dims == 0 ? 0 : output_.Offset(b, i, head) / output_.dims;
    const double value = expected.log_sum_exp[i];
    const double error = Difference(
        value,
        LoadAsFloat(DataType::kFloat32, result_.log_sum_exp.data(), index));
    part->report.log_sum_exp_error =
        std::max(part->report.log_sum_exp_error, error);
    part->worst_log_sum_exp =
        std::max(part->worst_log_sum_exp,
                 InUnitsOf(error, ToleranceOf(request_).LogSumExp(value)));
  }

  const AttentionRequest& request_;
  const AttentionResult& result_;
  const Geometry query_, key_, value_, output_;
};

absl::Status CheckShapes(const AttentionRequest& request,
                         const AttentionResult& result) {
  if (const DataType type = OutputType(request.data_type);
      result.data_type != type) {
    return absl::InternalError(absl::StrCat("the answer is of type ",
                                            ToString(result.data_type),
                                            "; expected ", ToString(type)));
  }
  std::vector<int64_t> output = request.query.shape;
  output.back() = request.value.shape.back();
  absl::Status status = CheckShape("output", output, result.output_shape);
  if (status.ok() && request.return_log_sum_exp) {
    status = CheckShape("log_sum_exp", {output.begin(), output.end() - 1},
                        result.log_sum_exp_shape);
  }
  if (status.ok() && request.return_weights) {
    const Geometry query = GeometryOf(request.query.shape, request.layout);
    const Geometry key = GeometryOf(request.key.shape, request.layout);
    status = CheckShape("weights",
                        {query.batch, query.heads, query.tokens, key.tokens},
                        result.weights_shape);
  }
  return status;
}

}  // namespace

absl::StatusOr<CheckReport> CheckAnswer(const AttentionRequest& request,
                                        const AttentionResult& result) {
  if (absl::Status status = CheckShapes(request, result); !status.ok()) {
    return status;
  }
  const Checker checker(request, result);
  std::vector<Checker::Part> parts(checker.part_count());
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < parts.size(); i = next++) {
      parts[i] =
          checker.CheckHead(static_cast<int64_t>(i) / checker.head_count(),
                            static_cast<int64_t>(i) % checker.head_count());
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 1; i < std::max(1u, std::thread::hardware_concurrency());
       ++i) {
    threads.emplace_back(work);
  }
  work();
  for (std::thread& thread : threads) thread.join();

  CheckReport report;
  double max_abs_output = 0;
  for (const Checker::Part& part : parts) {
    report.output_error =
        std::max(report.output_error, part.report.output_error);
    report.log_sum_exp_error =
        std::max(report.log_sum_exp_error, part.report.log_sum_exp_error);
    report.weights_error =
        std::max(report.weights_error, part.report.weights_error);
    report.worst = std::max(report.worst, part.worst_log_sum_exp);
    max_abs_output = std::max(max_abs_output, part.max_abs_output);
  }
  const reference::Tolerance tolerance = ToleranceOf(request);
  report.worst = std::max(
      {report.worst,
       InUnitsOf(report.output_error, tolerance.Output(max_abs_output)),
       InUnitsOf(report.weights_error, tolerance.Output(1))});
  return report;
}

}  // namespace attention::cli
