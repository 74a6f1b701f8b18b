#include "tests/support/attention_problem.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "kernels/float_convert.h"
#include "kernels/validation.h"

namespace attention::test {
namespace {

// Each 16-bit half of these is a quiet NaN in fp16 and in bf16, and two of
// them are one in fp32. Kernels make NaNs with other bits.
constexpr uint16_t kPoisonNan = 0x7fed;
constexpr uint16_t kCanary = 0x7feb;

constexpr size_t kAlignment = 256;
constexpr size_t kGuardBytes = 512;

uint32_t PoisonBits(Poison poison, DataType type) {
  switch (poison) {
    case Poison::kZero:
      return 0;
    case Poison::kNan:
      return type == DataType::kFloat8E4M3 ? 0x7f7f7f7fu
                                           : kPoisonNan * 0x10001u;
    case Poison::kInfinity:
      break;
  }
  switch (type) {
    case DataType::kFloat32:
      return 0x7f800000u;
    case DataType::kFloat16:
      return 0x7c007c00u;
    case DataType::kBFloat16:
      return 0x7f807f80u;
    case DataType::kFloat8E4M3:  // has no infinity, but another NaN
      return 0xffffffffu;
  }
  return 0;
}

void FillBytes(std::vector<std::byte>& bytes, uint32_t pattern) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(pattern >> (8 * (i % 4)));
  }
}

bool IsOutput(TensorRole role) { return role >= TensorRole::kOutput; }

}  // namespace

std::string ToString(const ProblemSpec& spec) {
  std::string text =
      absl::StrCat(attention::ToString(spec.config), " ", ToString(spec.layout),
                   " misalignment ", spec.misalignment, " seed ", spec.seed,
                   " sequences", spec.weights ? " +w" : "");
  if (spec.config.data_type == DataType::kFloat8E4M3) {
    constexpr const char* kNames[] = {"none", "drawn", "extreme"};
    absl::StrAppend(&text, " scales ", kNames[static_cast<int>(spec.scales)]);
  }
  const size_t shown = std::min<size_t>(spec.sequences.size(), 8);
  for (size_t i = 0; i < shown; ++i) {
    const SequenceSpec& s = spec.sequences[i];
    absl::StrAppend(&text, " ", s.query_length, "x", s.key_length);
    if (s.scale) absl::StrAppend(&text, "*", *s.scale);
    if (s.window_left >= 0 || s.window_right >= 0) {
      absl::StrAppend(&text, "[", s.window_left, ",", s.window_right, "]");
    }
  }
  if (shown < spec.sequences.size()) {
    absl::StrAppend(&text, " ... (", spec.sequences.size(), ")");
  }
  return text;
}

AttentionProblem::AttentionProblem(ProblemSpec spec) : spec_(std::move(spec)) {
  for (size_t i = 0; i < spec_.sequences.size(); ++i) {
    PlanSequence(static_cast<int64_t>(i));
  }
  Allocate();
  Bind();
  Draw();
  ResetOutputs();
}

void AttentionProblem::PlanSequence(int64_t index) {
  const HeadConfig& c = spec_.config;
  const SequenceSpec& s = spec_.sequences[index];
  first_tensor_.push_back(tensors_.size());
  if (spec_.layout == Layout::kPacked && s.query_length == s.key_length) {
    PlanPacked(index);
  } else {
    const Layout layout = spec_.layout;
    Plan(TensorRole::kQuery, index, s.query_length, c.query_head_count,
         c.head_dim_qk, layout);
    Plan(TensorRole::kKey, index, s.key_length, c.kv_head_count, c.head_dim_qk,
         layout);
    Plan(TensorRole::kValue, index, s.key_length, c.kv_head_count, c.head_dim_v,
         layout);
  }
  Plan(TensorRole::kOutput, index, s.query_length, c.query_head_count,
       c.head_dim_v, spec_.layout);
  if (spec_.log_sum_exp) {
    Plan(TensorRole::kLogSumExp, index, s.query_length, c.query_head_count, 1,
         spec_.layout == Layout::kTokenMajor ? Layout::kTokenMajor
                                             : Layout::kHeadMajor);
    tensors_.back().type = DataType::kFloat32;
  }
  if (spec_.weights) {
    Plan(TensorRole::kWeights, index, s.query_length, c.query_head_count,
         s.key_length, Layout::kHeadMajor);
  }
}

void AttentionProblem::Plan(TensorRole role, int64_t sequence, int64_t tokens,
                            int64_t heads, int64_t dims, Layout layout) {
  Tensor t{role, sequence, tokens, heads, dims};
  t.type = IsOutput(role) ? OutputType(spec_.config.data_type)
                          : spec_.config.data_type;
  const bool is_kv = role == TensorRole::kKey || role == TensorRole::kValue;
  t.strides = MakeStrides(layout, tokens, heads, dims, is_kv);
  t.origin = 0;
  t.extent = tokens > 0 && heads > 0 && dims > 0 ? 1 : 0;
  if (t.extent > 0) {
    for (auto [count, stride] : {std::pair{tokens, t.strides.token},
                                 {heads, t.strides.head},
                                 {dims, t.strides.dim}}) {
      const int64_t reach = (count - 1) * stride;
      t.extent += std::abs(reach);
      if (reach < 0) t.origin -= reach;
    }
  }
  tensors_.push_back(t);
}

// Query, key and value of one token side by side: three views of one memory,
// which belongs to the query.
void AttentionProblem::PlanPacked(int64_t sequence) {
  const HeadConfig& c = spec_.config;
  const int64_t tokens = spec_.sequences[sequence].query_length;
  const int64_t query_row = int64_t{c.query_head_count} * c.head_dim_qk;
  const int64_t key_row = int64_t{c.kv_head_count} * c.head_dim_qk;
  const int64_t row =
      query_row + key_row + int64_t{c.kv_head_count} * c.head_dim_v;
  const int64_t qk = c.head_dim_qk;
  const int64_t dv = c.head_dim_v;
  const bool empty = c.query_head_count == 0;
  tensors_.push_back({TensorRole::kQuery,
                      sequence,
                      tokens,
                      c.query_head_count,
                      qk,
                      {row, qk, 1},
                      0,
                      empty ? 0 : tokens * row,
                      c.data_type});
  tensors_.push_back({TensorRole::kKey,
                      sequence,
                      tokens,
                      c.kv_head_count,
                      qk,
                      {row, qk, 1},
                      query_row,
                      0,
                      c.data_type});
  tensors_.push_back({TensorRole::kValue,
                      sequence,
                      tokens,
                      c.kv_head_count,
                      dv,
                      {row, dv, 1},
                      query_row + key_row,
                      0,
                      c.data_type});
}

void AttentionProblem::Allocate() {
  std::vector<size_t> sizes;
  const auto add_buffer = [&](bool writable) {
    buffers_.push_back({{}, writable});
    sizes.push_back(0);
  };
  if (!spec_.exact_allocations) {
    add_buffer(false);
    add_buffer(true);
  }
  for (size_t i = 0; i < tensors_.size(); ++i) {
    Tensor& t = tensors_[i];
    const bool shares_query = t.extent == 0 && t.origin > 0;  // PlanPacked
    if (shares_query) {
      const Tensor& query = tensors_[first_tensor_[t.sequence]];
      t.buffer = query.buffer;
      t.offset = query.offset;
      continue;
    }
    const size_t shift = spec_.misalignment * ElementBytes(t.type);
    const size_t bytes = t.extent * ElementBytes(t.type);
    if (spec_.exact_allocations) {
      add_buffer(IsOutput(t.role));
      t.buffer = buffers_.size() - 1;
      t.offset = shift;
      sizes.back() = shift + bytes;
    } else {
      t.buffer = IsOutput(t.role) ? 1 : 0;
      size_t& end = sizes[t.buffer];
      end = (end + kGuardBytes + kAlignment - 1) / kAlignment * kAlignment;
      t.offset = end + shift;
      end = t.offset + bytes;
    }
  }
  for (size_t i = 0; i < buffers_.size(); ++i) {
    const size_t guard = spec_.exact_allocations ? 0 : kGuardBytes;
    buffers_[i].bytes.resize(sizes[i] + guard);
    if (!buffers_[i].writable) {
      FillBytes(buffers_[i].bytes,
                PoisonBits(spec_.poison, spec_.config.data_type));
    }
  }
}

void AttentionProblem::Bind() {
  sequences_.resize(spec_.sequences.size());
  scales_.resize(spec_.sequences.size());
  for (size_t i = 0; i < sequences_.size(); ++i) {
    const SequenceSpec& spec = spec_.sequences[i];
    Sequence& s = sequences_[i];
    s.query_length = spec.query_length;
    s.key_length = spec.key_length;
    s.scale = spec.scale.value_or(1.0 / std::sqrt(spec_.config.head_dim_qk));
    s.window_left = spec.window_left;
    s.window_right = spec.window_right;
    if (spec_.config.data_type == DataType::kFloat8E4M3 &&
        spec_.scales != HeadScales::kNone) {
      DrawScales(static_cast<int64_t>(i));
    }
  }
  for (const Tensor& t : tensors_) {
    Sequence& s = sequences_[t.sequence];
    std::byte* data = Element(t, 0, 0, 0);
    switch (t.role) {
      case TensorRole::kQuery:
        s.query = data;
        s.query_strides = t.strides;
        break;
      case TensorRole::kKey:
        s.key = data;
        s.key_strides = t.strides;
        break;
      case TensorRole::kValue:
        s.value = data;
        s.value_strides = t.strides;
        break;
      case TensorRole::kOutput:
        s.output = data;
        s.output_strides = t.strides;
        break;
      case TensorRole::kLogSumExp:
        s.log_sum_exp = reinterpret_cast<float*>(data);
        s.log_sum_exp_token_stride = t.strides.token;
        s.log_sum_exp_head_stride = t.strides.head;
        break;
      case TensorRole::kWeights:
        s.weights = data;
        break;
    }
  }
}

void AttentionProblem::DrawScales(int64_t index) {
  const HeadConfig& c = spec_.config;
  std::seed_seq seed{spec_.seed, static_cast<uint64_t>(index), uint64_t{77}};
  std::minstd_rand generator(seed);
  // From where a normal value takes the whole range, and some saturate, to
  // where it has few bits left.
  std::uniform_real_distribution<float> exponent(-8, 1);
  constexpr float kExtremes[] = {0x1p70f, 0x1p-70f, 0x1p-90f};
  const int32_t counts[] = {c.query_head_count, c.kv_head_count,
                            c.kv_head_count};
  for (int i = 0; i < 3; ++i) {
    for (int32_t head = 0; head < counts[i]; ++head) {
      float scale = std::exp2(exponent(generator));
      if (spec_.scales == HeadScales::kExtreme) scale *= kExtremes[i];
      scales_[index][i].push_back(scale);
    }
  }
  Sequence& s = sequences_[index];
  s.query_scales = scales_[index][0].data();
  s.key_scales = scales_[index][1].data();
  s.value_scales = scales_[index][2].data();
}

void AttentionProblem::Draw() {
  for (const Tensor& t : tensors_) {
    if (IsOutput(t.role)) continue;
    std::seed_seq seed{spec_.seed, static_cast<uint64_t>(t.sequence),
                       static_cast<uint64_t>(t.role)};
    std::minstd_rand generator(seed);
    std::normal_distribution<float> normal;
    VisitElements(t, [&](std::byte* element, int64_t head) {
      // Extreme scales change the values, the others their rounding.
      const float scale =
          spec_.scales == HeadScales::kExtreme ? 1 : Scale(t, head);
      StoreFromFloat(t.type, element, 0, normal(generator) / scale);
    });
  }
  input_copies_.resize(buffers_.size());
  for (size_t i = 0; i < buffers_.size(); ++i) {
    if (!buffers_[i].writable) input_copies_[i] = buffers_[i].bytes;
  }
}

AttentionParams AttentionProblem::params() const {
  return params(0, static_cast<int64_t>(sequences_.size()));
}

AttentionParams AttentionProblem::params(int64_t first, int64_t count) const {
  return {spec_.config, sequences_.data() + first, count};
}

const AttentionProblem::Tensor& AttentionProblem::Find(TensorRole role,
                                                       int64_t sequence) const {
  size_t i = first_tensor_[sequence];
  while (tensors_[i].role != role) ++i;
  return tensors_[i];
}

std::byte* AttentionProblem::Element(const Tensor& t, int64_t token,
                                     int64_t head, int64_t dim) const {
  const int64_t index = t.origin + token * t.strides.token +
                        head * t.strides.head + dim * t.strides.dim;
  return const_cast<std::byte*>(buffers_[t.buffer].bytes.data()) + t.offset +
         index * ElementBytes(t.type);
}

float AttentionProblem::Scale(const Tensor& t, int64_t head) const {
  if (IsOutput(t.role)) return 1;
  const auto& scales = scales_[t.sequence][static_cast<size_t>(t.role)];
  return scales.empty() ? 1 : scales[head];
}

template <typename Visitor>
void AttentionProblem::VisitElements(const Tensor& t, Visitor visit) const {
  for (int64_t token = 0; token < t.tokens; ++token) {
    for (int64_t head = 0; head < t.heads; ++head) {
      for (int64_t dim = 0; dim < t.dims; ++dim) {
        visit(Element(t, token, head, dim), head);
      }
    }
  }
}

float AttentionProblem::Get(TensorRole role, int64_t sequence, int64_t token,
                            int64_t head, int64_t dim) const {
  const Tensor& t = Find(role, sequence);
  return LoadAsFloat(t.type, Element(t, token, head, dim), 0) * Scale(t, head);
}

void AttentionProblem::Set(TensorRole role, int64_t sequence, int64_t token,
                           int64_t head, int64_t dim, float value) {
  const Tensor& t = Find(role, sequence);
  std::byte* element = Element(t, token, head, dim);
  StoreFromFloat(t.type, element, 0, value / Scale(t, head));
  if (!IsOutput(role)) {
    const auto at = element - buffers_[t.buffer].bytes.data();
    std::memcpy(input_copies_[t.buffer].data() + at, element,
                ElementBytes(t.type));
  }
}

void AttentionProblem::Fill(TensorRole role, int64_t sequence, float value) {
  const Tensor& t = Find(role, sequence);
  for (int64_t token = 0; token < t.tokens; ++token) {
    for (int64_t head = 0; head < t.heads; ++head) {
      for (int64_t dim = 0; dim < t.dims; ++dim) {
        Set(role, sequence, token, head, dim, value);
      }
    }
  }
}

void AttentionProblem::ResetOutputs() {
  for (Buffer& buffer : buffers_) {
    if (buffer.writable) FillBytes(buffer.bytes, kCanary * 0x10001u);
  }
}

testing::AssertionResult AttentionProblem::OnlyOutputsWritten() const {
  constexpr uint32_t kCanaryBits = kCanary * 0x10001u;
  std::vector<std::vector<std::byte>> rest(buffers_.size());
  for (size_t i = 0; i < buffers_.size(); ++i) {
    if (buffers_[i].writable) {
      rest[i] = buffers_[i].bytes;
    } else if (buffers_[i].bytes != input_copies_[i]) {
      return testing::AssertionFailure() << "an input was written to";
    }
  }
  int64_t unwritten = 0;
  for (const Tensor& t : tensors_) {
    if (!IsOutput(t.role)) continue;
    const int64_t bytes = ElementBytes(t.type);
    VisitElements(t, [&](std::byte* element, int64_t) {
      if (std::memcmp(element, &kCanaryBits, bytes) == 0) ++unwritten;
      const auto at = element - buffers_[t.buffer].bytes.data();
      std::memcpy(rest[t.buffer].data() + at, &kCanaryBits, bytes);
    });
  }
  if (unwritten > 0) {
    return testing::AssertionFailure()
           << unwritten << " output elements were not written";
  }
  for (size_t i = 0; i < buffers_.size(); ++i) {
    if (!buffers_[i].writable) continue;
    std::vector<std::byte> pristine(rest[i].size());
    FillBytes(pristine, kCanaryBits);
    const auto [bad, unused] =
        std::mismatch(rest[i].begin(), rest[i].end(), pristine.begin());
    if (bad != rest[i].end()) {
      return testing::AssertionFailure()
             << "memory outside the outputs was written, first at byte "
             << bad - rest[i].begin() << " of buffer " << i;
    }
  }
  return testing::AssertionSuccess();
}

std::vector<std::byte> AttentionProblem::OutputBits(int64_t sequence) const {
  std::vector<std::byte> bits;
  for (size_t i = first_tensor_[sequence];
       i < tensors_.size() && tensors_[i].sequence == sequence; ++i) {
    if (!IsOutput(tensors_[i].role)) continue;
    VisitElements(tensors_[i], [&](std::byte* element, int64_t) {
      bits.insert(bits.end(), element,
                  element + ElementBytes(tensors_[i].type));
    });
  }
  return bits;
}

}  // namespace attention::test
