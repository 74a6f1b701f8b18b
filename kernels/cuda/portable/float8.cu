#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <optional>
#include <vector>

#include "kernels/cuda/find_entry.h"
#include "kernels/cuda/portable/element.cuh"
#include "kernels/cuda/portable/float8.h"
#include "kernels/cuda/portable/streaming.h"
#include "kernels/cuda/sequence_table.h"
#include "kernels/cuda/upload.h"

namespace attention::cuda::portable {
namespace {

// A tensor that is converted.
struct TensorCopy {
  const void* from;
  void* to;
  TensorStrides from_strides, to_strides;
  int64_t tokens;
  int32_t heads;
  int32_t dims;
  const float* scales = nullptr;  // [heads / heads_per_scale]; null: all 1
  int32_t heads_per_scale = 1;
  int64_t first_block = 0;  // thread blocks of all earlier tensors
};

struct TensorCopies {
  const TensorCopy* tensors;  // [count]
  int64_t count;
};

constexpr int kBlockTokens = 64;
constexpr int kThreads = 256;
// A lane's share of a row: a warp has the largest.
constexpr int kVector = 8;
static_assert(32 * kVector >= kMaxHeadDim);

inline __host__ __device__ int64_t BlocksPerHead(const TensorCopy& copy) {
  return (copy.tokens + kBlockTokens - 1) / kBlockTokens;
}

template <typename Vector>
__device__ bool IsAligned(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % sizeof(Vector) == 0;
}

// `count` elements: kVector, the bytes of a `Vector`, or fewer at the end of a
// row.
template <typename Vector, typename Bits>
__device__ void Load(const Bits* from, int64_t stride, int count,
                     Bits (&elements)[kVector]) {
  static_assert(sizeof(Vector) == sizeof(elements));
  if (count == kVector && stride == 1 && IsAligned<Vector>(from)) {
    const Vector vector = *reinterpret_cast<const Vector*>(from);
    memcpy(elements, &vector, sizeof(vector));
    return;
  }
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    elements[i] = i < count ? from[i * stride] : Bits{0};
  }
}

__device__ void Store(const uint32_t (&pairs)[kVector / 2], int count,
                      uint16_t* to, int64_t stride) {
  if (count == kVector && stride == 1 && IsAligned<uint4>(to)) {
    *reinterpret_cast<uint4*>(to) =
        make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    return;
  }
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    if (i < count) {
      to[i * stride] = static_cast<uint16_t>(pairs[i / 2] >> (i % 2 * 16));
    }
  }
}

// Two e4m3 elements as fp16.
__device__ uint32_t ConvertPair(const uint8_t* elements, float) {
  const auto pair = static_cast<__nv_fp8x2_storage_t>(
      elements[0] | static_cast<uint32_t>(elements[1]) << 8);
  const __half2_raw halves = __nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3);
  return halves.x | static_cast<uint32_t>(halves.y) << 16;
}

// Two fp16 elements times `scale` as bf16.
__device__ uint32_t ConvertPair(const uint16_t* elements, float scale) {
  return Element<__nv_bfloat16>::Pack(
      Element<__half>::ToFloat(elements[0]) * scale,
      Element<__half>::ToFloat(elements[1]) * scale);
}

// A block converts some tokens of one head, a warp a token at a time.
template <typename Bits, typename Vector>
__global__ void __launch_bounds__(kThreads)
    ConvertKernel(TensorCopies copies, int64_t first_block) {
  const int64_t block = first_block + blockIdx.x;
  const TensorCopy& copy = FindEntry(copies.tensors, copies.count, block,
                                     &TensorCopy::first_block);
  const int64_t head_blocks = BlocksPerHead(copy);
  const int64_t head = (block - copy.first_block) / head_blocks;
  const int64_t begin = (block - copy.first_block) % head_blocks * kBlockTokens;
  const int64_t end = min(begin + kBlockTokens, copy.tokens);
  const int column = threadIdx.x % 32 * kVector;
  const int count = min(copy.dims - column, kVector);
  if (count <= 0) return;
  const float scale = HeadScale(copy.scales, head / copy.heads_per_scale);
  const auto start = [&](const TensorStrides& strides) {
    return head * strides.head + column * strides.dim;
  };
  const Bits* const from =
      static_cast<const Bits*>(copy.from) + start(copy.from_strides);
  uint16_t* const to = static_cast<uint16_t*>(copy.to) + start(copy.to_strides);
  for (int64_t token = begin + threadIdx.x / 32; token < end;
       token += kThreads / 32) {
    Bits elements[kVector];
    Load<Vector>(from + token * copy.from_strides.token, copy.from_strides.dim,
                 count, elements);
    uint32_t pairs[kVector / 2];
#pragma unroll
    for (int i = 0; i < kVector / 2; ++i) {
      pairs[i] = ConvertPair(elements + 2 * i, scale);
    }
    Store(pairs, count, to + token * copy.to_strides.token,
          copy.to_strides.dim);
  }
}

template <typename Bits, typename Vector>
cudaError_t ConvertAll(const TensorCopies& copies, int64_t blocks,
                       cudaStream_t stream) {
  cudaError_t error = cudaSuccess;
  LaunchBlocks(blocks, [&](int64_t first_block, unsigned count) {
    if (error != cudaSuccess) return;
    ConvertKernel<Bits, Vector>
        <<<count, kThreads, 0, stream>>>(copies, first_block);
    error = cudaGetLastError();
  });
  return error;
}

// Elements from one converted row to the next, so that all can be read in
// vectors.
int64_t RowElements(int32_t dims) {
  return (dims + kVector - 1) / kVector * kVector;
}

enum Input { kQuery, kKey, kValue, kInputCount };

// The scale of queries times that of keys, if it is the same for all heads.
std::optional<double> SharedScale(const HeadConfig& config, const Sequence& s) {
  const int64_t group = config.query_head_count / config.kv_head_count;
  const auto of_head = [&](int64_t head) {
    return double{HeadScale(s.query_scales, head)} *
           HeadScale(s.key_scales, head / group);
  };
  const double first = of_head(0);
  for (int64_t head = 1; head < config.query_head_count; ++head) {
    if (of_head(head) != first) return std::nullopt;
  }
  return first;
}

// The scales of sequences, one behind the other. Sequences of one request share
// theirs.
class ScaleStage {
 public:
  // Only counts if `host` is null.
  ScaleStage(bool folds, float* host, const float* device)
      : folds_(folds), host_(host), device_(device) {}

  // Where the device will find them; null if `scales` is.
  const float* Add(Input input, const float* scales, int64_t heads) {
    if (scales == nullptr) return nullptr;
    if (from_[input] != scales) {
      from_[input] = scales;
      if (host_ != nullptr) {
        std::copy_n(scales, heads, host_ + count_);
        to_[input] = device_ + count_;
      }
      count_ += heads;
    }
    return to_[input];
  }

  // Those of all inputs.
  void Add(const HeadConfig& config, Sequence& s) {
    if (folds_) Fold(config, s);
    s.query_scales = Add(kQuery, s.query_scales, config.query_head_count);
    s.key_scales = Add(kKey, s.key_scales, config.kv_head_count);
    s.value_scales = Add(kValue, s.value_scales, config.kv_head_count);
  }

  int64_t count() const { return count_; }

 private:
  static void Fold(const HeadConfig& config, Sequence& s) {
    const std::optional<double> shared = SharedScale(config, s);
    if (!shared.has_value()) return;
    s.scale *= *shared;
    s.query_scales = s.key_scales = nullptr;
  }

  const bool folds_;
  float* const host_;
  const float* const device_;
  int64_t count_ = 0;
  const float* from_[kInputCount] = {};  // of the last sequence
  const float* to_[kInputCount] = {};
};

// How scratch memory is used: the copies of inputs and of outputs and the
// scales, which are uploaded; on the device the converted tensors; what the
// kernels for fp16 need.
struct Layout {
  int64_t sequences = 0;  // with queries
  size_t copy_bytes = 0;
  size_t upload_bytes = 0;
  size_t tensor_bytes = 0;

  Layout(const AttentionParams& params, bool folds_scales) {
    const HeadConfig& c = params.config;
    const int64_t row = RowElements(c.head_dim_qk) + RowElements(c.head_dim_v);
    int64_t elements = 0;
    ScaleStage scales(folds_scales, nullptr, nullptr);
    for (int64_t i = 0; i < params.sequence_count; ++i) {
      Sequence s = params.sequences[i];
      if (s.query_length == 0) continue;
      ++sequences;
      elements += (s.query_length * c.query_head_count +
                   s.key_length * c.kv_head_count) *
                  row;
      scales.Add(c, s);
    }
    copy_bytes = sequences * (kInputCount + 1) * sizeof(TensorCopy);
    upload_bytes = copy_bytes + scales.count() * sizeof(float);
    tensor_bytes = AlignScratch(elements * sizeof(uint16_t));
  }
};

// Lists the copies of one kind.
class CopyList {
 public:
  explicit CopyList(TensorCopy* tensors) : tensors_(tensors) {}

  void Add(TensorCopy copy) {
    copy.first_block = blocks_;
    tensors_[count_++] = copy;
    blocks_ += copy.heads * BlocksPerHead(copy);
  }
  TensorCopies copies(const TensorCopy* on_device) const {
    return {on_device, count_};
  }
  int64_t blocks() const { return blocks_; }

 private:
  TensorCopy* tensors_;
  int64_t count_ = 0;
  int64_t blocks_ = 0;
};

// Turns sequences into sequences of fp16 and the copies that these need.
class Converter {
 public:
  Converter(const HeadConfig& config, uint16_t* memory, CopyList& inputs,
            CopyList& outputs)
      : config_(config), memory_(memory), inputs_(inputs), outputs_(outputs) {}

  // The scales of `s` are on the device.
  Sequence Convert(const Sequence& s) {
    const HeadConfig& c = config_;
    Sequence half = s;
    half.query =
        ConvertInput(s.query, s.query_strides, s.query_length,
                     c.query_head_count, c.head_dim_qk, &half.query_strides);
    half.key = ConvertInput(s.key, s.key_strides, s.key_length, c.kv_head_count,
                            c.head_dim_qk, &half.key_strides);
    half.value =
        ConvertInput(s.value, s.value_strides, s.key_length, c.kv_head_count,
                     c.head_dim_v, &half.value_strides);
    half.output = Take(s.query_length, c.query_head_count, c.head_dim_v,
                       &half.output_strides);
    outputs_.Add({.from = half.output,
                  .to = s.output,
                  .from_strides = half.output_strides,
                  .to_strides = s.output_strides,
                  .tokens = s.query_length,
                  .heads = c.query_head_count,
                  .dims = c.head_dim_v,
                  .scales = s.value_scales,
                  .heads_per_scale = c.query_head_count / c.kv_head_count});
    half.value_scales = nullptr;
    return half;
  }

 private:
  // Memory of a converted tensor, [heads, tokens, RowElements(dims)].
  uint16_t* Take(int64_t tokens, int64_t heads, int32_t dims,
                 TensorStrides* strides) {
    uint16_t* const taken = memory_;
    *strides = {.token = RowElements(dims), .head = tokens * RowElements(dims)};
    memory_ += heads * strides->head;
    return taken;
  }

  const void* ConvertInput(const void* data, const TensorStrides& strides,
                           int64_t tokens, int32_t heads, int32_t dims,
                           TensorStrides* converted_strides) {
    uint16_t* const to = Take(tokens, heads, dims, converted_strides);
    inputs_.Add({.from = data,
                 .to = to,
                 .from_strides = strides,
                 .to_strides = *converted_strides,
                 .tokens = tokens,
                 .heads = heads,
                 .dims = dims});
    return to;
  }

  const HeadConfig& config_;
  uint16_t* memory_;
  CopyList& inputs_;
  CopyList& outputs_;
};

AttentionParams HalfParams(const AttentionParams& params,
                           const Sequence* sequences, int64_t count) {
  HeadConfig config = params.config;
  config.data_type = DataType::kFloat16;
  return {config, sequences, count};
}

}  // namespace

ScratchBytes Float8ScratchSize(const AttentionParams& params,
                               const HalfKernels& kernels) {
  const Layout layout(params, kernels.folds_scales);
  std::vector<Sequence> sequences;
  std::copy_if(params.sequences, params.sequences + params.sequence_count,
               std::back_inserter(sequences),
               [](const Sequence& s) { return s.query_length > 0; });
  const ScratchBytes half = kernels.scratch_size(
      HalfParams(params, sequences.data(), layout.sequences));
  const size_t upload = AlignScratch(layout.upload_bytes);
  return {.host_bytes = upload + half.host_bytes,
          .device_bytes = upload + layout.tensor_bytes + half.device_bytes};
}

cudaError_t LaunchFloat8(const AttentionParams& params, const Scratch& scratch,
                         cudaStream_t stream, const HalfKernels& kernels) {
  const Layout layout(params, kernels.folds_scales);
  if (layout.sequences == 0) return cudaSuccess;
  const size_t upload = AlignScratch(layout.upload_bytes);
  auto* const host = static_cast<std::byte*>(scratch.host);
  auto* const device = static_cast<std::byte*>(scratch.device);
  auto* const copies = reinterpret_cast<TensorCopy*>(host);
  CopyList inputs(copies);
  CopyList outputs(copies + kInputCount * layout.sequences);
  ScaleStage scales(
      kernels.folds_scales, reinterpret_cast<float*>(host + layout.copy_bytes),
      reinterpret_cast<const float*>(device + layout.copy_bytes));
  Converter converter(params.config,
                      reinterpret_cast<uint16_t*>(device + upload), inputs,
                      outputs);
  std::vector<Sequence> sequences;
  sequences.reserve(layout.sequences);
  for (int64_t i = 0; i < params.sequence_count; ++i) {
    Sequence s = params.sequences[i];
    if (s.query_length == 0) continue;
    scales.Add(params.config, s);
    sequences.push_back(converter.Convert(s));
  }

  cudaError_t error = Upload(host, device, upload, stream);
  if (error != cudaSuccess) return error;
  const auto* const on_device = reinterpret_cast<const TensorCopy*>(device);
  error = ConvertAll<uint8_t, uint2>(inputs.copies(on_device), inputs.blocks(),
                                     stream);
  if (error != cudaSuccess) return error;
  const Scratch rest = {.host = host + upload,
                        .device = device + upload + layout.tensor_bytes};
  error = kernels.launch(
      HalfParams(params, sequences.data(), layout.sequences), rest, stream);
  if (error != cudaSuccess) return error;
  return ConvertAll<uint16_t, uint4>(
      outputs.copies(on_device + kInputCount * layout.sequences),
      outputs.blocks(), stream);
}

}  // namespace attention::cuda::portable
