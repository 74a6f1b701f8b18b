#include "tests/server/rpc/request_maker.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/float_convert.h"
#include "kernels/validation.h"
#include "tests/support/comparison.h"

namespace attention::test {
namespace {

using testing::AssertionFailure;
using testing::AssertionResult;
using testing::AssertionSuccess;

int64_t Sum(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

v1::DataType ToProto(DataType type) {
  switch (type) {
    case DataType::kFloat16: return v1::DATA_TYPE_FLOAT16;
    case DataType::kBFloat16: return v1::DATA_TYPE_BFLOAT16;
    case DataType::kFloat8E4M3:
      return v1::DATA_TYPE_FLOAT8_E4M3;
    default: return v1::DATA_TYPE_FLOAT32;
  }
}

void DrawScales(int64_t heads, std::mt19937_64& random,
                google::protobuf::RepeatedField<float>* scales) {
  std::uniform_real_distribution<float> scale(0.25f, 4.0f);
  for (int64_t h = 0; h < heads; ++h) scales->Add(scale(random));
}

const float* ScalesOf(const google::protobuf::RepeatedField<float>& scales) {
  return scales.empty() ? nullptr : scales.data();
}

void Describe(const std::vector<int64_t>& sizes,
              const std::vector<int64_t>* strides,
              v1::TensorDescriptor* descriptor) {
  descriptor->mutable_shape()->Add(sizes.begin(), sizes.end());
  if (strides != nullptr) {
    descriptor->mutable_strides()->Add(strides->begin(), strides->end());
  }
}

bool SameShape(const v1::TensorDescriptor& descriptor,
               const std::vector<int64_t>& shape) {
  return std::vector<int64_t>(descriptor.shape().begin(),
                              descriptor.shape().end()) == shape &&
         descriptor.strides_size() == 0;
}

int64_t Product(const std::vector<int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1},
                         std::multiplies<>());
}

}  // namespace

std::string ToString(const RequestSpec& s) {
  return absl::StrCat(
      ToString(s.data_type), " ", v1::Layout_Name(s.layout), " B", s.batch,
      " M", s.query_tokens, " N", s.key_tokens, " Hq", s.query_heads, " Hkv",
      s.kv_heads, " d", s.head_dim_qk, "/", s.head_dim_v, " m{",
      absl::StrJoin(s.query_lengths, ","), "} n{",
      absl::StrJoin(s.key_lengths, ","), "} placement ",
      static_cast<int>(s.placement), " ", v1::MaskType_Name(s.mask), " window ",
      s.window_left.value_or(-1), "/", s.window_right.value_or(-1), " ",
      v1::Algorithm_Name(s.algorithm), s.return_log_sum_exp ? " lse" : "",
      s.return_weights ? " weights" : "", s.has_scales ? " scales" : "");
}

void AskForEverything(RequestSpec& spec) {
  spec.return_log_sum_exp = true;
  spec.has_scales = spec.data_type == DataType::kFloat8E4M3;
  spec.return_weights = !spec.has_scales;
}

RequestSpec RandomSpec(std::mt19937_64& random) {
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  RequestSpec s;
  s.data_type = static_cast<DataType>(draw(0, 3));
  s.layout = static_cast<v1::Layout>(draw(0, 3));
  s.batch = draw(0, 10) == 0 ? 0 : draw(1, 4);
  s.query_tokens = draw(0, 10) == 0 ? 0 : draw(1, 20);
  s.key_tokens = draw(0, 10) == 0 ? 0 : draw(1, 20);
  s.kv_heads = draw(0, 20) == 0 ? 0 : draw(1, 3);
  s.query_heads = s.kv_heads * draw(1, 3);
  s.head_dim_qk = draw(1, 24);
  s.head_dim_v = draw(0, 1) ? s.head_dim_qk : draw(1, 24);
  const bool ragged = s.layout == v1::LAYOUT_THD;
  if (ragged || draw(0, 2) == 0) {
    for (int64_t b = 0; b < s.batch; ++b) {
      s.query_lengths.push_back(draw(0, ragged ? 20 : s.query_tokens));
    }
  }
  if (ragged || draw(0, 2) == 0) {
    for (int64_t b = 0; b < s.batch; ++b) {
      s.key_lengths.push_back(draw(0, ragged ? 20 : s.key_tokens));
    }
  }
  s.placement = static_cast<Placement>(draw(0, 3));
  s.mask = static_cast<v1::MaskType>(draw(0, 3));
  if (draw(0, 2) == 0) s.window_left = draw(0, 12);
  if (draw(0, 2) == 0) s.window_right = draw(0, 12);
  if (draw(0, 2) == 0) s.scale = static_cast<double>(draw(-10, 10)) / 8;
  s.return_log_sum_exp = draw(0, 1);
  s.return_weights = draw(0, 2) == 0;
  s.algorithm = s.return_weights ? (draw(0, 1) ? v1::ALGORITHM_THREE_STEP
                                               : v1::ALGORITHM_UNSPECIFIED)
                                 : static_cast<v1::Algorithm>(draw(0, 2));
  if (s.data_type == DataType::kFloat8E4M3) {
    s.has_scales = draw(0, 1);
    s.return_weights = false;
    s.algorithm = static_cast<v1::Algorithm>(draw(0, 1));
  }
  return s;
}

RequestMaker::RequestMaker(const RequestSpec& spec, std::mt19937_64& random)
    : spec_(spec) {
  const bool ragged = spec.layout == v1::LAYOUT_THD;
  query_tokens_ = ragged ? Sum(spec.query_lengths) : spec.query_tokens;
  key_tokens_ = ragged ? Sum(spec.key_lengths) : spec.key_tokens;
  query_ = Place(query_tokens_, spec.query_heads, spec.head_dim_qk);
  key_ = Place(key_tokens_, spec.kv_heads, spec.head_dim_qk);
  value_ = Place(key_tokens_, spec.kv_heads, spec.head_dim_v);

  request_.set_data_type(ToProto(spec.data_type));
  request_.set_layout(spec.layout);
  const bool strided = spec.placement != Placement::kContiguous;
  Describe(query_.sizes, strided ? &query_.strides : nullptr,
           request_.mutable_query_descriptor());
  Describe(key_.sizes, strided ? &key_.strides : nullptr,
           request_.mutable_key_descriptor());
  Describe(value_.sizes, strided ? &value_.strides : nullptr,
           request_.mutable_value_descriptor());
  request_.mutable_query_lengths()->Add(spec.query_lengths.begin(),
                                        spec.query_lengths.end());
  request_.mutable_key_lengths()->Add(spec.key_lengths.begin(),
                                      spec.key_lengths.end());
  if (spec.scale.has_value()) request_.set_scale(*spec.scale);
  request_.set_mask_type(spec.mask);
  if (spec.window_left.has_value()) {
    request_.mutable_sliding_window()->set_left(*spec.window_left);
  }
  if (spec.window_right.has_value()) {
    request_.mutable_sliding_window()->set_right(*spec.window_right);
  }
  request_.set_algorithm(spec.algorithm);
  request_.set_return_log_sum_exp(spec.return_log_sum_exp);
  request_.set_return_weights(spec.return_weights);
  if (spec.has_scales) {
    DrawScales(spec.query_heads, random, request_.mutable_query_scales());
    DrawScales(spec.kv_heads, random, request_.mutable_key_scales());
    DrawScales(spec.kv_heads, random, request_.mutable_value_scales());
  }
  request_.set_query(Fill(query_, random));
  request_.set_key(Fill(key_, random));
  request_.set_value(Fill(value_, random));
}

RequestMaker::Tensor RequestMaker::Place(int64_t tokens, int64_t heads,
                                         int64_t dim) const {
  Tensor tensor;
  std::array<int, 4> position;  // of batch, token, head, dim
  switch (spec_.layout) {
    case v1::LAYOUT_THD:
      tensor.sizes = {tokens, heads, dim};
      position = {-1, 0, 1, 2};
      break;
    case v1::LAYOUT_BHSD:
      tensor.sizes = {spec_.batch, heads, tokens, dim};
      position = {0, 2, 1, 3};
      break;
    default:
      tensor.sizes = {spec_.batch, tokens, heads, dim};
      position = {0, 1, 2, 3};
  }
  const int count = static_cast<int>(tensor.sizes.size());
  tensor.strides.resize(count);
  int64_t stride = 1;
  for (int i = 0; i < count; ++i) {
    const int d = spec_.placement == Placement::kTransposed ? i : count - 1 - i;
    tensor.strides[d] = stride;
    stride *= tensor.sizes[d] + (spec_.placement == Placement::kGaps ? 1 : 0);
  }
  if (spec_.placement == Placement::kExpanded) tensor.strides[position[2]] = 0;
  for (int i = 0; i < 4; ++i) {
    tensor.by_meaning[i] = position[i] < 0 ? 0 : tensor.strides[position[i]];
  }
  return tensor;
}

// Normally distributed where an element is, NaN where none is.
std::string RequestMaker::Fill(const Tensor& tensor,
                               std::mt19937_64& random) const {
  const int64_t element_bytes = ElementBytes(spec_.data_type);
  const int64_t count = Product(tensor.sizes);
  int64_t last = -1;
  if (count > 0) {
    last = 0;
    for (size_t i = 0; i < tensor.sizes.size(); ++i) {
      last += (tensor.sizes[i] - 1) * tensor.strides[i];
    }
  }
  std::string payload((last + 1) * element_bytes, '\0');
  for (int64_t i = 0; i <= last; ++i) {
    StoreFromFloat(spec_.data_type, payload.data(), i,
                   std::numeric_limits<float>::quiet_NaN());
  }
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i;
    int64_t offset = 0;
    for (int d = static_cast<int>(tensor.sizes.size()) - 1; d >= 0; --d) {
      offset += rest % tensor.sizes[d] * tensor.strides[d];
      rest /= tensor.sizes[d];
    }
    StoreFromFloat(spec_.data_type, payload.data(), offset, normal(random));
  }
  return payload;
}

HeadConfig RequestMaker::config() const {
  HeadConfig config;
  config.data_type = spec_.data_type;
  config.head_dim_qk = static_cast<int32_t>(spec_.head_dim_qk);
  config.head_dim_v = static_cast<int32_t>(spec_.head_dim_v);
  config.query_head_count = static_cast<int32_t>(spec_.query_heads);
  config.kv_head_count = static_cast<int32_t>(spec_.kv_heads);
  config.mask = spec_.mask == v1::MASK_TYPE_CAUSAL_TOP_LEFT
                    ? MaskKind::kCausalTopLeft
                : spec_.mask == v1::MASK_TYPE_CAUSAL_BOTTOM_RIGHT
                    ? MaskKind::kCausalBottomRight
                    : MaskKind::kNone;
  if (spec_.return_weights || spec_.algorithm == v1::ALGORITHM_THREE_STEP) {
    config.algorithm = Algorithm::kThreeStep;
  }
  return config;
}

int64_t RequestMaker::QueryLength(int64_t b) const {
  return spec_.query_lengths.empty() ? spec_.query_tokens
                                     : spec_.query_lengths[b];
}

int64_t RequestMaker::KeyLength(int64_t b) const {
  return spec_.key_lengths.empty() ? spec_.key_tokens : spec_.key_lengths[b];
}

AssertionResult RequestMaker::CheckShapes(
    const v1::ComputeAttentionResponse& response) const {
  if (response.data_type() != ToProto(output_type())) {
    return AssertionFailure() << "data type " << response.data_type();
  }
  const int64_t element_bytes = ElementBytes(output_type());
  std::vector<int64_t> rows(query_.sizes.begin(), query_.sizes.end() - 1);
  std::vector<int64_t> output = rows;
  output.push_back(spec_.head_dim_v);
  std::vector<int64_t> weights;
  if (spec_.layout == v1::LAYOUT_THD) {
    weights = {0};
    for (int64_t b = 0; b < spec_.batch; ++b) {
      weights[0] += spec_.query_heads * QueryLength(b) * KeyLength(b);
    }
  } else {
    weights = {spec_.batch, spec_.query_heads, query_tokens_, key_tokens_};
  }
  struct Part {
    const char* name;
    bool wanted;
    bool described;
    const v1::TensorDescriptor& descriptor;
    std::vector<int64_t> shape;
    int64_t element_bytes;
    size_t size;
  };
  for (const Part& part :
       {Part{"output", true, response.has_output_descriptor(),
             response.output_descriptor(), output, element_bytes,
             response.output().size()},
        Part{"log_sum_exp", spec_.return_log_sum_exp,
             response.has_log_sum_exp_descriptor(),
             response.log_sum_exp_descriptor(), rows, 4,
             response.log_sum_exp().size()},
        Part{"weights", spec_.return_weights, response.has_weights_descriptor(),
             response.weights_descriptor(), weights, element_bytes,
             response.weights().size()}}) {
    const size_t bytes =
        part.wanted ? Product(part.shape) * part.element_bytes : 0;
    if (part.described != part.wanted || part.size != bytes ||
        (part.wanted && !SameShape(part.descriptor, part.shape))) {
      return AssertionFailure()
             << part.name << ": expected " << bytes << " bytes of shape ["
             << absl::StrJoin(part.shape, ", ") << "]; got " << part.size
             << " bytes, " << part.descriptor.ShortDebugString();
    }
  }
  return AssertionSuccess();
}

AssertionResult RequestMaker::CheckPadding(
    const v1::ComputeAttentionResponse& response, int64_t b) const {
  const bool heads_first = spec_.layout == v1::LAYOUT_BHSD;
  for (int64_t i = 0; i < query_tokens_; ++i) {
    for (int64_t h = 0; h < spec_.query_heads; ++h) {
      const bool padding = i >= QueryLength(b);
      const int64_t row = heads_first
                              ? (b * spec_.query_heads + h) * query_tokens_ + i
                              : (b * query_tokens_ + i) * spec_.query_heads + h;
      for (int64_t d = 0; padding && d < spec_.head_dim_v; ++d) {
        if (LoadAsFloat(output_type(), response.output().data(),
                        row * spec_.head_dim_v + d) != 0) {
          return AssertionFailure() << "padded output row " << row;
        }
      }
      if (padding && spec_.return_log_sum_exp &&
          LoadAsFloat(DataType::kFloat32, response.log_sum_exp().data(), row) !=
              -std::numeric_limits<float>::infinity()) {
        return AssertionFailure() << "padded log-sum-exp row " << row;
      }
      if (!spec_.return_weights) continue;
      for (int64_t j = padding ? 0 : KeyLength(b); j < key_tokens_; ++j) {
        const int64_t index =
            ((b * spec_.query_heads + h) * query_tokens_ + i) * key_tokens_ + j;
        if (LoadAsFloat(output_type(), response.weights().data(), index) != 0) {
          return AssertionFailure() << "padded weight " << index;
        }
      }
    }
  }
  return AssertionSuccess();
}

AssertionResult RequestMaker::Check(
    const v1::ComputeAttentionResponse& response) const {
  if (auto shapes = CheckShapes(response); !shapes) {
    return shapes << "\n  in " << ToString(spec_);
  }
  const bool ragged = spec_.layout == v1::LAYOUT_THD;
  const bool heads_first = spec_.layout == v1::LAYOUT_BHSD;
  const int64_t bytes = ElementBytes(spec_.data_type);
  const int64_t output_bytes = ElementBytes(output_type());
  const int64_t heads = spec_.query_heads;
  if (heads == 0) return AssertionSuccess();
  int64_t first_query = 0;  // tokens and weights before this sequence
  int64_t first_key = 0;
  int64_t first_weight = 0;
  for (int64_t b = 0; b < spec_.batch; ++b) {
    const auto start = [&](const std::string& payload, const Tensor& tensor,
                           int64_t token) {
      return payload.data() + (b * tensor.by_meaning[0] +
                               token * tensor.by_meaning[1]) * bytes;
    };
    const auto strides = [](const Tensor& tensor) {
      return TensorStrides{tensor.by_meaning[1], tensor.by_meaning[2],
                           tensor.by_meaning[3]};
    };
    Sequence s;
    s.query_length = QueryLength(b);
    s.key_length = KeyLength(b);
    s.query = start(request_.query(), query_, first_query);
    s.key = start(request_.key(), key_, first_key);
    s.value = start(request_.value(), value_, first_key);
    s.query_strides = strides(query_);
    s.key_strides = strides(key_);
    s.value_strides = strides(value_);
    s.query_scales = ScalesOf(request_.query_scales());
    s.key_scales = ScalesOf(request_.key_scales());
    s.value_scales = ScalesOf(request_.value_scales());
    s.scale = spec_.scale.value_or(
        1 / std::sqrt(static_cast<double>(spec_.head_dim_qk)));
    s.window_left = spec_.window_left.value_or(kUnlimitedWindow);
    s.window_right = spec_.window_right.value_or(kUnlimitedWindow);

    const int64_t token_rows = heads_first ? 1 : heads;
    const int64_t head_rows = heads_first ? query_tokens_ : 1;
    const int64_t row = ragged ? first_query * heads : b * query_tokens_ * heads;
    s.output_strides = {token_rows * spec_.head_dim_v,
                        head_rows * spec_.head_dim_v, 1};
    s.log_sum_exp_token_stride = token_rows;
    s.log_sum_exp_head_stride = head_rows;
    s.output = const_cast<char*>(response.output().data()) +
               row * spec_.head_dim_v * output_bytes;
    if (spec_.return_log_sum_exp) {
      s.log_sum_exp = reinterpret_cast<float*>(
                          const_cast<char*>(response.log_sum_exp().data())) +
                      row;
    }
    // The reference has [heads, m, n]; take the padding out.
    std::string weights;
    if (spec_.return_weights) {
      const int64_t m = ragged ? s.query_length : query_tokens_;
      const int64_t n = ragged ? s.key_length : key_tokens_;
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t i = 0; i < s.query_length; ++i) {
          weights.append(response.weights(),
                         (first_weight + (h * m + i) * n) * output_bytes,
                         s.key_length * output_bytes);
        }
      }
      first_weight += heads * m * n;
      s.weights = weights.data();
    }
    if (s.query_length > 0) {
      if (auto match = MatchesReference(config(), s); !match) {
        return match << "\n  in sequence " << b << " of " << ToString(spec_);
      }
    }
    if (ragged) {
      first_query += s.query_length;
      first_key += s.key_length;
    } else if (auto padding = CheckPadding(response, b); !padding) {
      return padding << "\n  in sequence " << b << " of " << ToString(spec_);
    }
  }
  return AssertionSuccess();
}

}  // namespace attention::test
