#include "server/rpc/session_proto.h"

#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "google/protobuf/timestamp.pb.h"
#include "server/rpc/config_fields.h"
#include "server/rpc/duration_proto.h"
#include "server/rpc/tensor_dims.h"

namespace attention {
namespace {

using Configuration = v1::SessionConfiguration;

absl::Status ReadHeads(const Configuration& from, HeadConfig& heads) {
  constexpr int32_t kMaxHeads = 1 << 16;
  const std::tuple<const char*, int32_t, int32_t, int32_t*> numbers[] = {
      {"query_head_count", from.query_head_count(), kMaxHeads,
       &heads.query_head_count},
      {"kv_head_count", from.kv_head_count(), kMaxHeads, &heads.kv_head_count},
      {"head_dim_qk", from.head_dim_qk(), kMaxHeadDim, &heads.head_dim_qk},
      {"head_dim_v", from.head_dim_v(), kMaxHeadDim, &heads.head_dim_v}};
  for (const auto& [name, value, max, to] : numbers) {
    const std::string field = absl::StrCat("configuration.", name);
    const std::string bound = absl::StrCat("in [1, ", max, "]");
    if (value < 1) return InvalidField(field, bound, value);
    if (value > max) return Unsupported(field, bound, value);
    *to = value;
  }
  if (heads.query_head_count % heads.kv_head_count != 0) {
    return InvalidField(
        "configuration.query_head_count",
        absl::StrCat("a multiple of kv_head_count, which is ",
                     heads.kv_head_count),
        heads.query_head_count);
  }
  return absl::OkStatus();
}

absl::Status ReadWindow(const Configuration& from, SessionConfig& config) {
  if (from.has_window_left()) {
    if (from.window_left() < 0) {
      return InvalidField("configuration.window_left", "at least 0",
                          from.window_left());
    }
    if (config.paged.heads.mask == MaskKind::kCausalTopLeft) {
      return InvalidField("configuration.window_left",
                          "unset with MASK_TYPE_CAUSAL_TOP_LEFT",
                          from.window_left());
    }
    config.window_left = from.window_left();
  }
  if (from.sink_token_count() < 0) {
    return InvalidField("configuration.sink_token_count", "at least 0",
                        from.sink_token_count());
  }
  if (from.sink_token_count() > 0 && !from.has_window_left()) {
    return InvalidField("configuration.sink_token_count", "0 without window_left",
                        from.sink_token_count());
  }
  config.sink_tokens = from.sink_token_count();
  return absl::OkStatus();
}

absl::Status ReadScales(const char* name,
                        const google::protobuf::RepeatedField<float>& given,
                        const PagedConfig& paged, std::vector<float>& scales) {
  const std::string field = absl::StrCat("configuration.", name);
  if (paged.kv_data_type == KvDataType::kSame) {
    return CheckNoScales(field, given, "KEY_VALUE_DATA_TYPE_FLOAT8_E4M3");
  }
  const int32_t heads = paged.heads.kv_head_count;
  absl::Status status = CheckScales(field, given, "kv_head_count", heads);
  if (!status.ok()) return status;
  scales.assign(given.begin(), given.end());
  scales.resize(heads, 1.0f);
  return absl::OkStatus();
}

// Queries and what is appended are not in 8 bits, however they are stored.
absl::Status ReadSessionDataType(v1::DataType data_type, HeadConfig& heads) {
  if (data_type > v1::DATA_TYPE_BFLOAT16) {
    return Unsupported("configuration.data_type",
                       "in [1, 3] (configuration.key_value_data_type stores "
                       "keys and values in 8 bits)",
                       data_type);
  }
  return ReadDataType(data_type, heads);
}

absl::Status ReadKvDataType(v1::KeyValueDataType type, PagedConfig& paged) {
  switch (type) {
    case v1::KEY_VALUE_DATA_TYPE_UNSPECIFIED:
    case v1::KEY_VALUE_DATA_TYPE_SAME:
      paged.kv_data_type = KvDataType::kSame;
      return absl::OkStatus();
    case v1::KEY_VALUE_DATA_TYPE_FLOAT8_E4M3:
      paged.kv_data_type = KvDataType::kFloat8E4M3;
      return absl::OkStatus();
    default:
      return Unsupported("configuration.key_value_data_type", "in [0, 2]", type);
  }
}

absl::Status ReadSplitPolicy(v1::SplitPolicy policy, SplitPolicy otherwise,
                             PagedConfig& paged) {
  switch (policy) {
    case v1::SPLIT_POLICY_UNSPECIFIED:
      paged.split_policy = otherwise;
      return absl::OkStatus();
    case v1::SPLIT_POLICY_FIXED:
      paged.split_policy = SplitPolicy::kFixed;
      return absl::OkStatus();
    case v1::SPLIT_POLICY_BALANCED:
      paged.split_policy = SplitPolicy::kBalanced;
      return absl::OkStatus();
    default:
      return Unsupported("configuration.split_policy", "in [0, 2]", policy);
  }
}

v1::MaskType ToProto(MaskKind mask) {
  switch (mask) {
    case MaskKind::kNone: return v1::MASK_TYPE_NONE;
    case MaskKind::kCausalTopLeft: return v1::MASK_TYPE_CAUSAL_TOP_LEFT;
    default: return v1::MASK_TYPE_CAUSAL_BOTTOM_RIGHT;
  }
}

google::protobuf::Timestamp ToProto(absl::Time time) {
  google::protobuf::Timestamp proto;
  const int64_t seconds = absl::ToUnixSeconds(time);
  proto.set_seconds(seconds);
  proto.set_nanos(static_cast<int32_t>(
      absl::ToInt64Nanoseconds(time - absl::FromUnixSeconds(seconds))));
  return proto;
}

void SetConfiguration(const SessionConfig& config, Configuration& to) {
  const HeadConfig& heads = config.paged.heads;
  to.set_data_type(ProtoDataType(heads.data_type));
  to.set_query_head_count(heads.query_head_count);
  to.set_kv_head_count(heads.kv_head_count);
  to.set_head_dim_qk(heads.head_dim_qk);
  to.set_head_dim_v(heads.head_dim_v);
  to.set_layer_count(config.layer_count);
  to.set_mask_type(ToProto(heads.mask));
  if (config.window_left != kUnlimitedWindow) {
    to.set_window_left(config.window_left);
    to.set_sink_token_count(config.sink_tokens);
  }
  to.set_precision(heads.precision == Precision::kTf32 ? v1::PRECISION_TF32
                                                       : v1::PRECISION_IEEE);
  to.set_key_value_data_type(config.paged.kv_data_type == KvDataType::kSame
                                 ? v1::KEY_VALUE_DATA_TYPE_SAME
                                 : v1::KEY_VALUE_DATA_TYPE_FLOAT8_E4M3);
  to.mutable_key_scales()->Add(config.key_scales.begin(),
                               config.key_scales.end());
  to.mutable_value_scales()->Add(config.value_scales.begin(),
                                 config.value_scales.end());
  to.set_split_policy(ToProto(config.paged.split_policy));
}

}  // namespace

v1::SplitPolicy ToProto(SplitPolicy policy) {
  return policy == SplitPolicy::kBalanced ? v1::SPLIT_POLICY_BALANCED
                                          : v1::SPLIT_POLICY_FIXED;
}

absl::StatusOr<SessionConfig> ReadSessionConfig(
    const v1::SessionConfiguration& configuration,
    const SessionDefaults& defaults) {
  SessionConfig config;
  HeadConfig& heads = config.paged.heads;
  config.paged.page_tokens = defaults.page_tokens;
  config.layer_count = configuration.layer_count();
  const v1::MaskType mask =
      configuration.mask_type() == v1::MASK_TYPE_UNSPECIFIED
          ? v1::MASK_TYPE_CAUSAL_BOTTOM_RIGHT
          : configuration.mask_type();
  if (auto s = ReadSessionDataType(configuration.data_type(), heads); !s.ok()) {
    return s;
  }
  if (auto s = ReadMaskType(mask, heads); !s.ok()) return s;
  if (auto s = ReadPrecision(configuration.precision(), heads); !s.ok()) return s;
  if (auto s = ReadHeads(configuration, heads); !s.ok()) return s;
  if (auto s = ReadWindow(configuration, config); !s.ok()) return s;
  if (auto s = ReadKvDataType(configuration.key_value_data_type(), config.paged);
      !s.ok()) {
    return s;
  }
  if (auto s = ReadSplitPolicy(configuration.split_policy(),
                               defaults.split_policy, config.paged);
      !s.ok()) {
    return s;
  }
  if (auto s = ReadScales("key_scales", configuration.key_scales(),
                          config.paged, config.key_scales);
      !s.ok()) {
    return s;
  }
  if (auto s = ReadScales("value_scales", configuration.value_scales(),
                          config.paged, config.value_scales);
      !s.ok()) {
    return s;
  }
  return config;
}

void SetSession(const SessionInfo& info, const std::string& device_name,
                v1::Session& session) {
  session.set_name(info.name);
  SetConfiguration(info.config, *session.mutable_configuration());
  session.set_reserved_token_count(info.reserved_tokens);
  *session.mutable_ttl() = ToProto(info.ttl);
  *session.mutable_create_time() = ToProto(info.create_time);
  *session.mutable_expire_time() = ToProto(info.expire_time);
  session.set_resident_bytes(info.resident_bytes);
  session.set_shared_bytes(info.shared_bytes);
  session.set_device_name(device_name);
  session.set_is_lost(info.is_lost);
}

void SetFullSession(const SessionInfo& info, const std::string& device_name,
                    v1::Session& session) {
  SetSession(info, device_name, session);
  session.mutable_layer_token_counts()->Add(info.layer_lengths.begin(),
                                            info.layer_lengths.end());
}

}  // namespace attention
