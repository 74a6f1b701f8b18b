#include "client/loadtest/shape_options.h"

#include <cstdint>
#include <string>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

ABSL_FLAG(std::string, mix, "",
          "JSON file with a weighted list of shapes; its fields default to the "
          "flags below. See client/loadtest/README.md");
ABSL_FLAG(std::string, dtype, "bf16",
          "\"fp32\", \"fp16\", \"bf16\" or \"fp8\" (e4m3 with scales of each "
          "head; answers are bf16). Decoding has --kv_dtype=fp8");
ABSL_FLAG(int64_t, batch, 1, "Sequences in a request");
ABSL_FLAG(int64_t, query_length, 512, "Queries of each sequence");
ABSL_FLAG(int64_t, key_length, -1,
          "Keys of each sequence. -1: as --query_length");
ABSL_FLAG(int64_t, heads, 16, "Query heads");
ABSL_FLAG(int64_t, kv_heads, -1,
          "K/V heads, a divisor of --heads. -1: as many");
ABSL_FLAG(int64_t, head_dim, 128, "Head dimension of query and key");
ABSL_FLAG(int64_t, head_dim_v, -1,
          "Head dimension of value. -1: as --head_dim");
ABSL_FLAG(std::string, mask, "none",
          "\"none\", \"causal\" (bottom right), \"causal_top_left\" or "
          "\"causal_bottom_right\". Decoding is causal");
ABSL_FLAG(int64_t, window_left, -1,
          "Keys left of the diagonal that stay visible. -1: all");
ABSL_FLAG(int64_t, window_right, -1,
          "Keys right of the diagonal that stay visible. -1: all");
ABSL_FLAG(std::string, layout, "bshd", "\"bshd\", \"bhsd\" or \"thd\"");
ABSL_FLAG(bool, lse, false, "Ask for the log-sum-exp");
ABSL_FLAG(std::string, precision, "ieee", "\"ieee\" or \"tf32\"");
ABSL_FLAG(std::string, algorithm, "auto",
          "\"auto\", \"streaming\" or \"three_step\"");

namespace attention::loadtest {
namespace {

template <typename T>
absl::Status ParseInto(absl::string_view flag, absl::StatusOr<T> parsed,
                       T& field) {
  if (!parsed.ok()) return Wrong(flag, parsed.status().message());
  field = *std::move(parsed);
  return absl::OkStatus();
}

absl::StatusOr<RequestShape> ShapeFromFlags() {
  RequestShape shape;
  shape.batch = absl::GetFlag(FLAGS_batch);
  shape.query_length = absl::GetFlag(FLAGS_query_length);
  shape.key_length = absl::GetFlag(FLAGS_key_length);
  shape.heads = absl::GetFlag(FLAGS_heads);
  shape.kv_heads = absl::GetFlag(FLAGS_kv_heads);
  shape.head_dim = absl::GetFlag(FLAGS_head_dim);
  shape.head_dim_v = absl::GetFlag(FLAGS_head_dim_v);
  shape.window_left = absl::GetFlag(FLAGS_window_left);
  shape.window_right = absl::GetFlag(FLAGS_window_right);
  shape.log_sum_exp = absl::GetFlag(FLAGS_lse);
  absl::Status status;
  status.Update(ParseInto("dtype", ParseDataType(absl::GetFlag(FLAGS_dtype)),
                          shape.data_type));
  status.Update(
      ParseInto("mask", ParseMask(absl::GetFlag(FLAGS_mask)), shape.mask));
  status.Update(ParseInto("layout", ParseLayout(absl::GetFlag(FLAGS_layout)),
                          shape.layout));
  status.Update(ParseInto("precision",
                          ParsePrecision(absl::GetFlag(FLAGS_precision)),
                          shape.precision));
  status.Update(ParseInto("algorithm",
                          ParseAlgorithm(absl::GetFlag(FLAGS_algorithm)),
                          shape.algorithm));
  if (!status.ok()) return status;
  return shape;
}

}  // namespace

absl::StatusOr<ShapeMix> MixFromFlags() {
  absl::StatusOr<RequestShape> shape = ShapeFromFlags();
  if (!shape.ok()) return shape.status();
  const std::string path = absl::GetFlag(FLAGS_mix);
  if (!path.empty()) return ReadShapeMix(path, *shape);
  shape = shape->Resolve();
  if (!shape.ok()) return shape.status();
  return ShapeMix{{.shape = *std::move(shape)}};
}

absl::StatusOr<ShapeMix> TapesFromFlags(const GivenFlags& given,
                                        const DecodePlan& plan) {
  if (auto s = given.Refuse({"mix", "batch", "query_length", "key_length",
                             "window_right", "layout", "algorithm"},
                            "of --mode=attention");
      !s.ok()) {
    return s;
  }
  absl::StatusOr<RequestShape> shape = ShapeFromFlags();
  if (shape.ok() && given.Has("mask") &&
      shape->mask != MaskKind::kCausalBottomRight) {
    return Wrong("mask",
                 absl::StrCat("must be causal with --mode=decode; got \"",
                              absl::GetFlag(FLAGS_mask), "\""));
  }
  if (shape.ok() && shape->data_type == DataType::kFloat8E4M3) {
    return Wrong(
        "dtype",
        "must be fp32, fp16 or bf16 with --mode=decode, whose keys and "
        "values are in 8 bits with --kv_dtype=fp8; got \"fp8\"");
  }
  if (shape.ok()) shape = TapeShape(*shape, plan);
  if (!shape.ok()) return shape.status();
  return ShapeMix{{.shape = *std::move(shape)}};
}

}  // namespace attention::loadtest
