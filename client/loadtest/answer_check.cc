#include "client/loadtest/answer_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/float_convert.h"
#include "kernels/mask.h"
#include "kernels/reference/reference_attention.h"
#include "kernels/reference/tolerance.h"
#include "kernels/validation.h"

namespace attention::loadtest {
namespace {

// Multiply-adds spent on one input: a fraction of a second.
constexpr double kMaxWork = 3e7;

// Index of row (sequence, token, head) among the rows of a contiguous tensor.
int64_t RowIndex(Layout layout, int64_t sequence, int64_t token, int64_t head,
                 int64_t length, int64_t heads) {
  return layout == Layout::kBhsd ? (sequence * heads + head) * length + token
                                 : (sequence * length + token) * heads + head;
}

const char* RowAddress(const TensorView& tensor, DataType type, int64_t row,
                       int64_t head_dim) {
  return static_cast<const char*>(tensor.data) +
         row * head_dim * ElementBytes(type);
}

const float* ScaleOf(const std::vector<float>& scales, int64_t head) {
  return scales.empty() ? nullptr : &scales[head];
}

// The row as a problem of its own: one query, one head, and only the keys that
// it sees, which leaves no mask.
ExpectedRow ComputeRow(const RequestShape& shape,
                       const AttentionRequest& request, int64_t sequence,
                       int64_t query, int64_t head) {
  const KeyRange keys =
      MakeMaskBand(shape.mask, shape.sequence()).VisibleKeys(query);
  const int64_t kv_head = head / (shape.heads / shape.kv_heads);
  const bool head_major = shape.layout == Layout::kBhsd;
  const auto key_row = [&](int64_t token) {
    return RowIndex(shape.layout, sequence, token, kv_head, shape.key_length,
                    shape.kv_heads);
  };

  HeadConfig config = shape.config();
  config.query_head_count = config.kv_head_count = 1;
  config.mask = MaskKind::kNone;
  Sequence row = shape.sequence();
  row.query_length = 1;
  row.key_length = std::max<int64_t>(keys.end - keys.begin, 0);
  row.window_left = row.window_right = kUnlimitedWindow;
  row.query = RowAddress(request.query, shape.data_type,
                         RowIndex(shape.layout, sequence, query, head,
                                  shape.query_length, shape.heads),
                         shape.head_dim);
  if (row.key_length > 0) {
    row.key = RowAddress(request.key, shape.data_type, key_row(keys.begin),
                         shape.head_dim);
    row.value = RowAddress(request.value, shape.data_type, key_row(keys.begin),
                           shape.head_dim_v);
  }
  row.query_scales = ScaleOf(request.query_scales, head);
  row.key_scales = ScaleOf(request.key_scales, kv_head);
  row.value_scales = ScaleOf(request.value_scales, kv_head);
  const int64_t rows_per_token = head_major ? 1 : shape.kv_heads;
  row.key_strides.token = rows_per_token * shape.head_dim;
  row.value_strides.token = rows_per_token * shape.head_dim_v;

  reference::SequenceResult result = reference::ComputeAttention(config, row);
  return {sequence, query, head, std::move(result.output),
          result.log_sum_exp[0]};
}

std::string DimsText(const std::vector<int64_t>& dims) {
  return absl::StrCat("[", absl::StrJoin(dims, ", "), "]");
}

absl::Status CheckSizes(const RequestShape& shape,
                        const AttentionResult& result) {
  const std::vector<int64_t> dims = shape.OutputDims();
  const DataType type = OutputType(shape.data_type);
  if (result.data_type != type) {
    return absl::DataLossError(absl::StrCat("output: got type ",
                                            ToString(result.data_type),
                                            ", expected ", ToString(type)));
  }
  const int64_t bytes = shape.OutputBytes();
  if (result.output_shape != dims ||
      static_cast<int64_t>(result.output.size()) != bytes) {
    return absl::DataLossError(
        absl::StrCat("output: got shape ", DimsText(result.output_shape),
                     " in ", result.output.size(), " bytes, expected ",
                     DimsText(dims), " in ", bytes));
  }
  if (!shape.log_sum_exp) return absl::OkStatus();
  const std::vector<int64_t> lse_dims(dims.begin(), dims.end() - 1);
  const int64_t lse_bytes = ElementCount(lse_dims) * int64_t{sizeof(float)};
  if (result.log_sum_exp_shape != lse_dims ||
      static_cast<int64_t>(result.log_sum_exp.size()) != lse_bytes) {
    return absl::DataLossError(absl::StrCat(
        "log_sum_exp: got shape ", DimsText(result.log_sum_exp_shape), " in ",
        result.log_sum_exp.size(), " bytes, expected ", DimsText(lse_dims),
        " in ", lse_bytes));
  }
  return absl::OkStatus();
}

absl::Status Difference(const char* what, const ExpectedRow& row,
                        int64_t element, double got, double expected,
                        double tolerance) {
  return absl::DataLossError(
      absl::StrCat(what, " of sequence ", row.sequence, ", query ", row.query,
                   ", head ", row.head, ", element ", element, ": got ", got,
                   ", expected ", expected, ", tolerance ", tolerance));
}

// Compares row `index` of an answer; `log_sum_exp` may be null.
absl::Status CheckRow(const RequestShape& shape, const Expectation& expectation,
                      const ExpectedRow& row, const char* output,
                      const char* log_sum_exp, int64_t index) {
  const reference::Tolerance tolerance =
      reference::ToleranceOf(shape.data_type, shape.precision);
  const double allowed_output = tolerance.Output(expectation.max_abs_output);
  const DataType type = OutputType(shape.data_type);
  for (int64_t d = 0; d < shape.head_dim_v; ++d) {
    const double got = LoadAsFloat(type, output, index * shape.head_dim_v + d);
    // Written so that a NaN fails.
    if (!(std::abs(got - row.output[d]) <= allowed_output)) {
      return Difference("output", row, d, got, row.output[d], allowed_output);
    }
  }
  if (log_sum_exp == nullptr) return absl::OkStatus();
  const double got = LoadAsFloat(DataType::kFloat32, log_sum_exp, index);
  const double allowed = tolerance.LogSumExp(row.log_sum_exp);
  const bool close = std::isinf(row.log_sum_exp)
                         ? got == row.log_sum_exp
                         : std::abs(got - row.log_sum_exp) <= allowed;
  return close
             ? absl::OkStatus()
             : Difference("log_sum_exp", row, 0, got, row.log_sum_exp, allowed);
}

}  // namespace

Expectation ComputeExpectation(const RequestShape& shape,
                               const AttentionRequest& request, int max_rows,
                               uint64_t seed) {
  const double work = static_cast<double>(shape.key_length + 1) *
                      static_cast<double>(shape.head_dim + shape.head_dim_v);
  const int count = static_cast<int>(
      std::clamp<double>(kMaxWork / work, std::min(2, max_rows), max_rows));
  std::mt19937_64 random(seed);
  const auto below = [&random](int64_t bound) {
    return std::uniform_int_distribution<int64_t>(0, bound - 1)(random);
  };
  Expectation expectation;
  for (int i = 0; i < count; ++i) {
    int64_t sequence = 0, query = 0, head = 0;
    if (i == 1) {
      sequence = shape.batch - 1;
      query = shape.query_length - 1;
      head = shape.heads - 1;
    } else if (i > 1) {
      sequence = below(shape.batch);
      query = below(shape.query_length);
      head = below(shape.heads);
    }
    expectation.rows.push_back(
        ComputeRow(shape, request, sequence, query, head));
    for (double value : expectation.rows.back().output) {
      expectation.max_abs_output =
          std::max(expectation.max_abs_output, std::abs(value));
    }
  }
  return expectation;
}

absl::Status CheckAnswer(const RequestShape& shape,
                         const Expectation& expectation,
                         const AttentionResult& result) {
  if (absl::Status status = CheckSizes(shape, result); !status.ok()) {
    return status;
  }
  for (const ExpectedRow& row : expectation.rows) {
    const int64_t index = RowIndex(shape.layout, row.sequence, row.query,
                                   row.head, shape.query_length, shape.heads);
    absl::Status status = CheckRow(
        shape, expectation, row, result.output.data(),
        shape.log_sum_exp ? result.log_sum_exp.data() : nullptr, index);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CheckQueries(const RequestShape& shape,
                          const Expectation& expectation, int64_t first_query,
                          int64_t query_count, const char* output,
                          const char* log_sum_exp, int64_t& compared) {
  for (const ExpectedRow& row : expectation.rows) {
    const int64_t query = row.query - first_query;
    if (query < 0 || query >= query_count) continue;
    ++compared;
    absl::Status status = CheckRow(shape, expectation, row, output, log_sum_exp,
                                   query * shape.heads + row.head);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace attention::loadtest
