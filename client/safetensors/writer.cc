#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/output_file/output_file.h"
#include "client/safetensors/safetensors.h"
#include "client/safetensors/types.h"
#include "nlohmann/json.hpp"

namespace attention {
namespace {

constexpr size_t kAlignment = 64;

using NamedTensor = std::map<std::string, SafetensorsTensor>::const_pointer;

absl::Status CheckTensor(const std::string& name,
                         const SafetensorsTensor& tensor) {
  if (name == kMetadataKey) {
    return absl::InvalidArgumentError("a tensor cannot be named __metadata__");
  }
  const auto bytes = TensorBytes(tensor.type, tensor.shape);
  if (!bytes.has_value() ||
      static_cast<uint64_t>(*bytes) != tensor.bytes.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor ", name, ": ", tensor.bytes.size(),
        " bytes disagree with its shape and type ", ToString(tensor.type)));
  }
  return absl::OkStatus();
}

// Header length, header and padding.
std::string FormatHeader(const std::vector<NamedTensor>& tensors,
                         const SafetensorsMetadata& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[kMetadataKey] = metadata;
  uint64_t offset = 0;
  for (const NamedTensor tensor : tensors) {
    const uint64_t end = offset + tensor->second.bytes.size();
    header[tensor->first] = {
        {"dtype", std::string(ToString(tensor->second.type))},
        {"shape", tensor->second.shape},
        {"data_offsets", {offset, end}}};
    offset = end;
  }
  const std::string text = header.dump();
  const size_t total =
      (8 + text.size() + kAlignment - 1) / kAlignment * kAlignment;
  std::string result;
  result.reserve(total);
  for (int i = 0; i < 8; ++i) {
    result.push_back(static_cast<char>(
        (static_cast<uint64_t>(total - 8) >> (8 * i)) & 0xff));
  }
  result += text;
  result.resize(total, ' ');
  return result;
}

}  // namespace

absl::Status WriteSafetensors(
    const std::string& path,
    const std::map<std::string, SafetensorsTensor>& tensors,
    const SafetensorsMetadata& metadata) {
  std::vector<NamedTensor> order;
  for (const auto& entry : tensors) {
    if (absl::Status status = CheckTensor(entry.first, entry.second);
        !status.ok()) {
      return status;
    }
    order.push_back(&entry);
  }
  std::stable_sort(
      order.begin(), order.end(), [](NamedTensor a, NamedTensor b) {
        return ElementBytes(a->second.type) > ElementBytes(b->second.type);
      });
  std::string header;
  try {
    header = FormatHeader(order, metadata);
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a name or a metadata entry is not UTF-8: ", error.what()));
  }

  std::vector<absl::string_view> parts = {header};
  for (const NamedTensor tensor : order) parts.push_back(tensor->second.bytes);
  return WriteOutputFile(path, parts);
}

}  // namespace attention
