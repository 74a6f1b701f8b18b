#include "server/rpc/request_decoder.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/engine/error_reason.h"
#include "server/rpc/config_fields.h"
#include "server/rpc/tensor_dims.h"

namespace attention {
namespace {

using Request = v1::ComputeAttentionRequest;

absl::Status ReadAlgorithm(const Request& request, HeadConfig& config) {
  switch (request.algorithm()) {
    case v1::ALGORITHM_UNSPECIFIED:
      config.algorithm = request.return_weights() ? Algorithm::kThreeStep
                                                  : Algorithm::kStreaming;
      break;
    case v1::ALGORITHM_STREAMING:
      config.algorithm = Algorithm::kStreaming;
      break;
    case v1::ALGORITHM_THREE_STEP:
      config.algorithm = Algorithm::kThreeStep;
      break;
    default: return Unsupported("algorithm", "in [0, 2]", request.algorithm());
  }
  if (request.return_weights() && config.algorithm != Algorithm::kThreeStep) {
    return Unsupported("algorithm",
                       "ALGORITHM_THREE_STEP (2) or unset with return_weights",
                       request.algorithm());
  }
  if (config.data_type == DataType::kFloat8E4M3 &&
      config.algorithm != Algorithm::kStreaming) {
    return request.return_weights()
               ? WithReason(
                     InvalidField("return_weights",
                                  "false with DATA_TYPE_FLOAT8_E4M3", "true"),
                     error_reason::kUnsupported)
               : Unsupported("algorithm",
                             "ALGORITHM_STREAMING (1) or unset with "
                             "DATA_TYPE_FLOAT8_E4M3",
                             request.algorithm());
  }
  return absl::OkStatus();
}

absl::Status ReadLayout(const Request& request, Problem& p) {
  switch (request.layout()) {
    case v1::LAYOUT_UNSPECIFIED: p.layout = v1::LAYOUT_BSHD; break;
    case v1::LAYOUT_BSHD:
    case v1::LAYOUT_BHSD:
    case v1::LAYOUT_THD: p.layout = request.layout(); break;
    default: return Unsupported("layout", "in [0, 3]", request.layout());
  }
  return absl::OkStatus();
}

absl::Status ReadOptions(const Request& request, Problem& p) {
  p.return_log_sum_exp = request.return_log_sum_exp();
  p.return_weights = request.return_weights();
  for (const absl::Status& status :
       {ReadDataType(request.data_type(), p.config),
        ReadMaskType(request.mask_type(), p.config),
        ReadPrecision(request.precision(), p.config),
        ReadAlgorithm(request, p.config), ReadLayout(request, p)}) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CheckSame(absl::string_view what, absl::string_view of,
                       int64_t value, absl::string_view as, int64_t other) {
  if (value == other) return absl::OkStatus();
  return InvalidField(
      absl::StrCat("the ", what, " of ", of, "_descriptor.shape"),
      absl::StrCat(as, "_descriptor's, which is ", other), value);
}

absl::Status CheckTokens(absl::string_view name, int64_t tokens) {
  if (tokens <= kMaxTokens) return absl::OkStatus();
  return Unsupported(
      absl::StrCat("the token count of ", name, "_descriptor.shape"),
      absl::StrCat("at most ", kMaxTokens), tokens);
}

absl::Status ReadTensors(const Request& meta, const InputSizes& sizes,
                         Problem& p) {
  const int64_t element_bytes = ElementBytes(p.config.data_type);
  struct Source {
    absl::string_view name;
    const v1::TensorDescriptor& descriptor;
    size_t payload_bytes;
    bool is_in_region;
    TensorDims& dims;
  };
  for (const Source& source :
       {Source{"query", meta.query_descriptor(), sizes.query,
               meta.has_query_reference(), p.query},
        Source{"key", meta.key_descriptor(), sizes.key,
               meta.has_key_reference(), p.key},
        Source{"value", meta.value_descriptor(), sizes.value,
               meta.has_value_reference(), p.value}}) {
    auto dims = ReadTensor(source.name, source.descriptor, p.layout,
                           element_bytes, source.payload_bytes,
                           source.is_in_region);
    if (!dims.ok()) return dims.status();
    source.dims = *dims;
  }
  for (const absl::Status& status :
       {CheckSame("batch size", "key", p.key.batch, "query", p.query.batch),
        CheckSame("batch size", "value", p.value.batch, "query", p.query.batch),
        CheckSame("token count", "value", p.value.tokens, "key", p.key.tokens),
        CheckSame("head count", "value", p.value.heads, "key", p.key.heads),
        CheckSame("head dimension", "key", p.key.dim, "query", p.query.dim),
        CheckTokens("query", p.query.tokens), CheckTokens("key", p.key.tokens)}) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status SetHeads(Problem& p) {
  const int64_t query_heads = p.query.heads;
  const int64_t kv_heads = p.key.heads;
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  if (query_heads > kMax || kv_heads > kMax) {
    return Unsupported("the head counts of query_descriptor and key_descriptor",
                       absl::StrCat("at most ", kMax),
                       std::max(query_heads, kv_heads));
  }
  if (kv_heads == 0 ? query_heads != 0 : query_heads % kv_heads != 0) {
    return InvalidField(
        "the head count of query_descriptor.shape",
        absl::StrCat("a multiple of key_descriptor's, which is ", kv_heads),
        query_heads);
  }
  p.config.head_dim_qk = static_cast<int32_t>(p.query.dim);
  p.config.head_dim_v = static_cast<int32_t>(p.value.dim);
  p.config.query_head_count = static_cast<int32_t>(query_heads);
  p.config.kv_head_count = static_cast<int32_t>(kv_heads);
  return absl::OkStatus();
}

absl::Status ReadHeadScales(const Request& request, Problem& p) {
  struct Field {
    absl::string_view name;
    const google::protobuf::RepeatedField<float>& given;
    absl::string_view count_name;
    int64_t heads;
    std::vector<float>& scales;
  };
  const Field fields[] = {{"query_scales", request.query_scales(),
                           "the head count of query_descriptor.shape",
                           p.query.heads, p.scales.query},
                          {"key_scales", request.key_scales(),
                           "the head count of key_descriptor.shape",
                           p.key.heads, p.scales.key},
                          {"value_scales", request.value_scales(),
                           "the head count of value_descriptor.shape",
                           p.value.heads, p.scales.value}};
  for (const Field& field : fields) {
    absl::Status status =
        p.config.data_type == DataType::kFloat8E4M3
            ? CheckScales(field.name, field.given, field.count_name,
                          field.heads)
            : CheckNoScales(field.name, field.given, "DATA_TYPE_FLOAT8_E4M3");
    if (!status.ok()) return status;
    field.scales.assign(field.given.begin(), field.given.end());
  }
  return absl::OkStatus();
}

// The lengths of one side: those given, or all as long as the shape says.
absl::Status ReadLengths(absl::string_view name,
                         const google::protobuf::RepeatedField<int64_t>& given,
                         const TensorDims& dims, bool ragged, int64_t batch,
                         Lengths& lengths) {
  if (given.empty() && !ragged) {
    lengths.assign(batch, dims.tokens);
    return absl::OkStatus();
  }
  const std::string field = absl::StrCat(name, "_lengths");
  if (given.size() != batch) {
    return InvalidField(absl::StrCat("the size of ", field),
                        absl::StrCat("the number of sequences, which is ", batch),
                        given.size());
  }
  int64_t sum = 0;  // at most kMaxRequestSequences * kMaxTokens
  for (int i = 0; i < given.size(); ++i) {
    if (given[i] < 0 || given[i] > dims.tokens) {
      return InvalidField(absl::StrCat(field, "[", i, "]"),
                          absl::StrCat("in [0, ", dims.tokens, "]"), given[i]);
    }
    sum += given[i];
  }
  if (ragged && sum != dims.tokens) {
    return InvalidField(absl::StrCat("the sum of ", field),
                        absl::StrCat(dims.tokens, ", the token count of ", name,
                                     "_descriptor.shape"),
                        sum);
  }
  lengths.assign(given.begin(), given.end());
  return absl::OkStatus();
}

absl::Status ReadAllLengths(const Request& request, Problem& p) {
  const int64_t batch =
      p.ragged() ? request.query_lengths_size() : p.query.batch;
  if (batch > kMaxRequestSequences) {
    return TooLarge("the number of sequences", absl::StrCat(kMaxRequestSequences),
                    absl::StrCat(batch));
  }
  if (auto s = ReadLengths("query", request.query_lengths(), p.query, p.ragged(),
                           batch, p.query_lengths);
      !s.ok()) {
    return s;
  }
  return ReadLengths("key", request.key_lengths(), p.key, p.ragged(), batch,
                     p.key_lengths);
}

absl::Status ReadScores(const Request& request, Problem& p) {
  std::optional<double> scale;
  if (request.has_scale()) scale = request.scale();
  if (auto s = ReadScale(scale, p.query.dim, p.scale); !s.ok()) return s;
  const v1::SlidingWindow& window = request.sliding_window();
  if (window.has_left() && window.left() < 0) {
    return InvalidField("sliding_window.left", "at least 0", window.left());
  }
  if (window.has_right() && window.right() < 0) {
    return InvalidField("sliding_window.right", "at least 0", window.right());
  }
  if (window.has_left()) p.window_left = window.left();
  if (window.has_right()) p.window_right = window.right();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DecodedRequest> DecodeMetadata(
    const v1::ComputeAttentionRequest& metadata, const InputSizes& sizes,
    ResultTargets targets, const RequestLimits& limits) {
  Problem problem;
  problem.targets = std::move(targets);
  if (auto s = ReadOptions(metadata, problem); !s.ok()) return s;
  if (auto s = ReadTensors(metadata, sizes, problem); !s.ok()) return s;
  if (auto s = SetHeads(problem); !s.ok()) return s;
  if (auto s = ReadHeadScales(metadata, problem); !s.ok()) return s;
  if (auto s = ReadAllLengths(metadata, problem); !s.ok()) return s;
  if (auto s = ReadScores(metadata, problem); !s.ok()) return s;

  if (auto s = CheckPriority(metadata.priority()); !s.ok()) return s;

  absl::StatusOr<DecodedRequest> decoded =
      BuildWork(std::move(problem), limits);
  if (!decoded.ok()) return decoded.status();
  decoded->work->priority = metadata.priority();
  return decoded;
}

absl::StatusOr<DecodedRequest> DecodeRequest(ScannedRequest request,
                                             const RequestLimits& limits) {
  const InputSizes sizes = {.query = request.query.size_bytes(),
                            .key = request.key.size_bytes(),
                            .value = request.value.size_bytes()};
  absl::StatusOr<DecodedRequest> decoded = DecodeMetadata(
      *request.metadata, sizes, std::move(request.targets), limits);
  if (!decoded.ok()) return decoded.status();
  decoded->work->required_device = request.required_device;
  decoded->work->query = std::move(request.query);
  decoded->work->key = std::move(request.key);
  decoded->work->value = std::move(request.value);
  return decoded;
}

}  // namespace attention
