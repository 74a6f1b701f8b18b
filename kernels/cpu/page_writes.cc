#include "kernels/cpu/page_writes.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/cpu/page_layout.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/float_convert.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/page_writes.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
//
#include "kernels/cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attention::cpu {
namespace HWY_NAMESPACE {
namespace {

// As FloatToFloat8E4M3, in the low bits of each lane.
HWY_INLINE hn::Vec<hn::RebindToSigned<D>> ToFloat8E4M3(V value) {
  const D d;
  const hn::RebindToSigned<D> di;
  const auto bits = hn::BitCast(di, value);
  const auto sign = hn::And(hn::ShiftRight<24>(bits), hn::Set(di, 0x80));
  const auto magnitude = hn::And(bits, hn::Set(di, 0x7fffffff));
  const auto is_nan = hn::Gt(magnitude, hn::Set(di, 0x7f800000));
  const auto finite = hn::Min(magnitude, hn::Set(di, 0x43e00000));
  const auto odd = hn::And(hn::ShiftRight<20>(finite), hn::Set(di, 1));
  const auto normal = hn::ShiftRight<20>(
      hn::Add(finite, hn::Add(odd, hn::Set(di, 0x7ffff - (120 << 23)))));
  const V shift = hn::Set(d, 0x1p14f);
  const auto subnormal =
      hn::Sub(hn::BitCast(di, hn::Add(hn::BitCast(d, finite), shift)),
              hn::BitCast(di, shift));
  const auto number = hn::IfThenElse(hn::Lt(finite, hn::Set(di, 0x3c800000)),
                                     subnormal, normal);
  return hn::Or(sign, hn::IfThenElse(is_nan, hn::Set(di, 0x7f), number));
}

// to[i] = from[i] / scale.
template <DataType kType>
void Float8RowOf(const void* from, int64_t stride, int64_t dim, float scale,
                 uint8_t* to) {
  float row[kMaxHeadDim];
  LoadRow<kType>(static_cast<const Storage<kType>*>(from), stride, dim, dim,
                 row);
  const D d;
  const hn::Rebind<uint8_t, D> d8;
  int64_t i = 0;
  for (; i + kLanes <= dim; i += kLanes) {
    const V element = hn::Div(hn::LoadU(d, row + i), hn::Set(d, scale));
    hn::StoreU(hn::DemoteTo(d8, ToFloat8E4M3(element)), d8, to + i);
  }
  for (; i < dim; ++i) to[i] = FloatToFloat8E4M3(row[i] / scale);
}

void Float8Row(DataType data_type, const void* from, int64_t stride,
               int64_t dim, float scale, uint8_t* to) {
  WithDataType(data_type, [&]<DataType kType>() HWY_ATTR {
    Float8RowOf<kType>(from, stride, dim, scale, to);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace attention::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attention::cpu {
namespace {

HWY_EXPORT(Float8Row);

// Less than this is written faster than other threads wake up.
constexpr int64_t kBytesWorthThreads = 256 << 10;

// One unit of work. Small enough to share a prompt, large enough for rows of
// one head to be written one after the other.
constexpr int64_t kAppendTokens = 64;

template <typename Body>
void Loop(int64_t count, int64_t bytes, ThreadPool& pool, const Body& body) {
  if (bytes >= kBytesWorthThreads) {
    pool.ParallelFor(count, [&](int64_t i, int) { body(i); });
  } else {
    for (int64_t i = 0; i < count; ++i) body(i);
  }
}

// `rows` of a tensor's elements, to fp8 if `scale` is not null.
struct RowWriter {
  DataType data_type;
  int64_t element_bytes;
  int64_t dim;
  TensorStrides strides;
  PageRows to;

  // Zeros follow the `dim` elements.
  void Write(const std::byte* from, const float* scale, std::byte* row) const {
    int64_t bytes = dim * element_bytes;
    if (scale != nullptr) {
      HWY_DYNAMIC_DISPATCH(Float8Row)
      (data_type, from, strides.dim, dim, *scale,
       reinterpret_cast<uint8_t*>(row));
      bytes = dim;
    } else if (strides.dim == 1) {
      std::memcpy(row, from, bytes);
    } else {
      for (int64_t i = 0; i < dim; ++i) {
        std::memcpy(row + i * element_bytes,
                    from + i * strides.dim * element_bytes, element_bytes);
      }
    }
    std::memset(row + bytes, 0, to.row_bytes - bytes);
  }

  // Tokens [begin, end) of the sequence; `from` has the first of its new ones.
  void Write(const void* from, int64_t kv_heads, const float* scales,
             void* const* pages, int64_t first_new, int64_t begin,
             int64_t end) const {
    for (int64_t head = 0; head < kv_heads; ++head) {
      for (int64_t token = begin; token < end; ++token) {
        const int64_t element =
            (token - first_new) * strides.token + head * strides.head;
        Write(static_cast<const std::byte*>(from) + element * element_bytes,
              scales == nullptr ? nullptr : scales + head,
              to.Row(pages, token, head));
      }
    }
  }
};

void AppendTokens(const PagedConfig& config, const PagedSequence& s,
                  int64_t begin, int64_t end) {
  const HeadConfig& heads = config.heads;
  const int64_t first_new = s.key_length - s.append_length;
  const bool fp8 = config.kv_data_type == KvDataType::kFloat8E4M3;
  const RowWriter keys = {heads.data_type, ElementBytes(heads.data_type),
                          heads.head_dim_qk, s.new_key_strides,
                          PageRows::Keys(config)};
  const RowWriter values = {heads.data_type, ElementBytes(heads.data_type),
                            heads.head_dim_v, s.new_value_strides,
                            PageRows::Values(config)};
  keys.Write(s.new_key, heads.kv_head_count, fp8 ? s.key_scales : nullptr,
             s.pages, first_new, begin, end);
  values.Write(s.new_value, heads.kv_head_count, fp8 ? s.value_scales : nullptr,
               s.pages, first_new, begin, end);
}

}  // namespace

void CopyPages(const PagedParams& params, ThreadPool& pool) {
  const int64_t page_bytes = PageBytes(params.config);
  Loop(params.copy_count, params.copy_count * page_bytes, pool, [&](int64_t i) {
    std::memcpy(params.copies[i].to, params.copies[i].from, page_bytes);
  });
}

void AppendToPages(const PagedParams& params, ThreadPool& pool) {
  // Units of work up to and including each sequence's.
  std::vector<int64_t> unit_ends(params.sequence_count);
  int64_t units = 0;
  int64_t tokens = 0;
  for (int64_t i = 0; i < params.sequence_count; ++i) {
    const int64_t length = params.sequences[i].append_length;
    units += (length + kAppendTokens - 1) / kAppendTokens;
    tokens += length;
    unit_ends[i] = units;
  }
  const int64_t token_bytes =
      PageBytes(params.config) / params.config.page_tokens;
  Loop(units, tokens * token_bytes, pool, [&](int64_t unit) {
    const int64_t i =
        std::upper_bound(unit_ends.begin(), unit_ends.end(), unit) -
        unit_ends.begin();
    const int64_t of_sequence = unit - (i == 0 ? 0 : unit_ends[i - 1]);
    const PagedSequence& s = params.sequences[i];
    const int64_t begin =
        s.key_length - s.append_length + of_sequence * kAppendTokens;
    AppendTokens(params.config, s, begin,
                 std::min(begin + kAppendTokens, s.key_length));
  });
}

}  // namespace attention::cpu
#endif  // HWY_ONCE
