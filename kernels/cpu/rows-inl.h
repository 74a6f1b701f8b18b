// Rows of tensors in any data type, loaded as fp32 and stored from it.
#if defined(ATTENTION_KERNELS_CPU_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTENTION_KERNELS_CPU_ROWS_INL_H_
#undef ATTENTION_KERNELS_CPU_ROWS_INL_H_
#else
#define ATTENTION_KERNELS_CPU_ROWS_INL_H_
#endif

#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/attention_params.h"
#include "kernels/cpu/vectors-inl.h"
#include "kernels/float_convert.h"
#include "kernels/mask.h"

HWY_BEFORE_NAMESPACE();
namespace attention::cpu {
namespace HWY_NAMESPACE {

template <DataType kType>
using Storage = std::conditional_t<
    kType == DataType::kFloat32, float,
    std::conditional_t<kType == DataType::kFloat8E4M3, uint8_t, uint16_t>>;

// Calls function.operator()<kType>(), e.g. a lambda [&]<DataType kType>(), with
// the type of a tensor, which is not e4m3.
template <typename Function>
HWY_INLINE void WithDataType(DataType type, const Function& function) {
  switch (type) {
    case DataType::kFloat32:
      return function.template operator()<DataType::kFloat32>();
    case DataType::kFloat16:
      return function.template operator()<DataType::kFloat16>();
    case DataType::kBFloat16:
      return function.template operator()<DataType::kBFloat16>();
    case DataType::kFloat8E4M3:
      break;
  }
}

template <DataType kType>
HWY_INLINE float ToFloat(Storage<kType> element) {
  if constexpr (kType == DataType::kFloat32) return element;
  if constexpr (kType == DataType::kFloat16) return HalfToFloat(element);
  if constexpr (kType == DataType::kBFloat16) return BFloat16ToFloat(element);
  if constexpr (kType == DataType::kFloat8E4M3) return Float8E4M3ToFloat(element);
}

template <DataType kType>
HWY_INLINE Storage<kType> FromFloat(float value) {
  if constexpr (kType == DataType::kFloat32) return value;
  if constexpr (kType == DataType::kFloat16) return FloatToHalf(value);
  if constexpr (kType == DataType::kBFloat16) return FloatToBFloat16(value);
}

// Highway's emulation of fp16 on older targets drops infinities and NaN.
template <DataType kType>
inline constexpr bool kVectorConvert = (kType != DataType::kFloat16 &&
                                        kType != DataType::kFloat8E4M3) ||
                                       HWY_TARGET == HWY_AVX3
                                       || HWY_TARGET == HWY_AVX2
                                       || HWY_TARGET == HWY_NEON;

template <DataType kType>
HWY_INLINE V LoadVector(const Storage<kType>* from) {
  const D d;
  if constexpr (kType == DataType::kFloat32) {
    return hn::LoadU(d, from);
  } else if constexpr (kType == DataType::kFloat16) {
    const hn::Rebind<hwy::float16_t, D> dh;
    return hn::PromoteTo(
        d, hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(from)));
  } else if constexpr (kType == DataType::kFloat8E4M3) {
    // Sign, exponent and mantissa in the places of an fp16's give the value
    // times 2^-8, subnormal or not; what would be 480 is NaN.
    const hn::Rebind<int8_t, D> d8;
    const hn::Rebind<int16_t, D> d16;
    const hn::Rebind<hwy::float16_t, D> dh;
    const auto bits =
        hn::And(hn::ShiftLeft<7>(hn::PromoteTo(
                    d16, hn::LoadU(d8, reinterpret_cast<const int8_t*>(from)))),
                hn::Set(d16, static_cast<int16_t>(0xbf80)));
    const auto magnitude = hn::Set(d16, int16_t{0x3f80});
    const auto is_nan = hn::Eq(hn::And(bits, magnitude), magnitude);
    const auto half =
        hn::Or(bits, hn::IfThenElseZero(is_nan, hn::Set(d16, int16_t{0x7e00})));
    return hn::Mul(hn::PromoteTo(d, hn::BitCast(dh, half)), hn::Set(d, 256.0f));
  } else {
    const hn::Rebind<uint16_t, D> dh;
    const hn::RebindToUnsigned<D> du;
    return hn::BitCast(
        d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(dh, from))));
  }
}

template <DataType kType>
HWY_INLINE void StoreVector(V value, Storage<kType>* to) {
  const D d;
  if constexpr (kType == DataType::kFloat32) {
    hn::StoreU(value, d, to);
  } else if constexpr (kType == DataType::kFloat16) {
    const hn::Rebind<hwy::float16_t, D> dh;
    hn::StoreU(hn::DemoteTo(dh, value), dh,
               reinterpret_cast<hwy::float16_t*>(to));
  } else {  // to nearest even, NaN quiet
    const hn::Rebind<uint16_t, D> dh;
    const hn::RebindToUnsigned<D> du;
    const hn::RebindToSigned<D> di;
    const auto bits = hn::BitCast(du, value);
    const auto high = hn::ShiftRight<16>(bits);
    const auto odd = hn::And(high, hn::Set(du, 1u));
    const auto rounded =
        hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7fffu)), odd));
    const auto quiet = hn::Or(high, hn::Set(du, 0x40u));
    const auto is_nan = hn::RebindMask(du, hn::IsNaN(value));
    // Demotion saturates from signed; both halves are below 2^16.
    hn::StoreU(hn::DemoteTo(
                   dh, hn::BitCast(di, hn::IfThenElse(is_nan, quiet, rounded))),
               dh, to);
  }
}

// to[0...count) as fp32, and zeros up to `padded`. Reads nothing but `count`
// elements.
template <DataType kType>
HWY_INLINE void LoadRow(const Storage<kType>* from, int64_t stride,
                        int64_t count, int64_t padded, float* HWY_RESTRICT to) {
  int64_t i = 0;
  if (stride == 1 && kVectorConvert<kType>) {
    for (; i + kLanes <= count; i += kLanes) {
      hn::StoreU(LoadVector<kType>(from + i), D(), to + i);
    }
  }
  for (; i < count; ++i) to[i] = ToFloat<kType>(from[i * stride]);
  for (; i < padded; ++i) to[i] = 0.0f;
}

// to[i * stride] = from[i] * factor.
template <DataType kType>
HWY_INLINE void StoreRow(const float* HWY_RESTRICT from, float factor,
                         int64_t count, Storage<kType>* to, int64_t stride) {
  int64_t i = 0;
  if (stride == 1 && kVectorConvert<kType>) {
    const D d;
    for (; i + kLanes <= count; i += kLanes) {
      StoreVector<kType>(hn::Mul(hn::LoadU(d, from + i), hn::Set(d, factor)),
                         to + i);
    }
  }
  for (; i < count; ++i) to[i * stride] = FromFloat<kType>(from[i] * factor);
}

// Tokens of one head that lie `stride` elements apart.
template <DataType kType>
struct TokenRun {
  const Storage<kType>* data;
  int64_t stride;
  int64_t count;
  // The next run if it lies elsewhere, to be fetched meanwhile; or null.
  const Storage<kType>* next = nullptr;
};

// The keys or the values of a sequence that are a tensor. What lies in pages
// has the same members (kernels/cpu/paged.cc).
template <DataType kType>
struct TensorTokens {
  static constexpr DataType kStored = kType;

  // Those of [tokens.begin, tokens.end), which is not empty, that are one run
  // from the first on.
  TokenRun<kType> Run(int64_t kv_head, KeyRange tokens) const {
    return {static_cast<const Storage<kType>*>(tensor) +
                kv_head * strides.head + tokens.begin * strides.token,
            strides.token, tokens.end - tokens.begin};
  }
  int64_t dim_stride() const { return strides.dim; }
  // Of all elements of a head.
  float Scale(int64_t kv_head) const {
    return HeadScale(scales, kv_head);
  }

  const void* tensor;
  TensorStrides strides;
  int64_t dim;          // elements of a row
  const float* scales;  // null: all 1
};

template <DataType kType>
TensorTokens<kType> KeysOf(const HeadConfig& config, const Sequence& s) {
  return {s.key, s.key_strides, config.head_dim_qk, s.key_scales};
}
template <DataType kType>
TensorTokens<kType> ValuesOf(const HeadConfig& config, const Sequence& s) {
  return {s.value, s.value_strides, config.head_dim_v, s.value_scales};
}

// A tile of key or value tokens as fp32 with dim stride 1.
struct TokenTile {
  const float* data;
  int64_t stride;  // between tokens, elements
};

// Tokens [tokens.begin, tokens.end) of one head. Converts into `scratch`
// ([tokens, padded + kLanes]: an odd number of cache lines apart, so that a
// column does not fall into few cache sets) unless fp32 rows can be used where
// they lie. With `padded` > dim, zeros follow each row.
template <typename Tokens>
HWY_INLINE TokenTile LoadTile(const Tokens& source, int64_t kv_head,
                              KeyRange tokens, int64_t padded, bool in_place,
                              float* scratch) {
  constexpr DataType kStored = Tokens::kStored;
  const int64_t stride = padded + kLanes;
  for (int64_t token = tokens.begin; token < tokens.end;) {
    const TokenRun<kStored> run = source.Run(kv_head, {token, tokens.end});
    if constexpr (kStored == DataType::kFloat32) {
      if (in_place && source.dim_stride() == 1 && padded == source.dim &&
          run.count == tokens.end - tokens.begin) {
        return {run.data, run.stride};
      }
    }
    float* to = scratch + (token - tokens.begin) * stride;
    for (int64_t t = 0; t < run.count; ++t) {
      LoadRow<kStored>(run.data + t * run.stride, source.dim_stride(),
                       source.dim, padded, to + t * stride);
    }
    token += run.count;
  }
  return {scratch, stride};
}

}  // namespace HWY_NAMESPACE
}  // namespace attention::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
