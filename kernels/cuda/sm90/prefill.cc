#include "kernels/cuda/sm90/prefill.h"

#include <algorithm>
#include <cfloat>
#include <cstdint>
#include <vector>

#include "kernels/cuda/overlapping_launch.h"
#include "kernels/cuda/sm90/counters.h"
#include "kernels/cuda/sm90/kernels.h"
#include "kernels/cuda/sm90/merge.h"
#include "kernels/cuda/sm90/run_builder.h"
#include "kernels/cuda/sm90/shape.h"
#include "kernels/cuda/sm90/tensor_map.h"
#include "kernels/cuda/sm90/work_list.h"
#include "kernels/cuda/upload.h"

namespace attention::cuda::sm90 {
namespace {

// Calls f(kernel, part) for the sequences of each kernel.
template <typename Function>
void ForEachKernel(const AttentionParams& params, Function f) {
  std::vector<const PrefillKernel*> kernels;  // of each sequence
  std::vector<const PrefillKernel*> distinct;
  for (int64_t i = 0; i < params.sequence_count; ++i) {
    kernels.push_back(KernelFor(params.config, params.sequences[i]));
    if (kernels.back() != nullptr &&
        std::find(distinct.begin(), distinct.end(), kernels.back()) ==
            distinct.end()) {
      distinct.push_back(kernels.back());
    }
  }
  if (distinct.size() == 1) {
    f(*distinct[0], params);
    return;
  }
  for (const PrefillKernel* kernel : distinct) {
    std::vector<Sequence> sequences;
    for (int64_t i = 0; i < params.sequence_count; ++i) {
      if (kernels[i] == kernel) sequences.push_back(params.sequences[i]);
    }
    f(*kernel, AttentionParams{params.config, sequences.data(),
                               static_cast<int64_t>(sequences.size())});
  }
}

double Factor(const Sequence& s) {
  constexpr double kLog2E = 1.4426950408889634074;
  return s.scale * kLog2E;
}

// With the scales of a head's queries and keys.
double HeadFactor(const HeadConfig& config, const Sequence& s, int64_t head) {
  const int64_t group = config.query_head_count / config.kv_head_count;
  return Factor(s) * HeadScale(s.query_scales, head) *
         HeadScale(s.key_scales, head / group);
}

bool HasScales(const HeadConfig& config) {
  return config.data_type == DataType::kFloat8E4M3;
}

// See PrefillSequence::first_scale. Sequence i has none of its own where the
// one before has the same.
int64_t ScaleCount(const AttentionParams& params, int64_t i) {
  const HeadConfig& config = params.config;
  if (!HasScales(config)) return 0;
  const Sequence& s = params.sequences[i];
  const Sequence* const before = i == 0 ? nullptr : &s - 1;
  const bool is_same = before != nullptr && before->scale == s.scale &&
                       before->query_scales == s.query_scales &&
                       before->key_scales == s.key_scales &&
                       before->value_scales == s.value_scales;
  return is_same ? 0 : config.query_head_count + config.kv_head_count;
}
void DescribeScales(const HeadConfig& config, const Sequence& s, float* out) {
  for (int64_t head = 0; head < config.query_head_count; ++head) {
    *out++ = static_cast<float>(HeadFactor(config, s, head));
  }
  for (int64_t head = 0; head < config.kv_head_count; ++head) {
    *out++ = HeadScale(s.value_scales, head);
  }
}

// What a launch needs.
struct Sizes {
  int64_t runs = 0;
  int64_t partials = 0;
  int64_t scales = 0;
  bool is_inline = false;
  size_t sequence_bytes = 0;  // of the uploaded list
  size_t run_bytes = 0;
  size_t list_bytes = 0;  // of both, and scales
  size_t partial_bytes = 0;

  Sizes(const Shape& shape, const AttentionParams& params) {
    for (int64_t i = 0; i < params.sequence_count; ++i) {
      runs += shape.Runs(params.sequences[i]);
      partials += shape.Partials(params.sequences[i]);
      scales += ScaleCount(params, i);
    }
    is_inline = params.sequence_count <= WorkList::kMaxInlineSequences &&
                runs <= WorkList::kMaxInlineRuns &&
                scales <= WorkList::kMaxInlineScales;
    if (!is_inline) {
      sequence_bytes =
          AlignScratch(params.sequence_count * sizeof(PrefillSequence));
      run_bytes = AlignScratch(runs * sizeof(TileRun));
      list_bytes =
          sequence_bytes + run_bytes + AlignScratch(scales * sizeof(float));
    }
    partial_bytes = AlignScratch(partials * shape.PartialBytes());
  }
};

cudaError_t MakeMaps(const Shape& shape, const Sequence& s,
                     PrefillSequence* out) {
  const HeadConfig& c = shape.config;
  const int group = 1 << shape.shift;
  const int32_t panel = 128 / static_cast<int32_t>(ElementBytes(c.data_type));
  const auto keys_map = [&](const void* data, const TensorStrides& strides,
                            int32_t dims, CUtensorMap* map) {
    const MapDimension dimensions[] = {
        {dims, 1, panel},
        {s.key_length, strides.token, shape.kernel.box_keys},
        {c.kv_head_count, strides.head, 1}};
    return MakeTensorMap(c.data_type, c.precision, data, dimensions, 3, map);
  };
  const MapDimension query[] = {
      {c.head_dim_qk, 1, panel},
      {group, s.query_strides.head, group},
      {s.query_length, s.query_strides.token,
       shape.kernel.query_box_rows / group},
      {shape.Heads(), s.query_strides.head * group, 1}};
  cudaError_t error =
      MakeTensorMap(c.data_type, c.precision, s.query, query, 4, &out->query);
  if (error == cudaSuccess) {
    error = keys_map(s.key, s.key_strides, c.head_dim_qk, &out->key);
  }
  if (error == cudaSuccess) {
    error = keys_map(s.value, s.value_strides, c.head_dim_v, &out->value);
  }
  return error;
}

// Whether the maps of the two differ in addresses alone.
bool HaveLikeMaps(const Sequence& a, const Sequence& b) {
  return a.query_length == b.query_length && a.key_length == b.key_length &&
         a.query_strides == b.query_strides && a.key_strides == b.key_strides &&
         a.value_strides == b.value_strides;
}

cudaError_t MakeMapsLike(const PrefillSequence& like, const Sequence& s,
                         PrefillSequence* out) {
  cudaError_t error = MakeTensorMapLike(like.query, s.query, &out->query);
  if (error == cudaSuccess) {
    error = MakeTensorMapLike(like.key, s.key, &out->key);
  }
  if (error == cudaSuccess) {
    error = MakeTensorMapLike(like.value, s.value, &out->value);
  }
  return error;
}

// All but the maps, and where partial results and scales are.
void DescribeSequence(const Shape& shape, const Sequence& s,
                      PrefillSequence* out) {
  const MaskBand band = MakeMaskBand(shape.config.mask, s);
  const auto bound = [](int64_t distance) {
    return static_cast<int32_t>(std::clamp<int64_t>(
        distance, -int64_t{kMaxLength}, int64_t{kMaxLength}));
  };
  out->lower = bound(band.lower);
  out->upper = bound(band.upper);
  out->key_end = static_cast<int32_t>(s.key_length);
  out->output = s.output;
  out->output_token_stride = s.output_strides.token;
  out->output_head_stride = s.output_strides.head;
  out->log_sum_exp = s.log_sum_exp;
  out->log_sum_exp_token_stride = s.log_sum_exp_token_stride;
  out->log_sum_exp_head_stride = s.log_sum_exp_head_stride;
  out->rows = static_cast<int32_t>(shape.Rows(s));
  out->factor = static_cast<float>(Factor(s));
  out->chunk_steps = static_cast<int32_t>(shape.ChunkSteps(s));
  out->chunk_count = static_cast<int32_t>(shape.ChunkCount(s));
  out->heads = static_cast<int32_t>(shape.Heads());
}

// The multiprocessors of the current device; prepares the kernel for it. A
// thread mostly launches the same again.
cudaError_t Prepare(const PrefillKernel& kernel, int* multiprocessors) {
  struct Prepared {
    int device = -1;
    const PrefillKernel* kernel = nullptr;
    int multiprocessors = 0;
  };
  static thread_local Prepared last;
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  if (last.device != device || last.kernel != &kernel) {
    last.device = -1;
    error = cudaDeviceGetAttribute(&last.multiprocessors,
                                   cudaDevAttrMultiProcessorCount, device);
    if (error != cudaSuccess) return error;
    error = cudaFuncSetAttribute(
        reinterpret_cast<const void*>(kernel.function),
        cudaFuncAttributeMaxDynamicSharedMemorySize, kernel.shared_bytes);
    if (error != cudaSuccess) return error;
    last.device = device;
    last.kernel = &kernel;
  }
  *multiprocessors = last.multiprocessors;
  return cudaSuccess;
}

// The launch of one kernel.
cudaError_t LaunchKernel(const Shape& shape, const Sizes& sizes,
                         const AttentionParams& params, const Scratch& scratch,
                         cudaStream_t stream) {
  // First: tensor maps cannot be made before the thread has a context.
  int multiprocessors = 0;
  cudaError_t error = Prepare(shape.kernel, &multiprocessors);
  if (error != cudaSuccess) return error;
  auto* const host = static_cast<uint8_t*>(scratch.host);
  auto* const device = static_cast<uint8_t*>(scratch.device);
  WorkList list;
  list.sequences = nullptr;
  list.runs = nullptr;
  list.scales = nullptr;
  PrefillSequence* sequences = list.inlined_sequences;
  TileRun* runs = list.inlined_runs;
  float* scales = list.inlined_scales;
  if (!sizes.is_inline) {
    sequences = reinterpret_cast<PrefillSequence*>(host);
    runs = reinterpret_cast<TileRun*>(host + sizes.sequence_bytes);
    list.sequences = reinterpret_cast<const PrefillSequence*>(device);
    list.runs =
        reinterpret_cast<const TileRun*>(device + sizes.sequence_bytes);
    const size_t before_scales = sizes.sequence_bytes + sizes.run_bytes;
    scales = reinterpret_cast<float*>(host + before_scales);
    list.scales = reinterpret_cast<const float*>(device + before_scales);
  }

  // All outputs, then all log-sum-exps.
  auto* partial_output = reinterpret_cast<float*>(device + sizes.list_bytes);
  float* partial_log_sum_exp =
      partial_output + sizes.partials * params.config.head_dim_v;
  int64_t merges = 0;
  int64_t first_scale = 0;
  int64_t scale_count = 0;
  for (int64_t i = 0; i < params.sequence_count; ++i) {
    const Sequence& s = params.sequences[i];
    PrefillSequence& sequence = sequences[i];
    DescribeSequence(shape, s, &sequence);
    error = i > 0 && HaveLikeMaps(params.sequences[i - 1], s)
                ? MakeMapsLike(sequences[i - 1], s, &sequence)
                : MakeMaps(shape, s, &sequence);
    if (error != cudaSuccess) return error;
    sequence.partial_output = partial_output;
    sequence.partial_log_sum_exp = partial_log_sum_exp;
    sequence.first_merge = static_cast<int32_t>(merges);
    const int64_t count = ScaleCount(params, i);
    if (count > 0) {
      DescribeScales(params.config, s, scales + scale_count);
      first_scale = scale_count;
      scale_count += count;
    }
    sequence.first_scale = first_scale;
    const int64_t partials = shape.Partials(s);
    partial_output += partials * params.config.head_dim_v;
    partial_log_sum_exp += partials;
    if (partials > 0) merges += shape.Heads() * shape.Rows(s);
  }
  list.tile_count = static_cast<int32_t>(
      RunBuilder(shape, params).Build(multiprocessors, runs));
  list.run_count = static_cast<int32_t>(sizes.runs);
  list.group_shift = shape.shift;
  list.heads_per_kv =
      static_cast<int32_t>(shape.Heads() / params.config.kv_head_count);
  list.value_dims = params.config.head_dim_v;
  list.sequence_count = static_cast<int32_t>(params.sequence_count);
  list.merge_count = static_cast<int32_t>(merges);
  if (list.tile_count == 0) return cudaSuccess;

  if (!sizes.is_inline) {
    error = Upload(host, device, sizes.list_bytes, stream);
    if (error != cudaSuccess) return error;
  }
  error = NextCounter(&list.counter);
  if (error != cudaSuccess) return error;
  void* arguments[] = {&list};
  error = LaunchOverlapping(
      reinterpret_cast<const void*>(shape.kernel.function),
      std::min(list.tile_count, multiprocessors), shape.kernel.threads,
      shape.kernel.shared_bytes, stream, arguments);
  if (error != cudaSuccess || list.merge_count == 0) return error;
  return LaunchMerge(params.config.data_type, list, stream);
}

// Whether scores stay finite in fp32, and factors too.
bool HasUsualFactors(const HeadConfig& config, const Sequence& s) {
  constexpr double kLargestFactor = 1e30;
  const auto is_usual = [](double factor) {
    return factor >= FLT_MIN && factor <= kLargestFactor;
  };
  if (!HasScales(config)) return is_usual(Factor(s));
  for (int64_t head = 0; head < config.query_head_count; ++head) {
    if (!is_usual(HeadFactor(config, s, head))) return false;
  }
  return true;
}

}  // namespace

bool CanCompute(const HeadConfig& config, const Sequence& s) {
  if (KernelFor(config, s) == nullptr || s.query_length <= 0 ||
      s.key_length <= 0) {
    return false;
  }
  // Tensor copies move whole units of 16 bytes, the last of a row too.
  const int64_t unit = 16 / ElementBytes(config.data_type);
  if (config.head_dim_qk % unit != 0 || config.head_dim_v % unit != 0) {
    return false;
  }
  if (!HasUsualFactors(config, s)) return false;
  if (!HasScales(config) &&
      (s.query_scales != nullptr || s.key_scales != nullptr)) {
    return false;
  }
  const DataType type = config.data_type;
  return s.query_length < kMaxLength >> GroupShift(config) &&
         s.key_length < kMaxLength &&
         CanBeMapped(s.query, s.query_strides, s.query_length,
                     config.query_head_count, type) &&
         CanBeMapped(s.output, s.output_strides, s.query_length,
                     config.query_head_count, OutputType(type)) &&
         CanBeMapped(s.key, s.key_strides, s.key_length, config.kv_head_count,
                     type) &&
         CanBeMapped(s.value, s.value_strides, s.key_length,
                     config.kv_head_count, type);
}

cudaError_t IsSupported(bool* is) {
  *is = false;
  int device = 0, major = 0, minor = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor,
                                   device);
  }
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor,
                                   device);
  }
  *is = error == cudaSuccess && major == 9 && minor == 0;
  return error;
}

ScratchBytes ScratchSize(const AttentionParams& params) {
  ScratchBytes bytes;
  ForEachKernel(params, [&](const PrefillKernel& kernel,
                            const AttentionParams& part) {
    const Sizes sizes(Shape(part.config, kernel), part);
    bytes.host_bytes += sizes.list_bytes;
    bytes.device_bytes += sizes.list_bytes + sizes.partial_bytes;
  });
  return bytes;
}

cudaError_t Launch(const AttentionParams& params, const Scratch& scratch,
                   cudaStream_t stream) {
  cudaError_t error = cudaSuccess;
  auto* host = static_cast<uint8_t*>(scratch.host);
  auto* device = static_cast<uint8_t*>(scratch.device);
  ForEachKernel(params, [&](const PrefillKernel& kernel,
                            const AttentionParams& part) {
    if (error != cudaSuccess) return;
    const Shape shape(part.config, kernel);
    const Sizes sizes(shape, part);
    error = LaunchKernel(shape, sizes, part, {host, device}, stream);
    host += sizes.list_bytes;
    device += sizes.list_bytes + sizes.partial_bytes;
  });
  return error;
}

}  // namespace attention::cuda::sm90
