#include "client/cli/attend_input.h"

#include <cmath>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/commands.h"
#include "kernels/float_convert.h"

namespace attention::cli {
namespace {

// In the order of the enumerations.
const std::vector<std::string>& Layouts() {
  static const auto* const names = new std::vector<std::string>{"bshd", "bhsd"};
  return *names;
}
const std::vector<std::string>& Masks() {
  static const auto* const names = new std::vector<std::string>{
      "none", "causal_top_left", "causal_bottom_right"};
  return *names;
}

std::optional<DataType> FromSafetensorsType(SafetensorsType type) {
  switch (type) {
    case SafetensorsType::kF32:
      return DataType::kFloat32;
    case SafetensorsType::kF16:
      return DataType::kFloat16;
    case SafetensorsType::kBF16:
      return DataType::kBFloat16;
    case SafetensorsType::kF8E4M3:
      return DataType::kFloat8E4M3;
    default:
      return std::nullopt;
  }
}

// The flags that do not depend on the file.
absl::Status ReadFlags(const Arguments& arguments, AttentionRequest* request) {
  const auto layout = arguments.GetChoice("layout", Layouts());
  if (!layout.ok()) return layout.status();
  if (layout->has_value()) request->layout = static_cast<Layout>(**layout);
  const auto mask = arguments.GetChoice("mask", Masks());
  if (!mask.ok()) return mask.status();
  if (mask->has_value()) request->mask = static_cast<MaskKind>(**mask);
  if (arguments.Has("causal")) {
    if (mask->has_value()) {
      return absl::InvalidArgumentError(
          "--causal is short for --mask=causal_bottom_right; give only one");
    }
    request->mask = MaskKind::kCausalBottomRight;
  }
  const auto left = arguments.GetInteger("window_left", 0);
  if (!left.ok()) return left.status();
  request->window_left = *left;
  const auto right = arguments.GetInteger("window_right", 0);
  if (!right.ok()) return right.status();
  request->window_right = *right;
  const auto scale = arguments.GetNumber("scale");
  if (!scale.ok()) return scale.status();
  request->scale = *scale;
  const auto precision = arguments.GetChoice("precision", {"ieee", "tf32"});
  if (!precision.ok()) return precision.status();
  if (precision->has_value()) {
    request->precision = static_cast<Precision>(**precision);
  }
  const auto algorithm =
      arguments.GetChoice("algorithm", {"streaming", "three_step"});
  if (!algorithm.ok()) return algorithm.status();
  if (algorithm->has_value()) {
    request->algorithm = static_cast<Algorithm>(**algorithm);
  }
  request->return_log_sum_exp = arguments.Has("lse");
  request->return_weights = arguments.Has("weights");
  return absl::OkStatus();
}

absl::Status BadMetadata(const std::string& key, const std::string& value,
                         absl::string_view remedy) {
  return absl::InvalidArgumentError(
      absl::StrCat("the file's metadata has ", key, "=\"",
                   absl::Utf8SafeCEscape(value), "\"; ", remedy));
}

absl::Status ReadMetadata(const Arguments& arguments, AttendInput* input) {
  const SafetensorsMetadata& metadata = input->file->metadata();
  AttentionRequest& request = input->request;
  if (const auto it = metadata.find("layout");
      it != metadata.end() && !arguments.Has("layout")) {
    const std::string name = absl::AsciiStrToLower(it->second);
    if (name != "bshd" && name != "bhsd") {
      return BadMetadata("layout", it->second, "say --layout=bshd or bhsd");
    }
    request.layout = name == "bhsd" ? Layout::kBhsd : Layout::kBshd;
    input->from_metadata.push_back(absl::StrCat("layout=", name));
  }
  if (const auto it = metadata.find("causal"); it != metadata.end() &&
                                               !arguments.Has("mask") &&
                                               !arguments.Has("causal")) {
    bool causal = false;
    if (!absl::SimpleAtob(it->second, &causal)) {
      return BadMetadata("causal", it->second, "say --causal or --mask=none");
    }
    request.mask = causal ? MaskKind::kCausalBottomRight : MaskKind::kNone;
    input->from_metadata.push_back(
        absl::StrCat("mask=", Masks()[static_cast<size_t>(request.mask)]));
  }
  if (const auto it = metadata.find("scale");
      it != metadata.end() && !request.scale.has_value()) {
    double scale = 0;
    if (!absl::SimpleAtod(it->second, &scale) || !std::isfinite(scale)) {
      return BadMetadata("scale", it->second, "say --scale");
    }
    request.scale = scale;
    input->from_metadata.push_back(absl::StrCat("scale=", it->second));
  }
  return absl::OkStatus();
}

struct NamedTensor {
  std::string name;
  SafetensorsTensor tensor;
};

// The tensor of the flag's name; without the flag that of the short or, if
// there is none, of the long name.
absl::StatusOr<NamedTensor> FindTensor(const Arguments& arguments,
                                       const SafetensorsFile& file,
                                       absl::string_view long_name,
                                       absl::string_view short_name) {
  std::string name = arguments.GetString(long_name, short_name);
  if (!arguments.Has(long_name) && file.tensor(long_name).ok() &&
      !file.tensor(short_name).ok()) {
    name = std::string(long_name);
  }
  const auto tensor = file.tensor(name);
  if (!tensor.ok()) {
    return absl::NotFoundError(absl::StrCat(tensor.status().message(),
                                            "; name it with --", long_name));
  }
  return NamedTensor{std::move(name), *tensor};
}

// Those of a tensor in 8 bits; none if the file has none.
absl::StatusOr<std::vector<float>> ReadScales(const SafetensorsFile& file,
                                              absl::string_view tensor_name,
                                              int64_t heads) {
  const std::string name = absl::StrCat(tensor_name, "_scales");
  const auto tensor = file.tensor(name);
  if (!tensor.ok()) return std::vector<float>();
  if (tensor->type != SafetensorsType::kF32 ||
      tensor->shape != std::vector<int64_t>{heads}) {
    return absl::InvalidArgumentError(
        absl::StrCat("the tensor ", name, " must be F32 of shape [", heads,
                     "]; got ", ToString(tensor->type), " of shape [",
                     absl::StrJoin(tensor->shape, ", "), "]"));
  }
  std::vector<float> scales(heads);
  for (size_t i = 0; i < scales.size(); ++i) {
    scales[i] = LoadAsFloat(DataType::kFloat32, tensor->bytes.data(),
                            static_cast<int64_t>(i));
  }
  return scales;
}

// A tensor of the request, and where it is found.
struct Input {
  const char* long_name;
  const char* short_name;
  TensorView* view;
  std::vector<float>* scales;
};

std::array<Input, 3> InputsOf(AttentionRequest& request) {
  return {{{"query", "q", &request.query, &request.query_scales},
           {"key", "k", &request.key, &request.key_scales},
           {"value", "v", &request.value, &request.value_scales}}};
}

absl::Status ReadTensors(const Arguments& arguments, AttendInput* input) {
  std::optional<SafetensorsType> first_type;
  for (const Input& entry : InputsOf(input->request)) {
    const auto found =
        FindTensor(arguments, *input->file, entry.long_name, entry.short_name);
    if (!found.ok()) return found.status();
    const auto& [name, tensor] = *found;
    const auto data_type = FromSafetensorsType(tensor.type);
    if (!data_type.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the ", entry.long_name, " is of type ", ToString(tensor.type),
          "; must be F32, F16, BF16 or F8_E4M3"));
    }
    if (tensor.type != first_type.value_or(tensor.type)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "query, key and value must be of one type; the query is ",
          ToString(*first_type), ", the ", entry.long_name, " ",
          ToString(tensor.type)));
    }
    first_type = tensor.type;
    if (tensor.shape.size() != 4) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the ", entry.long_name, " must have 4 dimensions (",
          LayoutName(input->request.layout), "); got ", tensor.shape.size()));
    }
    input->request.data_type = *data_type;
    *entry.view = {tensor.bytes.data(), tensor.bytes.size(), tensor.shape, {}};
    if (*data_type != DataType::kFloat8E4M3) continue;
    const bool heads_first = input->request.layout == Layout::kBhsd;
    auto scales =
        ReadScales(*input->file, name, tensor.shape[heads_first ? 1 : 2]);
    if (!scales.ok()) return scales.status();
    *entry.scales = *std::move(scales);
  }
  return absl::OkStatus();
}

void RoundToFloat8(AttendInput* input) {
  AttentionRequest& request = input->request;
  if (request.data_type == DataType::kFloat8E4M3) return;
  size_t i = 0;
  for (const Input& entry : InputsOf(request)) {
    TensorView& view = *entry.view;
    std::vector<float> values(view.size_bytes /
                              ElementBytes(request.data_type));
    for (size_t k = 0; k < values.size(); ++k) {
      values[k] =
          LoadAsFloat(request.data_type, view.data, static_cast<int64_t>(k));
    }
    Float8Tensor& rounded = input->rounded[i++];
    rounded = QuantizeFloat8(values, view.shape, request.layout);
    view = TensorView::Contiguous(rounded.elements.data(), view.shape, 1);
    *entry.scales = rounded.scales;
  }
  request.data_type = DataType::kFloat8E4M3;
}

}  // namespace

std::vector<FlagSpec> AttendInputFlags() {
  return {
      {"input", "FILE",
       "safetensors file with query, key and value (required)"},
      {"query", "NAME", "tensor with the queries (default q, else query)"},
      {"key", "NAME", "tensor with the keys (default k, else key)"},
      {"value", "NAME", "tensor with the values (default v, else value)"},
      {"dtype", "TYPE",
       "fp8: round what the file has to F8_E4M3, with a scale\nfor each head, "
       "and send that (default: as in the file)"},
      {"layout", "LAYOUT",
       "order of dimensions, bshd or bhsd (default: the file's\nmetadata, else "
       "bshd)"},
      {"causal", "", "short for --mask=causal_bottom_right"},
      {"mask", "MASK",
       "none, causal_top_left or causal_bottom_right (default:\nthe file's "
       "metadata \"causal\", else none)"},
      {"window_left", "N", "keys left of the diagonal that stay visible"},
      {"window_right", "N", "keys right of the diagonal that stay visible"},
      {"scale", "X",
       "factor on the scores (default: the file's metadata,\nelse 1 / "
       "sqrt(head dimension))"},
      {"precision", "P", "of fp32 products: ieee (default) or tf32"},
      {"algorithm", "A",
       "streaming or three_step (default: the server chooses)"},
      {"lse", "", "also return the log-sum-exp, as tensor lse"},
      {"weights", "", "also return the attention weights, as tensor weights"},
  };
}

absl::StatusOr<AttendInput> ReadAttendInput(const Arguments& arguments) {
  AttendInput input;
  if (!arguments.Has("input")) {
    return InvalidUsage(absl::InvalidArgumentError("--input=FILE is missing"));
  }
  absl::Status status = ReadFlags(arguments, &input.request);
  if (!status.ok()) return InvalidUsage(status);
  const auto type = arguments.GetChoice("dtype", {"fp8"});
  if (!type.ok()) return InvalidUsage(type.status());
  const std::string path = arguments.GetString("input", "");
  auto file = SafetensorsFile::Open(path);
  if (!file.ok()) return file.status();
  input.file = *std::move(file);
  status = ReadMetadata(arguments, &input);
  if (status.ok()) status = ReadTensors(arguments, &input);
  if (!status.ok()) {
    return absl::Status(status.code(),
                        absl::StrCat(path, ": ", status.message()));
  }
  if (type->has_value()) RoundToFloat8(&input);
  return input;
}

std::string LayoutName(Layout layout) {
  return Layouts()[static_cast<size_t>(layout)];
}

SafetensorsType ToSafetensorsType(DataType data_type) {
  switch (data_type) {
    case DataType::kFloat16:
      return SafetensorsType::kF16;
    case DataType::kBFloat16:
      return SafetensorsType::kBF16;
    case DataType::kFloat8E4M3:
      return SafetensorsType::kF8E4M3;
    case DataType::kFloat32:
      break;
  }
  return SafetensorsType::kF32;
}

}  // namespace attention::cli
