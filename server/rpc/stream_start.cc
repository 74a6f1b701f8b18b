#include "server/rpc/stream_start.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/support/slice.h"
#include "server/rpc/checked_math.h"
#include "server/rpc/duration_proto.h"
#include "server/rpc/request_decoder.h"
#include "server/rpc/tensor_dims.h"

namespace attention {
namespace {

absl::Status CheckNoPayloads(const v1::ComputeAttentionRequest& request) {
  const std::pair<const char*, const std::string&> payloads[] = {
      {"query", request.query()},
      {"key", request.key()},
      {"value", request.value()}};
  for (const auto& [name, payload] : payloads) {
    if (!payload.empty()) {
      return InvalidField(
          absl::StrCat("start.request.", name, " (its size in bytes)"),
          "0, for chunks carry it", static_cast<int64_t>(payload.size()));
    }
  }
  const std::pair<const char*, bool> references[] = {
      {"query_reference", request.has_query_reference()},
      {"key_reference", request.has_key_reference()},
      {"value_reference", request.has_value_reference()},
      {"output_reference", request.has_output_reference()},
      {"log_sum_exp_reference", request.has_log_sum_exp_reference()},
      {"weights_reference", request.has_weights_reference()}};
  for (const auto& [name, is_set] : references) {
    if (is_set) {
      return InvalidField(absl::StrCat("start.request.", name),
                          "unset in a stream", "set");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<InputSizes> ReadSizes(const v1::StreamAttentionStart& start) {
  InputSizes sizes;
  const std::tuple<const char*, int64_t, size_t*> fields[] = {
      {"query_byte_size", start.query_byte_size(), &sizes.query},
      {"key_byte_size", start.key_byte_size(), &sizes.key},
      {"value_byte_size", start.value_byte_size(), &sizes.value}};
  for (const auto& [name, value, size] : fields) {
    if (value < 0) {
      return InvalidField(absl::StrCat("start.", name), "at least 0", value);
    }
    *size = static_cast<size_t>(value);
  }
  return sizes;
}

absl::Status CheckTotal(CheckedSize bytes, const RequestLimits& limits) {
  if (!bytes.Exceeds(limits.max_stream_bytes)) return absl::OkStatus();
  return TooLarge("the tensor bytes of a stream, in and out,",
                  absl::StrCat(limits.max_stream_bytes),
                  bytes.valid() ? absl::StrCat(bytes.value()) : "over 2^63");
}

void SetRanges(const ReceivedRanges& received,
               google::protobuf::RepeatedPtrField<v1::ByteRange>& ranges) {
  for (const auto& [begin, end] : received.ranges()) {
    v1::ByteRange& range = *ranges.Add();
    range.set_byte_offset(static_cast<int64_t>(begin));
    range.set_byte_size(static_cast<int64_t>(end - begin));
  }
}

}  // namespace

absl::StatusOr<DecodedStart> DecodeStart(const v1::StreamAttentionStart& start,
                                         const RequestLimits& limits,
                                         absl::Duration max_lease) {
  const v1::ComputeAttentionRequest& request = start.request();
  if (auto s = CheckNoPayloads(request); !s.ok()) return s;
  const absl::StatusOr<InputSizes> sizes = ReadSizes(start);
  if (!sizes.ok()) return sizes.status();
  const CheckedSize input = CheckedSize(start.query_byte_size()) +
                            start.key_byte_size() + start.value_byte_size();
  if (auto s = CheckTotal(input, limits); !s.ok()) return s;

  // The answer is no message, and has the stream's own bound.
  RequestLimits stream_limits = limits;
  stream_limits.max_message_bytes = limits.max_stream_bytes;
  absl::StatusOr<DecodedRequest> decoded =
      DecodeMetadata(request, *sizes, ResultTargets(), stream_limits);
  if (!decoded.ok()) return decoded.status();
  const auto result = static_cast<int64_t>(decoded->work->result_bytes());
  if (auto s = CheckTotal(input + result, limits); !s.ok()) return s;

  DecodedStart result_start = {*std::move(decoded), {}};
  result_start.upload.id = start.upload_id();
  result_start.upload.fingerprint = absl::HashOf(request.SerializeAsString());
  result_start.upload.sizes = *sizes;
  result_start.upload.lease = std::min(kDefaultUploadLease, max_lease);
  if (start.has_lease_duration()) {
    const auto lease =
        ReadDuration("start.lease_duration", start.lease_duration());
    if (!lease.ok()) return lease.status();
    result_start.upload.lease = *lease;
  }
  return result_start;
}

absl::StatusOr<InputTensor> InputOf(v1::Tensor tensor) {
  switch (tensor) {
    case v1::TENSOR_QUERY:
      return InputTensor::kQuery;
    case v1::TENSOR_KEY:
      return InputTensor::kKey;
    case v1::TENSOR_VALUE:
      return InputTensor::kValue;
    default:
      return InvalidField("tensor", "query, key or value (1, 2 or 3)", tensor);
  }
}

grpc::ByteBuffer EncodeUploadState(const Upload& upload, absl::Duration lease) {
  v1::StreamAttentionResponse message;
  v1::UploadState& state = *message.mutable_upload_state();
  const Upload::State received = upload.state();
  SetRanges(received[0], *state.mutable_query_ranges());
  SetRanges(received[1], *state.mutable_key_ranges());
  SetRanges(received[2], *state.mutable_value_ranges());
  if (lease > absl::ZeroDuration()) {
    *state.mutable_lease_duration() = ToProto(lease);
  }
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace attention
