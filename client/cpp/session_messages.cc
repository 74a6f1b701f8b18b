#include "client/cpp/session_messages.h"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/cpp/messages.h"
#include "client/cpp/request_serializer.h"
#include "google/protobuf/any.pb.h"
#include "google/rpc/status.pb.h"

namespace attention {
namespace {

// A count that is out of its range leaves no bytes, or too many: the server, or
// SerializeWithPayloads, then says what is wrong.
size_t BytesOf(int64_t token_count, size_t token_bytes) {
  if (token_count <= 0) return 0;
  size_t bytes = 0;
  return __builtin_mul_overflow(static_cast<size_t>(token_count), token_bytes,
                                &bytes)
             ? std::numeric_limits<size_t>::max()
             : bytes;
}

template <typename Request>
absl::StatusOr<grpc::ByteBuffer> SerializeTokens(const std::string& session,
                                                 const SessionOptions& options,
                                                 const LayerTokens& tokens,
                                                 int64_t position,
                                                 RequestMemory& memory) {
  Request request;
  request.set_session(session);
  request.set_layer(tokens.layer);
  request.set_token_count(tokens.token_count);
  request.set_expected_position(position);
  const TokenBytes bytes(options);
  return SerializeWithPayloads(
      request,
      {{Request::kKeyFieldNumber, "key", tokens.key,
        BytesOf(tokens.token_count, bytes.key)},
       {Request::kValueFieldNumber, "value", tokens.value,
        BytesOf(tokens.token_count, bytes.value)}},
      memory);
}

template <typename Request>
absl::StatusOr<grpc::ByteBuffer> SerializeSteps(
    Request proto, const DecodeRequest& request,
    absl::Span<const int64_t> positions, RequestMemory& memory) {
  for (size_t i = 0; i < request.items.size(); ++i) {
    const DecodeItem& item = request.items[i];
    if (item.session == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("items[", i, "] must have a session"));
    }
    v1::DecodeItem& added = *proto.add_items();
    added.set_session(item.session->name());
    added.set_layer(item.layer);
    added.set_token_count(item.token_count);
    added.set_expected_position(positions[i]);
  }
  if (request.items.empty()) {
    return absl::InvalidArgumentError("a request must have at least one item");
  }
  if (request.scale.has_value()) proto.set_scale(*request.scale);
  proto.set_return_log_sum_exp(request.return_log_sum_exp);
  proto.set_priority(request.priority);
  const TokenBytes bytes(request.items[0].session->options());
  const int64_t token_count = TokenCountOf(request);
  return SerializeWithPayloads(
      proto,
      {{Request::kQueryFieldNumber, "query", request.query,
        BytesOf(token_count, bytes.query)},
       {Request::kKeyFieldNumber, "key", request.key,
        BytesOf(token_count, bytes.key)},
       {Request::kValueFieldNumber, "value", request.value,
        BytesOf(token_count, bytes.value)}},
      memory);
}

absl::Status CheckSize(absl::string_view name, const std::string& payload,
                       size_t expected) {
  if (payload.size() == expected) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("the server's answer does not fit the request: ", name,
                   " has ", payload.size(), " bytes instead of ", expected));
}

template <typename Detail>
void AddDetail(const Detail& detail, absl::Status& status) {
  google::protobuf::Any any;
  any.PackFrom(detail);
  status.SetPayload(any.type_url(), absl::Cord(any.value()));
}

}  // namespace

TokenBytes::TokenBytes(const SessionOptions& options) {
  const auto element_bytes =
      static_cast<size_t>(ElementBytes(options.data_type));
  const auto query_heads = static_cast<size_t>(options.query_head_count);
  const auto kv_heads = static_cast<size_t>(options.kv_head_count);
  query =
      query_heads * static_cast<size_t>(options.head_dim_qk) * element_bytes;
  key = kv_heads * static_cast<size_t>(options.head_dim_qk) * element_bytes;
  value = kv_heads * static_cast<size_t>(options.head_dim_v) * element_bytes;
  output =
      query_heads * static_cast<size_t>(options.head_dim_v) * element_bytes;
  log_sum_exp = query_heads * sizeof(float);
}

int64_t SaturatedSum(int64_t a, int64_t b) {
  int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum)
             ? std::numeric_limits<int64_t>::max()
             : sum;
}

int64_t TokenCountOf(const DecodeRequest& request) {
  int64_t count = 0;
  for (const DecodeItem& item : request.items) {
    count = SaturatedSum(count, item.token_count);
  }
  return count;
}

v1::SessionConfiguration ToProto(const SessionOptions& options) {
  v1::SessionConfiguration proto;
  proto.set_data_type(ToProto(options.data_type));
  proto.set_query_head_count(options.query_head_count);
  proto.set_kv_head_count(options.kv_head_count);
  proto.set_head_dim_qk(options.head_dim_qk);
  proto.set_head_dim_v(options.head_dim_v);
  proto.set_layer_count(options.layer_count);
  proto.set_mask_type(ToProto(options.mask));
  if (options.window_left.has_value()) {
    proto.set_window_left(*options.window_left);
  }
  proto.set_sink_token_count(options.sink_token_count);
  proto.set_precision(ToProto(options.precision));
  proto.set_key_value_data_type(options.kv_data_type == KvDataType::kFloat8E4M3
                                    ? v1::KEY_VALUE_DATA_TYPE_FLOAT8_E4M3
                                    : v1::KEY_VALUE_DATA_TYPE_SAME);
  proto.mutable_key_scales()->Assign(options.key_scales.begin(),
                                     options.key_scales.end());
  proto.mutable_value_scales()->Assign(options.value_scales.begin(),
                                       options.value_scales.end());
  if (options.split_policy.has_value()) {
    proto.set_split_policy(*options.split_policy == SplitPolicy::kBalanced
                               ? v1::SPLIT_POLICY_BALANCED
                               : v1::SPLIT_POLICY_FIXED);
  }
  return proto;
}

absl::StatusOr<SessionOptions> OptionsOf(const v1::Session& session) {
  const v1::SessionConfiguration& proto = session.configuration();
  const absl::StatusOr<DataType> data_type = FromProto(proto.data_type());
  if (!data_type.ok()) return data_type.status();
  if (std::min({proto.query_head_count(), proto.kv_head_count(),
                proto.head_dim_qk(), proto.head_dim_v(), proto.layer_count()}) <
      1) {
    return absl::InternalError(
        "the server's answer has a session without heads, elements or layers");
  }
  SessionOptions options;
  options.data_type = *data_type;
  options.query_head_count = proto.query_head_count();
  options.kv_head_count = proto.kv_head_count();
  options.head_dim_qk = proto.head_dim_qk();
  options.head_dim_v = proto.head_dim_v();
  options.layer_count = proto.layer_count();
  options.mask = proto.mask_type() == v1::MASK_TYPE_NONE ? MaskKind::kNone
                 : proto.mask_type() == v1::MASK_TYPE_CAUSAL_TOP_LEFT
                     ? MaskKind::kCausalTopLeft
                     : MaskKind::kCausalBottomRight;
  if (proto.has_window_left()) options.window_left = proto.window_left();
  options.sink_token_count = proto.sink_token_count();
  options.precision = proto.precision() == v1::PRECISION_TF32
                          ? Precision::kTf32
                          : Precision::kIeee;
  options.kv_data_type =
      proto.key_value_data_type() == v1::KEY_VALUE_DATA_TYPE_FLOAT8_E4M3
          ? KvDataType::kFloat8E4M3
          : KvDataType::kSame;
  options.key_scales.assign(proto.key_scales().begin(),
                            proto.key_scales().end());
  options.value_scales.assign(proto.value_scales().begin(),
                              proto.value_scales().end());
  if (proto.split_policy() != v1::SPLIT_POLICY_UNSPECIFIED) {
    options.split_policy = proto.split_policy() == v1::SPLIT_POLICY_BALANCED
                               ? SplitPolicy::kBalanced
                               : SplitPolicy::kFixed;
  }
  options.reserved_token_count = session.reserved_token_count();
  options.ttl = FromProto(session.ttl());
  return options;
}

absl::StatusOr<grpc::ByteBuffer> SerializeAppend(const std::string& session,
                                                 const SessionOptions& options,
                                                 const LayerTokens& tokens,
                                                 int64_t position,
                                                 RequestMemory& memory) {
  return SerializeTokens<v1::AppendKeysValuesRequest>(session, options, tokens,
                                                      position, memory);
}

absl::StatusOr<grpc::ByteBuffer> SerializeAppendChunk(
    const std::string& session, const SessionOptions& options,
    const LayerTokens& tokens, int64_t position, RequestMemory& memory) {
  return SerializeTokens<v1::StreamAppendKeysValuesRequest>(
      session, options, tokens, position, memory);
}

absl::StatusOr<grpc::ByteBuffer> SerializeAttend(const std::string& session,
                                                 const SessionOptions& options,
                                                 const LayerQueries& queries,
                                                 RequestMemory& memory) {
  v1::AttendSessionRequest request;
  request.set_session(session);
  request.set_layer(queries.layer);
  request.set_token_count(queries.token_count);
  if (queries.key_range.has_value()) {
    request.mutable_key_range()->set_begin(queries.key_range->begin);
    request.mutable_key_range()->set_end(queries.key_range->end);
  }
  if (queries.scale.has_value()) request.set_scale(*queries.scale);
  request.set_return_log_sum_exp(queries.return_log_sum_exp);
  request.set_priority(queries.priority);
  return SerializeWithPayloads(
      request,
      {{v1::AttendSessionRequest::kQueryFieldNumber, "query", queries.query,
        BytesOf(queries.token_count, TokenBytes(options).query)}},
      memory);
}

absl::StatusOr<grpc::ByteBuffer> SerializeDecode(
    const DecodeRequest& request, absl::Span<const int64_t> positions,
    RequestMemory& memory) {
  return SerializeSteps(v1::DecodeRequest(), request, positions, memory);
}

absl::StatusOr<grpc::ByteBuffer> SerializeStreamDecode(
    const DecodeRequest& request, absl::Span<const int64_t> positions,
    int64_t tag, RequestMemory& memory) {
  v1::StreamDecodeRequest proto;
  proto.set_tag(tag);
  return SerializeSteps(std::move(proto), request, positions, memory);
}

absl::StatusOr<AttentionResult> ResultOf(v1::AttendSessionResponse response,
                                         const SessionOptions& options,
                                         const LayerQueries& queries) {
  const TokenBytes bytes(options);
  absl::Status status = CheckSize("output", response.output(),
                                  BytesOf(queries.token_count, bytes.output));
  if (status.ok() && queries.return_log_sum_exp) {
    status = CheckSize("log_sum_exp", response.log_sum_exp(),
                       BytesOf(queries.token_count, bytes.log_sum_exp));
  }
  if (!status.ok()) return status;
  AttentionResult result;
  result.data_type = options.data_type;
  result.output_shape = {queries.token_count, options.query_head_count,
                         options.head_dim_v};
  result.output = std::move(*response.mutable_output());
  if (queries.return_log_sum_exp) {
    result.log_sum_exp_shape = {queries.token_count, options.query_head_count};
    result.log_sum_exp = std::move(*response.mutable_log_sum_exp());
  }
  result.timings = std::move(*response.mutable_timings());
  return result;
}

DecodeShape::DecodeShape(const DecodeRequest& request)
    : item_count(request.items.size()) {
  if (request.items.empty() || request.items[0].session == nullptr) return;
  const TokenBytes bytes(request.items[0].session->options());
  const int64_t token_count = TokenCountOf(request);
  output_bytes = BytesOf(token_count, bytes.output);
  log_sum_exp_bytes =
      request.return_log_sum_exp ? BytesOf(token_count, bytes.log_sum_exp) : 0;
}

template <typename Response>
absl::StatusOr<DecodeResult> ResultOf(Response response,
                                      const DecodeShape& shape) {
  DecodeResult result;
  result.statuses.resize(shape.item_count);
  for (const v1::ItemError& error : response.item_errors()) {
    if (error.item_index() < 0 ||
        static_cast<size_t>(error.item_index()) >= shape.item_count) {
      return absl::InternalError(
          absl::StrCat("the server's answer does not fit the request: it has "
                       "an error of item ",
                       error.item_index(), " of ", shape.item_count));
    }
    result.statuses[error.item_index()] = StatusOf(error.error());
  }
  if (std::any_of(result.statuses.begin(), result.statuses.end(),
                  [](const absl::Status& status) { return status.ok(); })) {
    absl::Status status =
        CheckSize("output", response.output(), shape.output_bytes);
    status.Update(CheckSize("log_sum_exp", response.log_sum_exp(),
                            shape.log_sum_exp_bytes));
    if (!status.ok()) return status;
  }
  result.output = std::move(*response.mutable_output());
  result.log_sum_exp = std::move(*response.mutable_log_sum_exp());
  result.timings = std::move(*response.mutable_timings());
  return result;
}

template absl::StatusOr<DecodeResult> ResultOf(v1::DecodeResponse,
                                               const DecodeShape&);
template absl::StatusOr<DecodeResult> ResultOf(v1::StreamDecodeResponse,
                                               const DecodeShape&);

absl::Status StatusOf(const v1::StepError& error) {
  absl::Status status(error.code() > 0 && error.code() <= 16
                          ? static_cast<absl::StatusCode>(error.code())
                          : absl::StatusCode::kUnknown,
                      error.message());
  google::rpc::ErrorInfo info;
  info.set_reason(error.reason());
  info.set_domain("attention.v1");
  *info.mutable_metadata() = error.metadata();
  AddDetail(info, status);
  if (error.has_retry_delay()) {
    google::rpc::RetryInfo retry;
    *retry.mutable_retry_delay() = error.retry_delay();
    AddDetail(retry, status);
  }
  return status;
}

}  // namespace attention
