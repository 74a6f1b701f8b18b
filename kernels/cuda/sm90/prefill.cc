#include "kernels/cuda/sm90/prefill.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cfloat>
#include <cstdlib>
#include <initializer_list>
#include <vector>

#include "kernels/cuda/cut_alignment.h"
#include "kernels/cuda/sm90/counters.h"
#include "kernels/cuda/sm90/kernels.h"
#include "kernels/cuda/sm90/tensor_map.h"
#include "kernels/cuda/sm90/work_list.h"

namespace attention::cuda::sm90 {
namespace {

using Candidates = std::initializer_list<const PrefillKernel*>;

// The first whose dimensions suffice. Null for types without kernels.
const PrefillKernel* KernelFor(const HeadConfig& config) {
  if (config.query_head_count == 0) return nullptr;
  static constexpr Candidates kHalf = {&kHalf64,      &kHalf96,  &kHalf128,
                                       &kHalf192x128, &kHalf192, &kHalf256};
  static constexpr Candidates kBFloat = {
      &kBFloat64,      &kBFloat96,  &kBFloat128,
      &kBFloat192x128, &kBFloat192, &kBFloat256};
  const Candidates* candidates = nullptr;
  if (config.data_type == DataType::kFloat16) candidates = &kHalf;
  if (config.data_type == DataType::kBFloat16) candidates = &kBFloat;
  if (candidates == nullptr) return nullptr;
  for (const PrefillKernel* kernel : *candidates) {
    if (kernel->query_dims >= config.head_dim_qk &&
        kernel->value_dims >= config.head_dim_v) {
      return kernel;
    }
  }
  return nullptr;
}

// log2 of the query heads of one K/V head that are packed into rows.
int GroupShift(const HeadConfig& config) {
  constexpr unsigned kMaxGroup = 64;  // rows of a warpgroup
  const unsigned group = config.query_head_count / config.kv_head_count;
  return std::has_single_bit(group) && group <= kMaxGroup
             ? std::countr_zero(group)
             : 0;
}

double Factor(const Sequence& s) {
  constexpr double kLog2E = 1.4426950408889634074;
  return s.scale * kLog2E;
}

size_t Aligned(size_t bytes) {
  constexpr size_t kAlignment = 256;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Where tiles come from, before they are ordered.
struct Shape {
  const HeadConfig& config;
  const PrefillKernel& kernel;
  int shift;

  explicit Shape(const HeadConfig& c)
      : config(c), kernel(*KernelFor(c)), shift(GroupShift(c)) {}

  int64_t Heads() const { return config.query_head_count >> shift; }
  int64_t Rows(const Sequence& s) const { return s.query_length << shift; }
  int64_t RowBlocks(const Sequence& s) const {
    return (Rows(s) + kernel.block_m - 1) / kernel.block_m;
  }
  int64_t KeyBytes(const Sequence& s) const {  // of one K/V head
    return s.key_length * (config.head_dim_qk + config.head_dim_v) *
           ElementBytes(config.data_type);
  }
  // Heads whose keys and values stay in the L2 cache together.
  int64_t SectionHeads(const Sequence& s) const {
    const int64_t per_kv = Heads() / config.kv_head_count;
    const int64_t kv_heads = std::clamp<int64_t>(
        kSectionBytes / std::max<int64_t>(KeyBytes(s), 1), 1,
        config.kv_head_count);
    return kv_heads * per_kv;
  }
  int64_t Runs(const Sequence& s) const {
    const int64_t heads = SectionHeads(s);
    return RowBlocks(s) * ((Heads() + heads - 1) / heads);
  }

  static constexpr int64_t kSectionBytes = 24 << 20;
};

bool FitsInline(int64_t sequences, int64_t runs) {
  return sequences <= WorkList::kMaxInlineSequences &&
         runs <= WorkList::kMaxInlineRuns;
}

// The runs of a launch, in the order in which tiles should be taken.
class RunBuilder {
 public:
  RunBuilder(const Shape& shape, const AttentionParams& params)
      : shape_(shape), params_(params) {}

  // Writes the runs and returns the number of tiles.
  int64_t Build(int multiprocessors, TileRun* runs) {
    AddSections();
    MergeTail(multiprocessors);
    int64_t tiles = 0;
    for (size_t section = 0; section + 1 < begins_.size(); ++section) {
      std::stable_sort(
          blocks_.begin() + begins_[section],
          blocks_.begin() + begins_[section + 1],
          [](const Block& a, const Block& b) { return a.steps > b.steps; });
    }
    for (const Block& block : blocks_) {
      *runs++ = {.first_tile = static_cast<int32_t>(tiles),
                 .sequence = block.sequence,
                 .first_row = block.first_row,
                 .first_head = block.first_head};
      tiles += block.heads;
    }
    return tiles;
  }

 private:
  // A block of rows of some heads.
  struct Block {
    int32_t steps;  // of keys
    int32_t sequence;
    int32_t first_row;
    int32_t first_head;
    int32_t heads;
  };

  void AddSections() {
    std::vector<int32_t> order(params_.sequence_count);
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    // Long ones first: they have the longest tiles.
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return params_.sequences[a].key_length > params_.sequences[b].key_length;
    });
    begins_.push_back(0);
    int64_t bytes = 0;
    for (int32_t index : order) {
      const Sequence& s = params_.sequences[index];
      bytes += shape_.KeyBytes(s) * shape_.config.kv_head_count;
      if (bytes > Shape::kSectionBytes) {
        EndSection();
        bytes = shape_.KeyBytes(s) * shape_.config.kv_head_count;
      }
      const int64_t heads = shape_.SectionHeads(s);
      for (int64_t head = 0; head < shape_.Heads(); head += heads) {
        if (head > 0) EndSection();
        AddBlocks(index, head, std::min(heads, shape_.Heads() - head));
      }
    }
    EndSection();
  }
  void EndSection() {
    if (begins_.back() < blocks_.size()) begins_.push_back(blocks_.size());
  }

  void AddBlocks(int32_t index, int64_t first_head, int64_t heads) {
    const Sequence& s = params_.sequences[index];
    const MaskBand band = MakeMaskBand(shape_.config.mask, s);
    const int64_t rows = shape_.Rows(s);
    const int64_t n = shape_.kernel.block_n;
    for (int64_t first = 0; first < rows; first += shape_.kernel.block_m) {
      const int64_t last =
          std::min<int64_t>(first + shape_.kernel.block_m, rows) - 1;
      const KeyRange keys =
          band.VisibleKeys(first >> shape_.shift, last >> shape_.shift);
      const int64_t steps =
          keys.begin < keys.end ? (keys.end + n - 1) / n - keys.begin / n : 0;
      blocks_.push_back({.steps = static_cast<int32_t>(steps),
                         .sequence = index,
                         .first_row = static_cast<int32_t>(first),
                         .first_head = static_cast<int32_t>(first_head),
                         .heads = static_cast<int32_t>(heads)});
    }
  }

  // Makes one section of the last ones: enough work that blocks which begin
  // their last long tile late find short ones to share among the others.
  void MergeTail(int multiprocessors) {
    constexpr int64_t kLongTiles = 3;  // per multiprocessor
    int64_t longest = 0;
    for (const Block& block : blocks_) {
      longest = std::max<int64_t>(longest, block.steps);
    }
    int64_t work = 0;
    size_t begin = blocks_.size();
    while (begin > 0 && work < kLongTiles * multiprocessors * longest) {
      --begin;
      work += int64_t{blocks_[begin].steps} * blocks_[begin].heads;
    }
    while (begins_.size() > 1 && begins_.back() > begin) begins_.pop_back();
    begins_.push_back(blocks_.size());
  }

  const Shape& shape_;
  const AttentionParams& params_;
  std::vector<Block> blocks_;
  std::vector<size_t> begins_;  // of the sections, and the end of the last
};

cudaError_t DescribeSequence(const Shape& shape, const Sequence& s,
                             PrefillSequence* out) {
  const HeadConfig& c = shape.config;
  const int group = 1 << shape.shift;
  const int32_t panel = 128 / static_cast<int32_t>(ElementBytes(c.data_type));
  const MaskBand band = MakeMaskBand(c.mask, s);
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

  const auto keys_map = [&](const void* data, const TensorStrides& strides,
                            int32_t dims, CUtensorMap* map) {
    const MapDimension dimensions[] = {
        {dims, 1, panel},
        {s.key_length, strides.token, shape.kernel.block_n},
        {c.kv_head_count, strides.head, 1}};
    return MakeTensorMap(c.data_type, data, dimensions, 3, map);
  };
  const MapDimension query[] = {
      {c.head_dim_qk, 1, panel},
      {group, s.query_strides.head, group},
      {s.query_length, s.query_strides.token, shape.kernel.block_m / group},
      {shape.Heads(), s.query_strides.head * group, 1}};
  cudaError_t error =
      MakeTensorMap(c.data_type, s.query, query, 4, &out->query);
  if (error == cudaSuccess) {
    error = keys_map(s.key, s.key_strides, c.head_dim_qk, &out->key);
  }
  if (error == cudaSuccess) {
    error = keys_map(s.value, s.value_strides, c.head_dim_v, &out->value);
  }
  return error;
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

}  // namespace

bool CanCompute(const HeadConfig& config, const Sequence& s) {
  if (KernelFor(config) == nullptr) return false;
  // Tensor copies move whole units of 16 bytes, the last of a row too.
  const int64_t unit = 16 / ElementBytes(config.data_type);
  if (config.head_dim_qk % unit != 0 || config.head_dim_v % unit != 0) {
    return false;
  }
  const double factor = Factor(s);
  constexpr double kLargestFactor = 1e30;  // scores stay finite in fp32
  const DataType type = config.data_type;
  return factor >= FLT_MIN && factor <= kLargestFactor && s.query_length > 0 &&
         s.key_length > 0 &&
         s.query_length < kMaxLength >> GroupShift(config) &&
         s.key_length < kMaxLength &&
         CanBeMapped(s.query, s.query_strides, s.query_length,
                     config.query_head_count, type) &&
         CanBeMapped(s.output, s.output_strides, s.query_length,
                     config.query_head_count, type) &&
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
#if defined(ATTENTION_HAVE_SM90A)
  *is = error == cudaSuccess && major == 9 && minor == 0;
#endif
  return error;
}

ScratchBytes ScratchSize(const AttentionParams& params) {
  if (KernelFor(params.config) == nullptr) return {};
  const Shape shape(params.config);
  int64_t runs = 0;
  for (int64_t i = 0; i < params.sequence_count; ++i) {
    runs += shape.Runs(params.sequences[i]);
  }
  if (FitsInline(params.sequence_count, runs)) return {};
  const size_t bytes =
      Aligned(params.sequence_count * sizeof(PrefillSequence)) +
      Aligned(runs * sizeof(TileRun));
  return {.host_bytes = bytes, .device_bytes = bytes};
}

cudaError_t Launch(const AttentionParams& params, const Scratch& scratch,
                   cudaStream_t stream) {
  const Shape shape(params.config);
  int64_t runs = 0;
  for (int64_t i = 0; i < params.sequence_count; ++i) {
    runs += shape.Runs(params.sequences[i]);
  }
  WorkList list;
  list.sequences = nullptr;
  list.runs = nullptr;
  PrefillSequence* sequences = list.inlined_sequences;
  TileRun* tile_runs = list.inlined_runs;
  const bool is_uploaded = !FitsInline(params.sequence_count, runs);
  const size_t sequence_bytes =
      Aligned(params.sequence_count * sizeof(PrefillSequence));
  if (is_uploaded) {
    auto* const host = static_cast<uint8_t*>(scratch.host);
    auto* const device = static_cast<uint8_t*>(scratch.device);
    sequences = reinterpret_cast<PrefillSequence*>(host);
    tile_runs = reinterpret_cast<TileRun*>(host + sequence_bytes);
    list.sequences = reinterpret_cast<const PrefillSequence*>(device);
    list.runs = reinterpret_cast<const TileRun*>(device + sequence_bytes);
  }

  for (int64_t i = 0; i < params.sequence_count; ++i) {
    const cudaError_t error =
        DescribeSequence(shape, params.sequences[i], &sequences[i]);
    if (error != cudaSuccess) return error;
  }
  int multiprocessors = 0;
  cudaError_t error = Prepare(shape.kernel, &multiprocessors);
  if (error != cudaSuccess) return error;
  list.tile_count = static_cast<int32_t>(
      RunBuilder(shape, params).Build(multiprocessors, tile_runs));
  list.run_count = static_cast<int32_t>(runs);
  list.group_shift = shape.shift;
  list.heads_per_kv =
      static_cast<int32_t>(shape.Heads() / params.config.kv_head_count);
  list.value_dims = params.config.head_dim_v;
  if (list.tile_count == 0) return cudaSuccess;

  if (is_uploaded) {
    error = cudaMemcpyAsync(scratch.device, scratch.host,
                            sequence_bytes + runs * sizeof(TileRun),
                            cudaMemcpyHostToDevice, stream);
    if (error != cudaSuccess) return error;
  }
  error = NextCounter(&list.counter);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t launch = {};
  launch.gridDim = dim3(std::min(list.tile_count, multiprocessors));
  launch.blockDim = dim3(shape.kernel.threads);
  launch.dynamicSmemBytes = shape.kernel.shared_bytes;
  launch.stream = stream;
  launch.attrs = &overlap;
  launch.numAttrs = 1;
  void* arguments[] = {&list};
  return cudaLaunchKernelExC(
      &launch, reinterpret_cast<const void*>(shape.kernel.function), arguments);
}

}  // namespace attention::cuda::sm90
