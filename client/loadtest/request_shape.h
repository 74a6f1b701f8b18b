// The shape of a request: everything about it except its elements.
#ifndef ATTENTION_CLIENT_LOADTEST_REQUEST_SHAPE_H_
#define ATTENTION_CLIENT_LOADTEST_REQUEST_SHAPE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/cpp/attention_client.h"
#include "kernels/attention_params.h"

namespace attention::loadtest {

// Beyond the memory of any machine that runs the load tester.
inline constexpr double kMaxRequestBytes = 1099511627776.0;

struct RequestShape {
  std::string name = "default";
  DataType data_type = DataType::kBFloat16;
  int64_t batch = 1;           // sequences
  int64_t query_length = 512;  // M, of each sequence
  int64_t key_length = -1;     // N, of each sequence; -1: query_length
  int64_t heads = 16;
  int64_t kv_heads = -1;    // -1: heads
  int64_t head_dim = 128;   // of query and key
  int64_t head_dim_v = -1;  // of value; -1: head_dim
  MaskKind mask = MaskKind::kNone;
  int64_t window_left = kUnlimitedWindow;
  int64_t window_right = kUnlimitedWindow;
  Layout layout = Layout::kBshd;
  Precision precision = Precision::kIeee;
  std::optional<Algorithm> algorithm;
  bool log_sum_exp = false;

  friend bool operator==(const RequestShape&, const RequestShape&) = default;

  // The shape with every -1 that stands for another field replaced by it.
  // InvalidArgument naming field, value and bound when the shape is not
  // computable or larger than kMaxRequestBytes.
  absl::StatusOr<RequestShape> Resolve() const;

  // --- Of a resolved shape -------------------------------------------------
  HeadConfig config() const;
  // One of the `batch` sequences, without pointers and strides.
  Sequence sequence() const;
  std::vector<int64_t> QueryDims() const;
  std::vector<int64_t> KeyDims() const;
  std::vector<int64_t> ValueDims() const;
  std::vector<int64_t> OutputDims() const;
  int64_t RequestBytes() const;  // of the three tensors
  int64_t OutputBytes() const;
  int64_t LogSumExpBytes() const;  // 0 unless asked for
  double Flops() const;          // over visible pairs, all sequences
};

// Names as flags and mix files spell them. InvalidArgument lists the choices
// ("must be one of ..."); the caller says of what.
absl::StatusOr<DataType> ParseDataType(absl::string_view text);
absl::StatusOr<MaskKind> ParseMask(absl::string_view text);
absl::StatusOr<Layout> ParseLayout(absl::string_view text);
absl::StatusOr<Precision> ParsePrecision(absl::string_view text);
// "auto" is no algorithm: the server's choice.
absl::StatusOr<std::optional<Algorithm>> ParseAlgorithm(absl::string_view text);

const char* LayoutName(Layout layout);

// E.g. "bf16 b1 m512 n512 q16 kv8 d128 causal_bottom_right bshd".
std::string Describe(const RequestShape& shape);

// Elements of a tensor with these dimensions.
int64_t ElementCount(const std::vector<int64_t>& dims);

}  // namespace attention::loadtest

#endif  // ATTENTION_CLIENT_LOADTEST_REQUEST_SHAPE_H_
