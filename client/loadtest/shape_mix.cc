#include "client/loadtest/shape_mix.h"

#include <cmath>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace attention::loadtest {
namespace {

using Json = nlohmann::json;

absl::Status WrongType(absl::string_view expected, const Json& value) {
  return absl::InvalidArgumentError(
      absl::StrCat("must be ", expected, "; got ", value.dump()));
}

absl::Status Assign(const Json& value, int64_t& field) {
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX)) {
    return WrongType("an integer", value);
  }
  field = value.get<int64_t>();
  return absl::OkStatus();
}

absl::Status Assign(const Json& value, bool& field) {
  if (!value.is_boolean()) return WrongType("true or false", value);
  field = value.get<bool>();
  return absl::OkStatus();
}

absl::Status Assign(const Json& value, std::string& field) {
  if (!value.is_string() || value.get_ref<const std::string&>().empty()) {
    return WrongType("a string that is not empty", value);
  }
  field = value.get<std::string>();
  return absl::OkStatus();
}

template <typename T>
absl::Status AssignName(const Json& value, T& field,
                        absl::StatusOr<T> (*parse)(absl::string_view)) {
  std::string text;
  if (absl::Status status = Assign(value, text); !status.ok()) return status;
  absl::StatusOr<T> parsed = parse(text);
  if (!parsed.ok()) return parsed.status();
  field = *parsed;
  return absl::OkStatus();
}

absl::Status AssignWeight(const Json& value, double& weight) {
  if (!value.is_number() || !(value.get<double>() > 0) ||
      !std::isfinite(value.get<double>())) {
    return WrongType("a number above 0", value);
  }
  weight = value.get<double>();
  return absl::OkStatus();
}

absl::Status AssignField(const std::string& key, const Json& value,
                         WeightedShape& entry) {
  RequestShape& s = entry.shape;
  if (key == "name") return Assign(value, s.name);
  if (key == "weight") return AssignWeight(value, entry.weight);
  if (key == "dtype") return AssignName(value, s.data_type, ParseDataType);
  if (key == "batch") return Assign(value, s.batch);
  if (key == "query_length") return Assign(value, s.query_length);
  if (key == "key_length") return Assign(value, s.key_length);
  if (key == "heads") return Assign(value, s.heads);
  if (key == "kv_heads") return Assign(value, s.kv_heads);
  if (key == "head_dim") return Assign(value, s.head_dim);
  if (key == "head_dim_v") return Assign(value, s.head_dim_v);
  if (key == "mask") return AssignName(value, s.mask, ParseMask);
  if (key == "window_left") return Assign(value, s.window_left);
  if (key == "window_right") return Assign(value, s.window_right);
  if (key == "layout") return AssignName(value, s.layout, ParseLayout);
  if (key == "precision") return AssignName(value, s.precision, ParsePrecision);
  if (key == "algorithm") return AssignName(value, s.algorithm, ParseAlgorithm);
  if (key == "lse") return Assign(value, s.log_sum_exp);
  return absl::InvalidArgumentError(
      "is no field of a shape; see client/loadtest/README.md for the list");
}

absl::StatusOr<WeightedShape> ParseEntry(const Json& json,
                                         const RequestShape& defaults,
                                         const std::string& place) {
  if (!json.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(place, " ", WrongType("an object", json).message()));
  }
  WeightedShape entry{.shape = defaults};
  entry.shape.name.clear();
  for (const auto& [key, value] : json.items()) {
    if (absl::Status status = AssignField(key, value, entry); !status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(place, ".", key, " ", status.message()));
    }
  }
  absl::StatusOr<RequestShape> resolved = entry.shape.Resolve();
  if (!resolved.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(place, ": ", resolved.status().message()));
  }
  entry.shape = *std::move(resolved);
  return entry;
}

}  // namespace

absl::StatusOr<ShapeMix> ParseShapeMix(absl::string_view text,
                                       const RequestShape& defaults) {
  Json json;
  try {
    json = Json::parse(text.begin(), text.end());
  } catch (const Json::parse_error& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("the mix is not valid JSON: ", error.what()));
  }
  if (!json.is_object() || json.size() != 1 || !json.contains("shapes") ||
      !json["shapes"].is_array() || json["shapes"].empty()) {
    return absl::InvalidArgumentError(
        "a mix must be an object with one field, \"shapes\", a list of at "
        "least one shape");
  }
  ShapeMix mix;
  std::set<std::string> names;
  for (const Json& item : json["shapes"]) {
    const std::string place = absl::StrCat("shapes[", mix.size(), "]");
    absl::StatusOr<WeightedShape> entry = ParseEntry(item, defaults, place);
    if (!entry.ok()) return entry.status();
    if (entry->shape.name.empty()) {
      entry->shape.name = absl::StrCat("shape", mix.size());
    }
    if (!names.insert(entry->shape.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(place, ".name must be unique; got \"", entry->shape.name,
                       "\" again"));
    }
    mix.push_back(*std::move(entry));
  }
  return mix;
}

absl::StatusOr<ShapeMix> ReadShapeMix(const std::string& path,
                                      const RequestShape& defaults) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) {
    return absl::NotFoundError(
        absl::StrCat("cannot read the mix file \"", path, "\""));
  }
  absl::StatusOr<ShapeMix> mix = ParseShapeMix(text.str(), defaults);
  if (!mix.ok()) {
    return absl::Status(mix.status().code(),
                        absl::StrCat(path, ": ", mix.status().message()));
  }
  return mix;
}

ShapePicker::ShapePicker(const ShapeMix& mix, uint64_t seed) : random_(seed) {
  std::vector<double> weights;
  for (const WeightedShape& entry : mix) weights.push_back(entry.weight);
  distribution_ =
      std::discrete_distribution<size_t>(weights.begin(), weights.end());
}

}  // namespace attention::loadtest
