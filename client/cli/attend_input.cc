#include "client/cli/attend_input.h"

#include <cmath>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"

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

// The tensor of the flag's name; without the flag that of the short or, if
// there is none, of the long name.
absl::StatusOr<SafetensorsTensor> FindTensor(const Arguments& arguments,
                                             const SafetensorsFile& file,
                                             absl::string_view long_name,
                                             absl::string_view short_name) {
  if (!arguments.Has(long_name) && file.tensor(long_name).ok() &&
      !file.tensor(short_name).ok()) {
    return file.tensor(long_name);
  }
  const std::string name = arguments.GetString(long_name, short_name);
  auto tensor = file.tensor(name);
  if (!tensor.ok()) {
    return absl::NotFoundError(absl::StrCat(tensor.status().message(),
                                            "; name it with --", long_name));
  }
  return tensor;
}

absl::Status ReadTensors(const Arguments& arguments, AttendInput* input) {
  const struct {
    const char* long_name;
    const char* short_name;
    TensorView* view;
  } kTensors[] = {{"query", "q", &input->request.query},
                  {"key", "k", &input->request.key},
                  {"value", "v", &input->request.value}};
  std::optional<SafetensorsType> first_type;
  for (const auto& entry : kTensors) {
    const auto tensor =
        FindTensor(arguments, *input->file, entry.long_name, entry.short_name);
    if (!tensor.ok()) return tensor.status();
    const auto data_type = FromSafetensorsType(tensor->type);
    if (!data_type.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the ", entry.long_name, " is of type ",
                       ToString(tensor->type), "; must be F32, F16 or BF16"));
    }
    if (tensor->type != first_type.value_or(tensor->type)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "query, key and value must be of one type; the query is ",
          ToString(*first_type), ", the ", entry.long_name, " ",
          ToString(tensor->type)));
    }
    first_type = tensor->type;
    if (tensor->shape.size() != 4) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the ", entry.long_name, " must have 4 dimensions (",
          LayoutName(input->request.layout), "); got ", tensor->shape.size()));
    }
    input->request.data_type = *data_type;
    *entry.view = {
        tensor->bytes.data(), tensor->bytes.size(), tensor->shape, {}};
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<FlagSpec> AttendInputFlags() {
  return {
      {"input", "FILE",
       "safetensors file with query, key and value (required)"},
      {"query", "NAME", "tensor with the queries (default q, else query)"},
      {"key", "NAME", "tensor with the keys (default k, else key)"},
      {"value", "NAME", "tensor with the values (default v, else value)"},
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
    case DataType::kFloat32:
      break;
  }
  return SafetensorsType::kF32;
}

}  // namespace attention::cli
