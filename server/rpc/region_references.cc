#include "server/rpc/region_references.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/error_reason.h"
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

class Resolver {
 public:
  Resolver(RegionRegistry& registry, const std::string& owner)
      : registry_(registry), owner_(owner) {}

  absl::Status Resolve(absl::string_view field,
                       const v1::RegionReference& reference,
                       std::shared_ptr<const RegionRange>& range) {
    auto region = registry_.Use(owner_, reference.region_name());
    if (!region.ok()) return AtField(field, region.status());
    auto made = RegionRange::Make(*std::move(region), reference.byte_offset(),
                                  reference.byte_size());
    if (!made.ok()) return AtField(field, made.status());
    range = *std::move(made);
    return absl::OkStatus();
  }

 private:
  RegionRegistry& registry_;
  const std::string& owner_;
};

struct Input {
  absl::string_view name;
  bool is_set;
  const v1::RegionReference& reference;
  Payload& payload;
};

struct Target {
  absl::string_view name;
  bool is_set;
  const v1::RegionReference& reference;
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
  absl::Status status = resolver.Resolve(field, input.reference, range);
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
  return resolver.Resolve(field, target.reference, target.range);
}

}  // namespace

absl::Status ResolveReferences(RegionRegistry* registry,
                               ScannedRequest& request) {
  const v1::ComputeAttentionRequest& meta = *request.metadata;
  const Input inputs[] = {
      {"query", meta.has_query_reference(), meta.query_reference(),
       request.query},
      {"key", meta.has_key_reference(), meta.key_reference(), request.key},
      {"value", meta.has_value_reference(), meta.value_reference(),
       request.value}};
  const Target targets[] = {
      {"output", meta.has_output_reference(), meta.output_reference(), true,
       request.targets.output},
      {"log_sum_exp", meta.has_log_sum_exp_reference(),
       meta.log_sum_exp_reference(), meta.return_log_sum_exp(),
       request.targets.log_sum_exp},
      {"weights", meta.has_weights_reference(), meta.weights_reference(),
       meta.return_weights(), request.targets.weights}};
  bool any = false;
  for (const Input& input : inputs) any |= input.is_set;
  for (const Target& target : targets) any |= target.is_set;
  if (!any) return absl::OkStatus();
  if (registry == nullptr) return SharedMemoryIsOff();

  Resolver resolver(*registry, meta.region_owner_token());
  for (const Input& input : inputs) {
    if (absl::Status s = ResolveInput(input, resolver); !s.ok()) return s;
  }
  for (const Target& target : targets) {
    if (absl::Status s = ResolveTarget(target, resolver); !s.ok()) return s;
  }
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
