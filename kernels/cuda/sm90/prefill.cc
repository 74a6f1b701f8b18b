#include "kernels/cuda/sm90/prefill.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "kernels/cuda/cut_alignment.h"
#include "kernels/cuda/sm90/counters.h"
#include "kernels/cuda/sm90/kernels.h"
#include "kernels/cuda/sm90/merge.h"
#include "kernels/cuda/sm90/tensor_map.h"
#include "kernels/cuda/sm90/work_list.h"

namespace attention::cuda::sm90 {
namespace {

// Kernels of one type; the first that suits is taken.
struct Kernels {
  const PrefillKernel *d64, *d64_few, *d96, *d128, *d128_wide, *d192x128, *d192,
      *d256;
};
constexpr Kernels kHalf = {&kHalf64,      &kHalf64Few,   &kHalf96,
                           &kHalf128,     &kHalf128Wide, &kHalf192x128,
                           &kHalf192,     &kHalf256};
constexpr Kernels kBFloat = {&kBFloat64,  &kBFloat64Few,   &kBFloat96,
                             &kBFloat128, &kBFloat128Wide, &kBFloat192x128,
                             &kBFloat192, &kBFloat256};

// Null for types and head dimensions without a kernel. Depends on nothing that
// differs between the whole sequence and parts of it (cut_alignment.h).
const PrefillKernel* KernelFor(const HeadConfig& config, const Sequence& s) {
  if (config.query_head_count == 0) return nullptr;
  const Kernels* kernels = nullptr;
  if (config.data_type == DataType::kFloat16) kernels = &kHalf;
  if (config.data_type == DataType::kBFloat16) kernels = &kBFloat;
  if (kernels == nullptr) return nullptr;

  const bool has_few_queries = s.query_length <= kMaxChunkedQueries;
  constexpr int64_t kManyKeys = 3072;
  const bool sees_many_keys = config.mask == MaskKind::kNone &&
                              s.window_left == kUnlimitedWindow &&
                              s.window_right == kUnlimitedWindow &&
                              s.key_length >= kManyKeys;
  const PrefillKernel* const candidates[] = {
      has_few_queries ? kernels->d64_few : kernels->d64,
      kernels->d96,
      sees_many_keys && !has_few_queries ? kernels->d128_wide : kernels->d128,
      kernels->d192x128,
      kernels->d192,
      kernels->d256};
  for (const PrefillKernel* kernel : candidates) {
    if (kernel->query_dims >= config.head_dim_qk &&
        kernel->value_dims >= config.head_dim_v) {
      return kernel;
    }
  }
  return nullptr;
}

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

  Shape(const HeadConfig& c, const PrefillKernel& k)
      : config(c), kernel(k), shift(GroupShift(c)) {}

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
    return RowBlocks(s) * ((Heads() + heads - 1) / heads) *
           std::max<int64_t>(ChunkCount(s), 1);
  }

  // Keys of a sequence with few queries are cut into chunks so that its tiles are
  // more; the more rows, the longer, since partial results are as many bytes as
  // rows. Where they are cut depends on no other sequence and no other head.
  int64_t ChunkSteps(const Sequence& s) const {
    constexpr int64_t kMinSteps = 4, kMaxStepsForRows = 8;
    const int64_t steps = (s.key_length + kernel.block_n - 1) / kernel.block_n;
    return std::max(
        std::clamp<int64_t>(Rows(s) / 8, kMinSteps, kMaxStepsForRows),
        (steps + kMaxChunks - 1) / kMaxChunks);
  }
  int64_t ChunkCount(const Sequence& s) const {  // 0: not cut
    if (!kernel.takes_chunks || s.query_length > kMaxChunkedQueries) return 0;
    const int64_t keys = ChunkSteps(s) * kernel.block_n;
    return s.key_length > keys ? (s.key_length + keys - 1) / keys : 0;
  }
  // Partial results of a sequence, and the bytes of one.
  int64_t Partials(const Sequence& s) const {
    return ChunkCount(s) * Heads() * Rows(s);
  }
  size_t PartialBytes() const {
    return (config.head_dim_v + 1) * sizeof(float);
  }

  static constexpr int64_t kSectionBytes = 24 << 20;
};

// What a launch needs.
struct Sizes {
  int64_t runs = 0;
  int64_t partials = 0;
  bool is_inline = false;
  size_t sequence_bytes = 0;  // of the uploaded list
  size_t list_bytes = 0;      // with its runs
  size_t partial_bytes = 0;

  Sizes(const Shape& shape, const AttentionParams& params) {
    for (int64_t i = 0; i < params.sequence_count; ++i) {
      runs += shape.Runs(params.sequences[i]);
      partials += shape.Partials(params.sequences[i]);
    }
    is_inline = params.sequence_count <= WorkList::kMaxInlineSequences &&
                runs <= WorkList::kMaxInlineRuns;
    if (!is_inline) {
      sequence_bytes = Aligned(params.sequence_count * sizeof(PrefillSequence));
      list_bytes = sequence_bytes + Aligned(runs * sizeof(TileRun));
    }
    partial_bytes = Aligned(partials * shape.PartialBytes());
  }
};

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
                 .first_head = block.first_head,
                 .chunk = block.chunk};
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
    int32_t chunk;
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
        const int64_t count = std::min(heads, shape_.Heads() - head);
        const auto chunks = static_cast<int32_t>(shape_.ChunkCount(s));
        if (chunks == 0) AddBlocks(index, head, count, -1);
        for (int32_t chunk = 0; chunk < chunks; ++chunk) {
          AddBlocks(index, head, count, chunk);
        }
      }
    }
    EndSection();
  }
  void EndSection() {
    if (begins_.back() < blocks_.size()) begins_.push_back(blocks_.size());
  }

  void AddBlocks(int32_t index, int64_t first_head, int64_t heads,
                 int32_t chunk) {
    const Sequence& s = params_.sequences[index];
    const MaskBand band = MakeMaskBand(shape_.config.mask, s);
    const int64_t rows = shape_.Rows(s);
    const int64_t n = shape_.kernel.block_n;
    for (int64_t first = 0; first < rows; first += shape_.kernel.block_m) {
      const int64_t last =
          std::min<int64_t>(first + shape_.kernel.block_m, rows) - 1;
      const KeyRange keys =
          band.VisibleKeys(first >> shape_.shift, last >> shape_.shift);
      int64_t steps =
          keys.begin < keys.end ? (keys.end + n - 1) / n - keys.begin / n : 0;
      if (chunk >= 0) steps = std::min(steps, shape_.ChunkSteps(s));
      blocks_.push_back({.steps = static_cast<int32_t>(steps),
                         .sequence = index,
                         .first_row = static_cast<int32_t>(first),
                         .first_head = static_cast<int32_t>(first_head),
                         .heads = static_cast<int32_t>(heads),
                         .chunk = chunk});
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
  out->chunk_steps = static_cast<int32_t>(shape.ChunkSteps(s));
  out->chunk_count = static_cast<int32_t>(shape.ChunkCount(s));
  out->heads = static_cast<int32_t>(shape.Heads());

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

// The launch of one kernel.
cudaError_t LaunchKernel(const Shape& shape, const Sizes& sizes,
                         const AttentionParams& params, const Scratch& scratch,
                         cudaStream_t stream) {
  auto* const host = static_cast<uint8_t*>(scratch.host);
  auto* const device = static_cast<uint8_t*>(scratch.device);
  WorkList list;
  list.sequences = nullptr;
  list.runs = nullptr;
  PrefillSequence* sequences = list.inlined_sequences;
  TileRun* runs = list.inlined_runs;
  if (!sizes.is_inline) {
    sequences = reinterpret_cast<PrefillSequence*>(host);
    runs = reinterpret_cast<TileRun*>(host + sizes.sequence_bytes);
    list.sequences = reinterpret_cast<const PrefillSequence*>(device);
    list.runs =
        reinterpret_cast<const TileRun*>(device + sizes.sequence_bytes);
  }

  // All outputs, then all log-sum-exps.
  auto* partial_output = reinterpret_cast<float*>(device + sizes.list_bytes);
  float* partial_log_sum_exp =
      partial_output + sizes.partials * params.config.head_dim_v;
  int64_t merges = 0;
  for (int64_t i = 0; i < params.sequence_count; ++i) {
    const Sequence& s = params.sequences[i];
    PrefillSequence& sequence = sequences[i];
    const cudaError_t error = DescribeSequence(shape, s, &sequence);
    if (error != cudaSuccess) return error;
    sequence.partial_output = partial_output;
    sequence.partial_log_sum_exp = partial_log_sum_exp;
    sequence.first_merge = static_cast<int32_t>(merges);
    const int64_t partials = shape.Partials(s);
    partial_output += partials * params.config.head_dim_v;
    partial_log_sum_exp += partials;
    if (partials > 0) merges += shape.Heads() * shape.Rows(s);
  }
  int multiprocessors = 0;
  cudaError_t error = Prepare(shape.kernel, &multiprocessors);
  if (error != cudaSuccess) return error;
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
    error = cudaMemcpyAsync(device, host, sizes.list_bytes,
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
  error = cudaLaunchKernelExC(
      &launch, reinterpret_cast<const void*>(shape.kernel.function), arguments);
  if (error != cudaSuccess || list.merge_count == 0) return error;
  return LaunchMerge(params.config.data_type, list, stream);
}

}  // namespace

bool CanCompute(const HeadConfig& config, const Sequence& s) {
  if (KernelFor(config, s) == nullptr) return false;
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
