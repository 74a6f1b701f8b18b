#include "server/engine/cuda/work_parts.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "kernels/cuda/cut_alignment.h"
#include "server/engine/cuda/batch_memory.h"

namespace attention {
namespace {

// Of a copy in one direction; PCI express 5.
constexpr double kBytesPerSecond = 50e9;
// What each part costs more: a launch, copies and events.
constexpr double kSecondsPerPart = 10e-6;
// Smaller parts leave more and more of an H200 idle.
constexpr size_t kMaxPartCount = 4;

// As many as pay off: n parts hide all but the n-th part of the copy out.
size_t WantedPartCount(const AttentionWork& work) {
  const WorkLayout layout(work);
  if (work.config.algorithm == Algorithm::kThreeStep ||
      layout.output.route == Route::kInPlace) {
    return 1;
  }
  const double seconds =
      static_cast<double>(layout.output.bytes) / kBytesPerSecond;
  const double count = std::sqrt(seconds / kSecondsPerPart);
  return std::min(static_cast<size_t>(count), kMaxPartCount);
}

// What a part is put together from: a sequence, or some rows or heads of one.
struct Unit {
  HeadConfig config;
  Sequence sequence;
};

// Moves the start of all that belongs to queries.
void AdvanceQueries(int64_t tokens, int64_t heads, DataType type, Sequence& s) {
  const auto offset = [&](const TensorStrides& strides) {
    return tokens * strides.token + heads * strides.head;
  };
  s.query = Advance(s.query, offset(s.query_strides), ElementBytes(type));
  s.output = Advance(s.output, offset(s.output_strides),
                     ElementBytes(OutputType(type)));
  s.log_sum_exp = Advance(
      s.log_sum_exp,
      tokens * s.log_sum_exp_token_stride + heads * s.log_sum_exp_head_stride,
      sizeof(float));
  s.query_scales = Advance(s.query_scales, heads, sizeof(float));
}

// Bytes that travel for it, about.
double Weight(const Unit& unit) {
  const HeadConfig& c = unit.config;
  const double query_elements =
      static_cast<double>(unit.sequence.query_length) * c.query_head_count;
  const double key_elements =
      static_cast<double>(unit.sequence.key_length) * c.kv_head_count;
  return (query_elements + key_elements) * (c.head_dim_qk + c.head_dim_v);
}

// Whether rows can be a problem of their own, and the bits stay the same.
bool RowsCanBeCut(const Unit& unit) {
  const Sequence& s = unit.sequence;
  constexpr int64_t kAlignment = cuda::kCutAlignment;
  switch (unit.config.mask) {
    case MaskKind::kNone:
      return s.window_left == kUnlimitedWindow &&
             s.window_right == kUnlimitedWindow;
    case MaskKind::kCausalTopLeft:
      return s.key_length == s.query_length ||
             (s.key_length > s.query_length &&
              s.query_length % kAlignment == 0);
    case MaskKind::kCausalBottomRight:
      return s.key_length >= s.query_length &&
             (s.key_length - s.query_length) % kAlignment == 0;
  }
  return false;
}

Unit Rows(const Unit& whole, int64_t begin, int64_t end) {
  Unit rows = whole;
  Sequence& s = rows.sequence;
  AdvanceQueries(begin, 0, whole.config.data_type, s);
  s.query_length = end - begin;
  if (whole.config.mask == MaskKind::kNone) return rows;
  // The last row sees the last key that is left: so the diagonal stays where it
  // was, and keys that no row sees need not have arrived.
  rows.config.mask = MaskKind::kCausalBottomRight;
  const bool is_top_left = whole.config.mask == MaskKind::kCausalTopLeft;
  s.key_length =
      is_top_left ? end : end + s.key_length - whole.sequence.query_length;
  return rows;
}

// K/V heads [begin, end) with their query heads.
Unit Heads(const Unit& whole, int32_t begin, int32_t end) {
  Unit heads = whole;
  HeadConfig& c = heads.config;
  Sequence& s = heads.sequence;
  const int64_t element_bytes = ElementBytes(c.data_type);
  const int32_t group = c.query_head_count / c.kv_head_count;
  AdvanceQueries(0, begin * group, c.data_type, s);
  s.key = Advance(s.key, begin * s.key_strides.head, element_bytes);
  s.value = Advance(s.value, begin * s.value_strides.head, element_bytes);
  s.key_scales = Advance(s.key_scales, begin, sizeof(float));
  s.value_scales = Advance(s.value_scales, begin, sizeof(float));
  c.kv_head_count = end - begin;
  c.query_head_count = c.kv_head_count * group;
  return heads;
}

// Appends the sequence in about `count` units.
void AppendUnits(const Unit& whole, int64_t count, std::vector<Unit>& units) {
  const Sequence& s = whole.sequence;
  const bool is_head_major =
      whole.config.kv_head_count > 1 &&
      std::abs(s.query_strides.head) > std::abs(s.query_strides.token);
  const bool can_be_cut = is_head_major || RowsCanBeCut(whole);
  const int64_t grain = is_head_major ? 1 : cuda::kCutAlignment;
  const int64_t all =
      is_head_major ? whole.config.kv_head_count : s.query_length;
  int64_t begin = 0;
  for (int64_t i = 1; can_be_cut && i < count; ++i) {
    const int64_t end = all * i / count / grain * grain;
    if (end == begin || (!is_head_major && all - end < grain)) continue;
    units.push_back(is_head_major ? Heads(whole, begin, end)
                                  : Rows(whole, begin, end));
    begin = end;
  }
  if (begin == 0) {
    units.push_back(whole);
  } else {
    units.push_back(is_head_major ? Heads(whole, begin, all)
                                  : Rows(whole, begin, all));
  }
}

// From the first to the last element of a tensor that a sequence has, relative
// to `base`.
ByteRange Extent(const void* base, const void* data,
                 const TensorStrides& strides, int64_t tokens, int64_t heads,
                 int64_t dims, int64_t element_bytes) {
  if (tokens == 0) return {};
  int64_t begin =
      static_cast<const char*>(data) - static_cast<const char*>(base);
  int64_t end = begin + element_bytes;
  for (auto [stride, count] :
       {std::pair{strides.token, tokens}, std::pair{strides.head, heads},
        std::pair{strides.dim, dims}}) {
    const int64_t reach = stride * (count - 1) * element_bytes;
    (reach < 0 ? begin : end) += reach;
  }
  return {static_cast<size_t>(begin), static_cast<size_t>(end)};
}

// Sets what the part moves, given what the parts before it move. False if its
// output lies before theirs.
bool SetRanges(const PreparedWork& prepared, const WorkParts& all,
               const InputRanges& inputs_before, const ByteRange& output_before,
               WorkPart& part) {
  const HeadConfig& c = part.config;
  const int64_t bytes = ElementBytes(c.data_type);
  const WorkAddresses& base = prepared.addresses;
  for (size_t i = 0; i < 3; ++i) {
    part.inputs[i] = {inputs_before[i].end, inputs_before[i].end};
  }
  part.output = {output_before.end, output_before.end};
  for (size_t i = 0; i < part.sequence_count; ++i) {
    const Sequence& s = all.sequences[part.first_sequence + i];
    const ByteRange output =
        Extent(base.output, s.output, s.output_strides, s.query_length,
               c.query_head_count, c.head_dim_v,
               ElementBytes(OutputType(c.data_type)));
    if (output.size() == 0) continue;
    if (output.begin < part.output.begin) return false;
    part.output.end = std::max(part.output.end, output.end);
    const ByteRange inputs[] = {
        Extent(base.query, s.query, s.query_strides, s.query_length,
               c.query_head_count, c.head_dim_qk, bytes),
        Extent(base.key, s.key, s.key_strides, s.key_length, c.kv_head_count,
               c.head_dim_qk, bytes),
        Extent(base.value, s.value, s.value_strides, s.key_length,
               c.kv_head_count, c.head_dim_v, bytes)};
    for (size_t k = 0; k < 3; ++k) {
      part.inputs[k].end = std::max(part.inputs[k].end, inputs[k].end);
    }
  }
  return true;
}

}  // namespace

WorkParts CutIntoParts(const PreparedWork& prepared) {
  const AttentionWork& work = *prepared.work;
  const size_t wanted = WantedPartCount(work);
  if (wanted < 2) return {};
  std::vector<Sequence> bound;
  BindSequences(absl::MakeConstSpan(&prepared, 1), bound);
  double total = 0;
  for (const Sequence& s : bound) total += Weight({work.config, s});
  std::vector<Unit> units;
  for (const Sequence& s : bound) {
    const Unit whole = {work.config, s};
    AppendUnits(whole, std::lround(Weight(whole) / total * wanted), units);
  }

  WorkParts all;
  InputRanges inputs_before = {};
  ByteRange output_before;
  double weight = 0;
  for (size_t first = 0, next = 0; first < units.size(); first = next) {
    // Up to an equal share of what there is; the last takes all that is left.
    const double until = total * (all.parts.size() + 1) / wanted;
    WorkPart part = {.config = units[first].config, .first_sequence = first};
    do {
      weight += Weight(units[next]);
      all.sequences.push_back(units[next++].sequence);
    } while (next < units.size() && units[next].config == part.config &&
             (all.parts.size() + 1 >= wanted ||
              weight + Weight(units[next]) / 2 < until));
    part.sequence_count = next - first;
    if (!SetRanges(prepared, all, inputs_before, output_before, part)) {
      return {};
    }
    inputs_before = part.inputs;
    output_before = part.output;
    all.parts.push_back(part);
  }
  if (all.parts.size() < 2) return {};
  WorkPart& last = all.parts.back();
  last.inputs[0].end = work.query.size_bytes();
  last.inputs[1].end = work.key.size_bytes();
  last.inputs[2].end = work.value.size_bytes();
  last.output.end = work.output_bytes;
  return all;
}

}  // namespace attention
