#include "kernels/cuda/portable/float8.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/cuda/portable/element.cuh"
#include "kernels/cuda/portable/streaming.h"

namespace attention::cuda::portable {
namespace {

// One head of a tensor that is converted.
struct HeadCopy {
  const void* from;
  void* to;
  int64_t from_token_stride, from_dim_stride;  // elements
  int64_t to_token_stride, to_dim_stride;
  int64_t tokens;
  int32_t dims;
  float scale = 1;          // of outputs
  int64_t first_block = 0;  // thread blocks of all earlier heads
};

struct HeadCopies {
  const HeadCopy* heads;  // [count]
  int64_t count;
};

constexpr int kBlockTokens = 64;
constexpr int kThreads = 256;
// A lane's share of a row: a warp has the largest.
constexpr int kVector = 8;
static_assert(32 * kVector >= kMaxHeadDim);

__device__ const HeadCopy& Find(const HeadCopies& copies, int64_t block) {
  int64_t low = 0;
  int64_t high = copies.count - 1;
  while (low < high) {  // the last head with first_block <= block
    const int64_t middle = (low + high + 1) / 2;
    if (copies.heads[middle].first_block <= block) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return copies.heads[low];
}

template <typename Vector>
__device__ bool IsAligned(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % sizeof(Vector) == 0;
}

// `count` elements (kVector, or fewer at the end of a row), of which `Vector` is
// the whole.
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
    ConvertKernel(HeadCopies copies, int64_t first_block) {
  const int64_t block = first_block + blockIdx.x;
  const HeadCopy& head = Find(copies, block);
  const int64_t begin = (block - head.first_block) * kBlockTokens;
  const int64_t end = min(begin + kBlockTokens, head.tokens);
  const int column = threadIdx.x % 32 * kVector;
  const int count = min(head.dims - column, kVector);
  if (count <= 0) return;
  const Bits* const from = static_cast<const Bits*>(head.from) +
                           column * head.from_dim_stride;
  uint16_t* const to =
      static_cast<uint16_t*>(head.to) + column * head.to_dim_stride;
  for (int64_t token = begin + threadIdx.x / 32; token < end;
       token += kThreads / 32) {
    Bits elements[kVector];
    Load<Vector>(from + token * head.from_token_stride, head.from_dim_stride,
                 count, elements);
    uint32_t pairs[kVector / 2];
#pragma unroll
    for (int i = 0; i < kVector / 2; ++i) {
      pairs[i] = ConvertPair(elements + 2 * i, head.scale);
    }
    Store(pairs, count, to + token * head.to_token_stride, head.to_dim_stride);
  }
}

template <typename Bits, typename Vector>
cudaError_t Convert(const HeadCopies& copies, int64_t blocks,
                    cudaStream_t stream) {
  constexpr int64_t kMaxGrid = (int64_t{1} << 31) - 1;
  for (int64_t first = 0; first < blocks; first += kMaxGrid) {
    ConvertKernel<Bits, Vector>
        <<<static_cast<unsigned>(std::min(kMaxGrid, blocks - first)), kThreads,
           0, stream>>>(copies, first);
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}

// Elements from one converted row to the next: every row can be read in vectors.
int64_t RowElements(int32_t dims) {
  return (dims + kVector - 1) / kVector * kVector;
}

// How scratch memory is used, both in host and device memory unless said
// otherwise: the copies of inputs and of outputs, the converted tensors (device
// only), and what the kernels for fp16 need.
struct Layout {
  int64_t sequences = 0;   // with queries
  int64_t input_heads = 0;  // that are converted
  int64_t output_heads = 0;
  size_t copy_bytes = 0;
  size_t tensor_bytes = 0;

  explicit Layout(const AttentionParams& params) {
    const HeadConfig& c = params.config;
    int64_t elements = 0;
    for (int64_t i = 0; i < params.sequence_count; ++i) {
      const Sequence& s = params.sequences[i];
      if (s.query_length == 0) continue;
      ++sequences;
      const int64_t row = RowElements(c.head_dim_qk) + RowElements(c.head_dim_v);
      elements += (s.query_length * c.query_head_count +
                   s.key_length * c.kv_head_count) *
                  row;
    }
    output_heads = sequences * c.query_head_count;
    input_heads = output_heads + 2 * sequences * c.kv_head_count;
    copy_bytes = Aligned((input_heads + output_heads) * sizeof(HeadCopy));
    tensor_bytes = Aligned(elements * sizeof(uint16_t));
  }

  static size_t Aligned(size_t bytes) {
    constexpr size_t kAlignment = 256;
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
};

// Lists the copies of one kind.
class CopyList {
 public:
  explicit CopyList(HeadCopy* heads) : heads_(heads) {}

  void Add(HeadCopy head) {
    head.first_block = blocks_;
    heads_[count_++] = head;
    blocks_ += (head.tokens + kBlockTokens - 1) / kBlockTokens;
  }
  HeadCopies copies(const HeadCopy* on_device) const {
    return {on_device, count_};
  }
  int64_t blocks() const { return blocks_; }

 private:
  HeadCopy* heads_;
  int64_t count_ = 0;
  int64_t blocks_ = 0;
};

// A converted tensor, [heads, tokens, RowElements(dims)].
struct HalfTensor {
  uint16_t* data;
  int64_t tokens;
  int32_t dims;

  TensorStrides strides() const { return {.token = RowElements(dims)}; }
  uint16_t* Head(int64_t head) const {
    return data + head * tokens * RowElements(dims);
  }
};

float ScaleOf(const float* scales, int64_t head) {
  return scales == nullptr ? 1.0f : scales[head];
}

// Turns sequences into the copies and the sequences of single heads.
class Planner {
 public:
  Planner(const HeadConfig& config, CopyList& inputs, CopyList& outputs,
          uint16_t* memory, std::vector<Sequence>& heads)
      : config_(config),
        inputs_(inputs),
        outputs_(outputs),
        memory_(memory),
        heads_(heads) {}

  void Add(const Sequence& s) {
    const HeadConfig& c = config_;
    const HalfTensor query =
        TakeInput(s.query, s.query_strides, s.query_length, c.query_head_count,
                  c.head_dim_qk);
    const HalfTensor key = TakeInput(s.key, s.key_strides, s.key_length,
                                     c.kv_head_count, c.head_dim_qk);
    const HalfTensor value = TakeInput(s.value, s.value_strides, s.key_length,
                                       c.kv_head_count, c.head_dim_v);
    const HalfTensor output =
        Take(s.query_length, c.query_head_count, c.head_dim_v);
    for (int64_t h = 0; h < c.query_head_count; ++h) {
      const int64_t kv_head = h / (c.query_head_count / c.kv_head_count);
      Sequence head = s;
      head.query = query.Head(h);
      head.key = key.Head(kv_head);
      head.value = value.Head(kv_head);
      head.output = output.Head(h);
      if (s.log_sum_exp != nullptr) {
        head.log_sum_exp = s.log_sum_exp + h * s.log_sum_exp_head_stride;
      }
      head.query_strides = query.strides();
      head.key_strides = key.strides();
      head.value_strides = value.strides();
      head.output_strides = output.strides();
      head.scale = s.scale * ScaleOf(s.query_scales, h) *
                   ScaleOf(s.key_scales, kv_head);
      head.query_scales = head.key_scales = head.value_scales = nullptr;
      heads_.push_back(head);
      outputs_.Add({.from = output.Head(h),
                    .to = static_cast<uint16_t*>(s.output) +
                          h * s.output_strides.head,
                    .from_token_stride = output.strides().token,
                    .from_dim_stride = 1,
                    .to_token_stride = s.output_strides.token,
                    .to_dim_stride = s.output_strides.dim,
                    .tokens = s.query_length,
                    .dims = c.head_dim_v,
                    .scale = ScaleOf(s.value_scales, kv_head)});
    }
  }

 private:
  HalfTensor Take(int64_t tokens, int64_t heads, int32_t dims) {
    const HalfTensor tensor = {memory_, tokens, dims};
    memory_ += tokens * heads * RowElements(dims);
    return tensor;
  }

  HalfTensor TakeInput(const void* data, const TensorStrides& strides,
                       int64_t tokens, int64_t heads, int32_t dims) {
    const HalfTensor tensor = Take(tokens, heads, dims);
    for (int64_t h = 0; h < heads; ++h) {
      inputs_.Add({.from = static_cast<const uint8_t*>(data) + h * strides.head,
                   .to = tensor.Head(h),
                   .from_token_stride = strides.token,
                   .from_dim_stride = strides.dim,
                   .to_token_stride = tensor.strides().token,
                   .to_dim_stride = 1,
                   .tokens = tokens,
                   .dims = dims});
    }
    return tensor;
  }

  const HeadConfig& config_;
  CopyList& inputs_;
  CopyList& outputs_;
  uint16_t* memory_;
  std::vector<Sequence>& heads_;
};

// The heads are sequences of one head.
AttentionParams HalfParams(const AttentionParams& params,
                           const Sequence* heads, int64_t count) {
  HeadConfig config = params.config;
  config.data_type = DataType::kFloat16;
  config.query_head_count = config.kv_head_count = 1;
  return {config, heads, count};
}

}  // namespace

ScratchBytes Float8ScratchSize(const AttentionParams& params) {
  const Layout layout(params);
  const ScratchBytes half =
      ScratchSize(HalfParams(params, nullptr, layout.output_heads));
  return {.host_bytes = layout.copy_bytes + half.host_bytes,
          .device_bytes =
              layout.copy_bytes + layout.tensor_bytes + half.device_bytes};
}

cudaError_t LaunchFloat8(const AttentionParams& params, const Scratch& scratch,
                         cudaStream_t stream, const DeviceLimits& limits) {
  const Layout layout(params);
  if (layout.output_heads == 0) return cudaSuccess;
  auto* const host = static_cast<std::byte*>(scratch.host);
  auto* const device = static_cast<std::byte*>(scratch.device);
  auto* const copies = reinterpret_cast<HeadCopy*>(host);
  CopyList inputs(copies);
  CopyList outputs(copies + layout.input_heads);
  std::vector<Sequence> heads;
  heads.reserve(layout.output_heads);
  Planner planner(params.config, inputs, outputs,
                  reinterpret_cast<uint16_t*>(device + layout.copy_bytes),
                  heads);
  for (int64_t i = 0; i < params.sequence_count; ++i) {
    if (params.sequences[i].query_length > 0) planner.Add(params.sequences[i]);
  }

  cudaError_t error =
      cudaMemcpyAsync(device, host,
                      (layout.input_heads + layout.output_heads) *
                          sizeof(HeadCopy),
                      cudaMemcpyHostToDevice, stream);
  if (error != cudaSuccess) return error;
  const auto* const on_device = reinterpret_cast<const HeadCopy*>(device);
  error = Convert<uint8_t, uint2>(inputs.copies(on_device), inputs.blocks(),
                                  stream);
  if (error != cudaSuccess) return error;
  const Scratch rest = {
      .host = host + layout.copy_bytes,
      .device = device + layout.copy_bytes + layout.tensor_bytes};
  error = Launch(HalfParams(params, heads.data(), layout.output_heads), rest,
                 stream, limits);
  if (error != cudaSuccess) return error;
  return Convert<uint16_t, uint4>(
      outputs.copies(on_device + layout.input_heads), outputs.blocks(), stream);
}

}  // namespace attention::cuda::portable
