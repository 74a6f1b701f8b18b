#include "client/loadtest/request_shape.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cost.h"
#include "kernels/validation.h"

namespace attention::loadtest {
namespace {

template <typename T>
struct Name {
  const char* text;
  T value;
};

template <typename T, size_t count>
absl::StatusOr<T> ParseName(absl::string_view text,
                            const Name<T> (&names)[count]) {
  std::string choices;
  for (const Name<T>& name : names) {
    if (text == name.text) return name.value;
    absl::StrAppend(&choices, choices.empty() ? "" : ", ", name.text);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("must be one of ", choices, "; got \"", text, "\""));
}

absl::Status CheckRange(absl::string_view field, int64_t value, int64_t low,
                        int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " must be in [", low, ", ", high, "]; got ", value));
}

std::vector<int64_t> Dims(const RequestShape& s, int64_t length, int64_t heads,
                          int64_t head_dim) {
  switch (s.layout) {
    case Layout::kBshd:
      return {s.batch, length, heads, head_dim};
    case Layout::kBhsd:
      return {s.batch, heads, length, head_dim};
    case Layout::kThd:
      break;
  }
  return {s.batch * length, heads, head_dim};
}

}  // namespace

absl::StatusOr<RequestShape> RequestShape::Resolve() const {
  RequestShape s = *this;
  if (s.key_length == -1) s.key_length = s.query_length;
  if (s.kv_heads == -1) s.kv_heads = s.heads;
  if (s.head_dim_v == -1) s.head_dim_v = s.head_dim;

  constexpr int64_t kMaxCount = int64_t{1} << 31;
  const struct {
    const char* field;
    int64_t value, low, high;
  } ranges[] = {{"batch", s.batch, 1, kMaxCount},
                {"query_length", s.query_length, 1, kMaxCount},
                {"key_length", s.key_length, 0, kMaxCount},
                {"heads", s.heads, 1, kMaxCount},
                {"kv_heads", s.kv_heads, 1, kMaxCount},
                {"head_dim", s.head_dim, 1, kMaxHeadDim},
                {"head_dim_v", s.head_dim_v, 1, kMaxHeadDim},
                {"window_left", s.window_left, -1, INT64_MAX},
                {"window_right", s.window_right, -1, INT64_MAX}};
  for (const auto& range : ranges) {
    if (absl::Status status =
            CheckRange(range.field, range.value, range.low, range.high);
        !status.ok()) {
      return status;
    }
  }
  if (s.heads % s.kv_heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("heads must be a multiple of kv_heads; got ", s.heads,
                     " and ", s.kv_heads));
  }
  // In floating point: the products of legal fields may pass 2^63.
  const double batch = s.batch, m = s.query_length, n = s.key_length;
  const double element_bytes = ElementBytes(s.data_type);
  const double output_bytes = ElementBytes(OutputType(s.data_type));
  const double request_bytes =
      batch * element_bytes *
      (m * s.heads * s.head_dim + n * s.kv_heads * (s.head_dim + s.head_dim_v));
  const double answer_bytes =
      batch * m * s.heads *
      (output_bytes * s.head_dim_v + (s.log_sum_exp ? sizeof(float) : 0));
  if (std::fmax(request_bytes, answer_bytes) >= kMaxRequestBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a request or answer must be under 1 TiB; got ", request_bytes,
        " bytes of query, key and value and ", answer_bytes, " of answer"));
  }
  return s;
}

HeadConfig RequestShape::config() const {
  return {.data_type = data_type,
          .head_dim_qk = static_cast<int32_t>(head_dim),
          .head_dim_v = static_cast<int32_t>(head_dim_v),
          .query_head_count = static_cast<int32_t>(heads),
          .kv_head_count = static_cast<int32_t>(kv_heads),
          .mask = mask,
          .precision = precision,
          .algorithm = algorithm.value_or(Algorithm::kStreaming)};
}

Sequence RequestShape::sequence() const {
  Sequence sequence;
  sequence.query_length = query_length;
  sequence.key_length = key_length;
  sequence.scale = 1 / std::sqrt(static_cast<double>(head_dim));
  sequence.window_left = window_left;
  sequence.window_right = window_right;
  return sequence;
}

std::vector<int64_t> RequestShape::QueryDims() const {
  return Dims(*this, query_length, heads, head_dim);
}
std::vector<int64_t> RequestShape::KeyDims() const {
  return Dims(*this, key_length, kv_heads, head_dim);
}
std::vector<int64_t> RequestShape::ValueDims() const {
  return Dims(*this, key_length, kv_heads, head_dim_v);
}
int64_t RequestShape::OutputBytes() const {
  return ElementCount(OutputDims()) * ElementBytes(OutputType(data_type));
}

int64_t RequestShape::LogSumExpBytes() const {
  return log_sum_exp ? batch * query_length * heads * int64_t{sizeof(float)}
                     : 0;
}

std::vector<int64_t> RequestShape::OutputDims() const {
  return Dims(*this, query_length, heads, head_dim_v);
}

int64_t RequestShape::RequestBytes() const {
  return (ElementCount(QueryDims()) + ElementCount(KeyDims()) +
          ElementCount(ValueDims())) *
         ElementBytes(data_type);
}

double RequestShape::Flops() const {
  return static_cast<double>(batch) * AttentionFlops(config(), sequence());
}

absl::StatusOr<DataType> ParseDataType(absl::string_view text) {
  static constexpr Name<DataType> kNames[] = {{"fp32", DataType::kFloat32},
                                              {"fp16", DataType::kFloat16},
                                              {"bf16", DataType::kBFloat16},
                                              {"fp8", DataType::kFloat8E4M3}};
  return ParseName(text, kNames);
}

absl::StatusOr<MaskKind> ParseMask(absl::string_view text) {
  static constexpr Name<MaskKind> kNames[] = {
      {"none", MaskKind::kNone},
      {"causal", MaskKind::kCausalBottomRight},
      {"causal_top_left", MaskKind::kCausalTopLeft},
      {"causal_bottom_right", MaskKind::kCausalBottomRight}};
  return ParseName(text, kNames);
}

absl::StatusOr<Layout> ParseLayout(absl::string_view text) {
  static constexpr Name<Layout> kNames[] = {
      {"bshd", Layout::kBshd}, {"bhsd", Layout::kBhsd}, {"thd", Layout::kThd}};
  return ParseName(text, kNames);
}

absl::StatusOr<Precision> ParsePrecision(absl::string_view text) {
  static constexpr Name<Precision> kNames[] = {{"ieee", Precision::kIeee},
                                               {"tf32", Precision::kTf32}};
  return ParseName(text, kNames);
}

absl::StatusOr<std::optional<Algorithm>> ParseAlgorithm(
    absl::string_view text) {
  static constexpr Name<std::optional<Algorithm>> kNames[] = {
      {"auto", std::nullopt},
      {"streaming", Algorithm::kStreaming},
      {"three_step", Algorithm::kThreeStep}};
  return ParseName(text, kNames);
}

const char* LayoutName(Layout layout) {
  switch (layout) {
    case Layout::kBshd:
      return "bshd";
    case Layout::kBhsd:
      return "bhsd";
    case Layout::kThd:
      return "thd";
  }
  return "unknown";
}

std::string Describe(const RequestShape& s) {
  std::string text = absl::StrCat(ToString(s.data_type), " b", s.batch, " m",
                                  s.query_length, " n", s.key_length, " q",
                                  s.heads, " kv", s.kv_heads, " d", s.head_dim);
  if (s.head_dim_v != s.head_dim) absl::StrAppend(&text, " dv", s.head_dim_v);
  absl::StrAppend(&text, " ", ToString(s.mask));
  if (s.window_left >= 0) absl::StrAppend(&text, " left", s.window_left);
  if (s.window_right >= 0) absl::StrAppend(&text, " right", s.window_right);
  absl::StrAppend(&text, " ", LayoutName(s.layout));
  if (s.precision != Precision::kIeee) {
    absl::StrAppend(&text, " ", ToString(s.precision));
  }
  if (s.algorithm.has_value()) {
    absl::StrAppend(&text, " ", ToString(*s.algorithm));
  }
  if (s.log_sum_exp) absl::StrAppend(&text, " lse");
  return text;
}

int64_t ElementCount(const std::vector<int64_t>& dims) {
  int64_t count = 1;
  for (int64_t dim : dims) count *= dim;
  return count;
}

}  // namespace attention::loadtest
