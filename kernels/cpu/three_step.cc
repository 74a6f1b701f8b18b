#include "kernels/cpu/three_step.h"

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/three_step.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
//
#include "hwy/aligned_allocator.h"
#include "kernels/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attention::cpu {
namespace HWY_NAMESPACE {
namespace {

// K and V are converted this many tokens at a time.
constexpr int64_t kTileKeys = 96;

// One panel per block.
int64_t BlockRows() { return kPanelRows; }

// Scratch memory of one thread, as in streaming.cc.
struct Scratch {
  Scratch(const HeadConfig& config, int64_t max_key_length, float* base)
      : padded_v(RoundUp(config.head_dim_v, kLanes)) {
    const auto take = [&](int64_t count) {
      float* taken = base == nullptr ? nullptr : base + floats;
      floats += RoundUp(count, 16);
      return taken;
    };
    query = take(kPanelRows * config.head_dim_qk);
    tile = take(kTileKeys *
                (std::max<int64_t>(config.head_dim_qk, padded_v) + kLanes));
    output = take(kPanelRows * padded_v);
    state = take(3 * kPanelRows);
    weights = take(max_key_length * kPanelRows);
  }

  int64_t padded_v;
  float* query;
  float* tile;
  float* output;
  float* state;        // max, sum, alpha
  float* weights;      // [key][kPanelRows]
  int64_t floats = 0;  // size of the whole
};

int64_t ScratchFloats(const HeadConfig& config, int64_t max_key_length) {
  return Scratch(config, max_key_length, nullptr).floats;
}

// Writes rows of the weights tensor, zero where a row does not see a key.
template <DataType kType>
void StoreWeights(const Block& block, const MaskBand& band, const Panel& panel,
                  const float* weights, const float* sums) {
  const Sequence& s = *block.sequence;
  for (int64_t r = 0; r < panel.rows(); ++r) {
    const int64_t token = panel.Token(panel.begin + r);
    const int64_t head =
        block.kv_head * panel.group_size + (panel.begin + r) % panel.group_size;
    auto* to = static_cast<Storage<kType>*>(s.weights) +
               (head * s.query_length + token) * s.key_length;
    const KeyRange seen = Intersect(block.keys, band.VisibleKeys(token));
    const float normalizer = sums[r] == 0.0f ? 0.0f : 1.0f / sums[r];
    for (int64_t key = 0; key < s.key_length; ++key) {
      to[key] = Storage<kType>{0};
    }
    for (int64_t key = seen.begin; key < seen.end; ++key) {
      to[key] = FromFloat<kType>(
          weights[(key - block.keys.begin) * kPanelRows + r] * normalizer);
    }
  }
}

template <DataType kType>
void ComputeBlockOf(const HeadConfig& config, const Block& block,
                    int64_t max_key_length, float* scratch_memory) {
  const Scratch scratch(config, max_key_length, scratch_memory);
  const Sequence& s = *block.sequence;
  const MaskBand band = MakeMaskBand(config.mask, s);
  const Panel panel = {block.row_begin, block.row_end,
                       config.query_head_count / config.kv_head_count};
  float* max = scratch.state;
  float* sum = scratch.state + kPanelRows;
  float* alpha = scratch.state + 2 * kPanelRows;
  std::fill_n(max, kPanelRows, kMinusInfinity);
  std::fill_n(sum, kPanelRows, 0.0f);
  std::fill_n(scratch.output, panel.rows() * scratch.padded_v, 0.0f);

  LoadQueryPanel<kType>(config, s, block.kv_head, panel, scratch.query);
  for (int64_t key = block.keys.begin; key < block.keys.end; key += kTileKeys) {
    const KeyRange keys = {key, std::min(key + kTileKeys, block.keys.end)};
    const TokenTile tile = LoadTile<kType>(
        s.key, s.key_strides, block.kv_head, keys, config.head_dim_qk,
        config.head_dim_qk, /*in_place=*/true, scratch.tile);
    Multiply</*kOverwrite=*/true>(
        keys.end - keys.begin, panel.vectors(), tile.data, tile.stride, 1,
        scratch.query, kPanelRows, config.head_dim_qk, nullptr,
        scratch.weights + (key - block.keys.begin) * kPanelRows, kPanelRows);
  }

  const int64_t key_count =
      std::max<int64_t>(block.keys.end - block.keys.begin, 0);
  MaskScores(band, panel, block.keys, scratch.weights);
  SoftmaxColumns(panel.vectors(), key_count, scratch.weights, max, sum, alpha);
  if (s.weights != nullptr) {
    StoreWeights<kType>(block, band, panel, scratch.weights, sum);
  }

  std::fill_n(alpha, kPanelRows, 1.0f);
  for (int64_t key = block.keys.begin; key < block.keys.end; key += kTileKeys) {
    const KeyRange keys = {key, std::min(key + kTileKeys, block.keys.end)};
    const TokenTile tile = LoadTile<kType>(
        s.value, s.value_strides, block.kv_head, keys, config.head_dim_v,
        scratch.padded_v, /*in_place=*/false, scratch.tile);
    AccumulateValues(band, panel, keys,
                     scratch.weights + (key - block.keys.begin) * kPanelRows,
                     tile, scratch.padded_v / kLanes, alpha, scratch.output,
                     scratch.padded_v);
  }
  for (int64_t r = 0; r < panel.rows(); ++r) {
    StoreResult<kType>(config, s, block.kv_head, block.row_begin + r, max[r],
                       sum[r], scratch.output + r * scratch.padded_v);
  }
}

void ComputeBlock(const HeadConfig& config, const Block& block,
                  int64_t max_key_length, float* scratch) {
  switch (config.data_type) {
    case DataType::kFloat32:
      return ComputeBlockOf<DataType::kFloat32>(config, block, max_key_length,
                                                scratch);
    case DataType::kFloat16:
      return ComputeBlockOf<DataType::kFloat16>(config, block, max_key_length,
                                                scratch);
    case DataType::kBFloat16:
      return ComputeBlockOf<DataType::kBFloat16>(config, block, max_key_length,
                                                 scratch);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace attention::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attention::cpu {
namespace {

HWY_EXPORT(BlockRows);
HWY_EXPORT(ScratchFloats);
HWY_EXPORT(ComputeBlock);

}  // namespace

void ComputeThreeStep(const AttentionParams& params, ThreadPool& pool) {
  const HeadConfig& config = params.config;
  const BlockList list = MakeBlocks(params, HWY_DYNAMIC_DISPATCH(BlockRows)(),
                                    /*split_keys=*/false);
  int64_t max_key_length = 0;
  for (int64_t i = 0; i < params.sequence_count; ++i) {
    max_key_length = std::max(max_key_length, params.sequences[i].key_length);
  }
  const int64_t block_count = static_cast<int64_t>(list.blocks.size());
  if (block_count == 0) return;
  const int64_t scratch_floats =
      HWY_DYNAMIC_DISPATCH(ScratchFloats)(config, max_key_length);
  const int64_t threads = std::min<int64_t>(pool.thread_count(), block_count);
  const auto scratch = hwy::AllocateAligned<float>(threads * scratch_floats);
  const auto compute_block = HWY_DYNAMIC_DISPATCH(ComputeBlock);
  pool.ParallelFor(block_count, [&](int64_t i, int thread) {
    compute_block(config, list.blocks[list.order[i]], max_key_length,
                  scratch.get() + thread * scratch_floats);
  });
}

}  // namespace attention::cpu
#endif  // HWY_ONCE
