#include "client/cpp/attention_states.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/float_convert.h"

namespace attention {
namespace {

int64_t Product(absl::Span<const int64_t> extents) {
  return std::accumulate(extents.begin(), extents.end(), int64_t{1},
                         std::multiplies<>());
}

absl::Status CheckShapes(const AttentionResult& state) {
  const absl::Span<const int64_t> output = state.output_shape;
  if (output.empty() || absl::MakeConstSpan(state.log_sum_exp_shape) !=
                            output.first(output.size() - 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "log_sum_exp must have the output's shape [",
        absl::StrJoin(output, ", "), "] without its last dimension; got [",
        absl::StrJoin(state.log_sum_exp_shape, ", "), "]"));
  }
  const int64_t output_bytes = Product(output) * ElementBytes(state.data_type);
  const int64_t log_sum_exp_bytes =
      Product(state.log_sum_exp_shape) * static_cast<int64_t>(sizeof(float));
  for (const auto& [name, bytes, expected] :
       {std::tuple("output", state.output.size(), output_bytes),
        std::tuple("log_sum_exp", state.log_sum_exp.size(),
                   log_sum_exp_bytes)}) {
    if (static_cast<int64_t>(bytes) != expected) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " must have the ", expected,
                       " bytes of its shape; got ", bytes));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckStates(absl::Span<const AttentionResult> states) {
  if (states.empty()) {
    return absl::InvalidArgumentError("there must be at least one state");
  }
  for (size_t i = 0; i < states.size(); ++i) {
    absl::Status status = CheckShapes(states[i]);
    if (status.ok() && (states[i].data_type != states[0].data_type ||
                        states[i].output_shape != states[0].output_shape)) {
      status = absl::InvalidArgumentError(
          "data type and output shape must be those of state 0");
    }
    if (!status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("state ", i, ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

double LogSumExp(const AttentionResult& state, int64_t row) {
  return LoadAsFloat(DataType::kFloat32, state.log_sum_exp.data(), row);
}

// What each state counts for in one row; null for those that add nothing.
// Returns the log-sum-exp of all.
double Weigh(absl::Span<const AttentionResult> states, int64_t row,
             std::vector<double>& weights) {
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  double highest = kNone;
  bool has_nan = false;
  for (const AttentionResult& state : states) {
    const double value = LogSumExp(state, row);
    has_nan |= std::isnan(value);
    highest = std::max(highest, value);
  }
  if (has_nan) highest = std::numeric_limits<double>::quiet_NaN();
  double sum = 0;
  for (size_t i = 0; i < states.size(); ++i) {
    const double value = LogSumExp(states[i], row);
    weights[i] = value == kNone ? 0 : std::exp(value - highest);
    sum += weights[i];
  }
  if (sum == 0) return kNone;
  for (double& weight : weights) weight /= sum;
  return highest + std::log(sum);
}

}  // namespace

absl::StatusOr<AttentionResult> MergeAttentionStates(
    absl::Span<const AttentionResult> states) {
  if (absl::Status status = CheckStates(states); !status.ok()) return status;
  const AttentionResult& first = states[0];
  AttentionResult merged;
  merged.data_type = first.data_type;
  merged.output_shape = first.output_shape;
  merged.output.resize(first.output.size());
  merged.log_sum_exp_shape = first.log_sum_exp_shape;
  merged.log_sum_exp.resize(first.log_sum_exp.size());

  const int64_t columns = first.output_shape.back();
  const int64_t rows = Product(first.log_sum_exp_shape);
  std::vector<double> weights(states.size());
  for (int64_t row = 0; row < rows; ++row) {
    const double log_sum_exp = Weigh(states, row, weights);
    StoreFromFloat(DataType::kFloat32, merged.log_sum_exp.data(), row,
                   static_cast<float>(log_sum_exp));
    for (int64_t i = row * columns; i < (row + 1) * columns; ++i) {
      double sum = 0;
      for (size_t part = 0; part < states.size(); ++part) {
        if (weights[part] == 0) continue;
        sum += weights[part] *
               LoadAsFloat(merged.data_type, states[part].output.data(), i);
      }
      StoreFromFloat(merged.data_type, merged.output.data(), i,
                     static_cast<float>(sum));
    }
  }
  return merged;
}

}  // namespace attention
