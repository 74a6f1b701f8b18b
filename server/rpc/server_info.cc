#include "server/rpc/server_info.h"

#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/attention_params.h"
#include "server/rpc/config_fields.h"
#include "server/rpc/duration_proto.h"
#include "server/rpc/pipelined_stream.h"

namespace attention {
namespace {

void AddDevice(const Device& device, v1::GetServerInfoResponse& info) {
  const DeviceDescription& description = device.description();
  v1::DeviceInfo& target = *info.add_devices();
  target.set_name(description.name);
  target.set_model(description.model);
  target.set_memory_bytes(static_cast<int64_t>(description.memory_bytes));
  target.set_memory_budget_bytes(
      static_cast<int64_t>(description.memory_budget_bytes));
  target.set_compute_capability(description.compute_capability);
  target.set_processor_count(description.processor_count);
  target.set_concurrent_batch_count(device.slot_count());
  target.set_uuid(description.uuid);
}

v1::SupportedConfigurations SupportedConfigurations() {
  v1::SupportedConfigurations supported;
  for (auto type : {v1::DATA_TYPE_FLOAT32, v1::DATA_TYPE_FLOAT16,
                    v1::DATA_TYPE_BFLOAT16, v1::DATA_TYPE_FLOAT8_E4M3}) {
    supported.add_data_types(type);
  }
  for (auto layout : {v1::LAYOUT_BSHD, v1::LAYOUT_BHSD, v1::LAYOUT_THD}) {
    supported.add_layouts(layout);
  }
  for (auto mask : {v1::MASK_TYPE_NONE, v1::MASK_TYPE_CAUSAL_TOP_LEFT,
                    v1::MASK_TYPE_CAUSAL_BOTTOM_RIGHT}) {
    supported.add_mask_types(mask);
  }
  for (auto precision : {v1::PRECISION_IEEE, v1::PRECISION_TF32}) {
    supported.add_precisions(precision);
  }
  for (auto algorithm : {v1::ALGORITHM_STREAMING, v1::ALGORITHM_THREE_STEP}) {
    supported.add_algorithms(algorithm);
  }
  supported.set_min_head_dim(1);
  supported.set_max_head_dim(kMaxHeadDim);
  return supported;
}

// 0, as in the message, for what no number in it could bound.
int64_t OrUnlimited(size_t bytes) {
  return bytes > static_cast<size_t>(std::numeric_limits<int64_t>::max())
             ? 0
             : static_cast<int64_t>(bytes);
}

}  // namespace

v1::GetServerInfoResponse MakeServerInfo(const std::string& version,
                                         const std::vector<Device*>& devices,
                                         const RequestLimits& limits,
                                         const Scheduler::Options& scheduling,
                                         absl::Duration max_upload_lease,
                                         const RegionRegistry* regions) {
  v1::GetServerInfoResponse info;
  info.set_version(version);
  info.set_backend(devices.front()->description().backend);
  for (const Device* device : devices) AddDevice(*device, info);

  v1::ServerLimits& target = *info.mutable_limits();
  target.set_max_message_bytes(limits.max_message_bytes);
  target.set_max_head_dim(kMaxHeadDim);
  target.set_max_batch_requests(scheduling.max_batch_requests);
  target.set_max_batch_bytes(static_cast<int64_t>(scheduling.max_batch_bytes));
  target.set_max_batch_tokens(scheduling.max_batch_tokens);
  target.set_max_queued_requests(scheduling.max_queued_requests);
  target.set_max_queued_bytes(static_cast<int64_t>(scheduling.max_queued_bytes));
  *target.mutable_max_queue_delay() = ToProto(scheduling.max_queue_delay);
  target.set_max_request_flops(limits.max_request_flops);
  target.set_max_request_sequences(kMaxRequestSequences);
  target.set_max_request_bytes(OrUnlimited(scheduling.max_request_bytes));
  *target.mutable_max_batch_time() = ToProto(scheduling.max_batch_time);
  *target.mutable_max_queued_time() = ToProto(scheduling.max_queued_time);
  target.set_max_tenants(scheduling.max_tenants);
  target.set_max_priority(kMaxPriority);
  target.set_max_metadata_bytes(static_cast<int64_t>(kMaxMetadataBytes));
  target.set_max_stream_bytes(limits.max_stream_bytes);
  *target.mutable_max_upload_lease() = ToProto(max_upload_lease);

  *info.mutable_supported_configurations() = SupportedConfigurations();
  info.mutable_supported_configurations()->set_shared_memory(
      regions != nullptr && regions->takes_system_memory());
  info.mutable_supported_configurations()->set_cuda_memory(
      regions != nullptr && regions->takes_cuda_memory());
  info.set_log_sum_exp_convention(
      "natural logarithm of the sum of exp(scale * query . key) over visible "
      "keys, fp32; -infinity for a query without visible keys");
  return info;
}

void AddSessionInfo(const SessionRegistry::Options& options,
                    const SessionDefaults& defaults, size_t device_bytes,
                    v1::GetServerInfoResponse& info) {
  v1::ServerLimits& limits = *info.mutable_limits();
  limits.set_session_memory_bytes(static_cast<int64_t>(device_bytes));
  limits.set_session_page_tokens(defaults.page_tokens);
  limits.set_session_split_policy(ToProto(defaults.split_policy));
  limits.set_max_sessions(options.max_session_count);
  limits.set_max_sessions_per_owner(options.max_owner_session_count);
  limits.set_max_session_tokens_per_owner(options.max_owner_tokens);
  *limits.mutable_default_session_ttl() = ToProto(defaults.ttl);
  *limits.mutable_max_session_ttl() = ToProto(options.max_ttl);
  limits.set_max_pipelined_messages(kMaxPipelinedMessages);
  v1::SupportedConfigurations& supported =
      *info.mutable_supported_configurations();
  supported.set_sessions(true);
  supported.add_key_value_data_types(v1::KEY_VALUE_DATA_TYPE_SAME);
  supported.add_key_value_data_types(v1::KEY_VALUE_DATA_TYPE_FLOAT8_E4M3);
  supported.add_split_policies(v1::SPLIT_POLICY_FIXED);
  supported.add_split_policies(v1::SPLIT_POLICY_BALANCED);
}

}  // namespace attention
