#include "server/rpc/region_references.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "server/engine/error_reason.h"
#include "server/rpc/config_fields.h"
#include "server/rpc/region_calls.h"
#include "server/rpc/tensor_dims.h"

namespace attention {
namespace {

// The same error with the field in front of its message.
absl::Status AtField(absl::string_view field, const absl::Status& status) {
  const absl::Status named(status.code(),
                           absl::StrCat(field, ": ", status.message()));
  const std::string_view reason = ReasonOf(status);
  return reason.empty() ? named : WithReason(named, reason);
}

// Bytes of an element of query, key and value, and of output and weights; 1 if
// the type is not known, which is another's to refuse.
struct ElementSizes {
  uintptr_t input = 1;
  uintptr_t result = 1;
};

ElementSizes SizesOf(v1::DataType type) {
  HeadConfig config;
  if (!ReadDataType(type, config).ok()) return {};
  return {.input = static_cast<uintptr_t>(ElementBytes(config.data_type)),
          .result = static_cast<uintptr_t>(
              ElementBytes(OutputType(config.data_type)))};
}

// Where a tensor is said to lie.
struct Reference {
  absl::string_view field;
  const v1::RegionReference& place;
  uintptr_t element_bytes;
  bool is_result;
};

class Resolver {
 public:
  Resolver(RegionRegistry& registry, const std::string& owner)
      : registry_(registry), owner_(owner) {}

  absl::Status Resolve(const Reference& reference,
                       std::shared_ptr<const RegionRange>& range) {
    auto region = registry_.Use(owner_, reference.place.region_name());
    if (!region.ok()) return AtField(reference.field, region.status());
    auto made =
        RegionRange::Make(*std::move(region), reference.place.byte_offset(),
                          reference.place.byte_size());
    if (!made.ok()) return AtField(reference.field, made.status());
    range = *std::move(made);
    return range->direct_memory().is_on_device()
               ? AddOnDevice(reference, *range)
               : absl::OkStatus();
  }

  int required_device() const { return required_device_; }

 private:
  struct OnDevice {
    std::string field;
    bool is_result;
    uintptr_t begin;
    uintptr_t end;
  };

  absl::Status AddOnDevice(const Reference& reference,
                           const RegionRange& range) {
    const DirectMemory memory = range.direct_memory();
    const auto begin = reinterpret_cast<uintptr_t>(memory.address);
    if (begin % reference.element_bytes != 0) {
      return InvalidField(
          absl::StrCat(reference.field, ".byte_offset"),
          absl::StrCat("such that the address is a multiple of ",
                       reference.element_bytes, ", the size of an element"),
          reference.place.byte_offset());
    }
    if (required_device_ != kAnyDevice && required_device_ != memory.device) {
      return InvalidField(
          reference.field,
          absl::StrCat("in the memory of cuda:", required_device_,
                       ", which has other tensors of the request"),
          absl::StrCat("cuda:", memory.device));
    }
    required_device_ = memory.device;
    OnDevice added = {std::string(reference.field), reference.is_result, begin,
                      begin + range.size_bytes()};
    for (const OnDevice& other : on_device_) {
      if ((added.is_result || other.is_result) && added.begin < other.end &&
          other.begin < added.end) {
        return InvalidField(
            reference.field,
            absl::StrCat("apart from ", other.field, " in a GPU's memory"),
            "an overlap");
      }
    }
    on_device_.push_back(std::move(added));
    return absl::OkStatus();
  }

  RegionRegistry& registry_;
  const std::string& owner_;
  int required_device_ = kAnyDevice;
  absl::InlinedVector<OnDevice, 6> on_device_;
};

struct Input {
  absl::string_view name;
  bool is_set;
  const v1::RegionReference& reference;
  uintptr_t element_bytes;
  Payload& payload;
};

struct Target {
  absl::string_view name;
  bool is_set;
  const v1::RegionReference& reference;
  uintptr_t element_bytes;
  bool asked_for;
  std::shared_ptr<const RegionRange>& range;
};

absl::Status ResolveInput(const Input& input, Resolver& resolver) {
  if (!input.is_set) return absl::OkStatus();
  const size_t inline_bytes = input.payload.size_bytes();
  const std::string field = absl::StrCat(input.name, "_reference");
  if (inline_bytes > 0) {
    return InvalidField(absl::StrCat(input.name, " (its size in bytes)"),
                        absl::StrCat("0 with ", field),
                        static_cast<int64_t>(inline_bytes));
  }
  std::shared_ptr<const RegionRange> range;
  absl::Status status = resolver.Resolve(
      {field, input.reference, input.element_bytes, /*is_result=*/false},
      range);
  input.payload.source = std::move(range);
  return status;
}

absl::Status ResolveTarget(const Target& target, Resolver& resolver) {
  if (!target.is_set) return absl::OkStatus();
  const std::string field = absl::StrCat(target.name, "_reference");
  if (!target.asked_for) {
    return InvalidField(
        field, absl::StrCat("unset without return_", target.name), "set");
  }
  return resolver.Resolve(
      {field, target.reference, target.element_bytes, /*is_result=*/true},
      target.range);
}

}  // namespace

absl::Status ResolveReferences(RegionRegistry* registry,
                               ScannedRequest& request) {
  const v1::ComputeAttentionRequest& meta = *request.metadata;
  const auto [element, result_element] = SizesOf(meta.data_type());
  const Input inputs[] = {{"query", meta.has_query_reference(),
                           meta.query_reference(), element, request.query},
                          {"key", meta.has_key_reference(),
                           meta.key_reference(), element, request.key},
                          {"value", meta.has_value_reference(),
                           meta.value_reference(), element, request.value}};
  const Target targets[] = {
      {"output", meta.has_output_reference(), meta.output_reference(),
       result_element, true, request.targets.output},
      {"log_sum_exp", meta.has_log_sum_exp_reference(),
       meta.log_sum_exp_reference(), sizeof(float), meta.return_log_sum_exp(),
       request.targets.log_sum_exp},
      {"weights", meta.has_weights_reference(), meta.weights_reference(),
       result_element, meta.return_weights(), request.targets.weights}};
  bool any = false;
  for (const Input& input : inputs) any |= input.is_set;
  for (const Target& target : targets) any |= target.is_set;
  if (!any) return absl::OkStatus();
  if (registry == nullptr) return RegionsAreOff();

  Resolver resolver(*registry, meta.region_owner_token());
  for (const Input& input : inputs) {
    if (absl::Status s = ResolveInput(input, resolver); !s.ok()) return s;
  }
  for (const Target& target : targets) {
    if (absl::Status s = ResolveTarget(target, resolver); !s.ok()) return s;
  }
  request.required_device = resolver.required_device();
  return absl::OkStatus();
}

size_t ReferencedBytes(const ScannedRequest& request) {
  size_t bytes = 0;
  for (const Payload* payload :
       {&request.query, &request.key, &request.value}) {
    if (payload->source != nullptr) bytes += payload->size_bytes();
  }
  return bytes;
}

}  // namespace attention
