#include "kernels/cpu/three_step.h"

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/block_loop.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/three_step.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
//
#include "kernels/cpu/panel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attention::cpu {
namespace HWY_NAMESPACE {
namespace {

// K and V are converted this many tokens at a time.
constexpr int64_t kTileKeys = 96;

// Weights are held for this many keys: all of a row's, if it is not very long.
constexpr int64_t kPanelKeys = 64 * kTileKeys;

// One panel per block.
int64_t BlockRows() { return kPanelRows; }

// Scratch memory of one thread, as in streaming.cc.
struct Scratch {
  Scratch(const HeadConfig& config, float* base)
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
    max = take(kPanelRows);
    sum = take(kPanelRows);
    alpha = take(kPanelRows);
    ones = take(kPanelRows);
    unused_sum = take(kPanelRows);
    weights = take(kPanelKeys * kPanelRows);
    if (base != nullptr) {
      std::fill_n(ones, kPanelRows, 1.0f);
      std::fill_n(unused_sum, kPanelRows, 0.0f);
    }
  }

  int64_t padded_v;
  float* query;
  float* tile;
  float* output;
  float* max;
  float* sum;
  float* alpha;
  float* ones;
  float* unused_sum;
  float* weights;      // [key][kPanelRows]
  int64_t floats = 0;  // size of the whole
};

int64_t ScratchFloats(const HeadConfig& config) {
  return Scratch(config, nullptr).floats;
}

// The keys of one panel, counted from the first one that the block's rows see.
KeyRange KeyPanel(const Block& block, int64_t first) {
  return {first, std::min(first + kPanelKeys, block.keys.end)};
}

// Where the weights of a row are returned, [N].
template <DataType kType>
Storage<kType>* WeightsRow(const Block& block, const Panel& panel,
                           int64_t row) {
  const Sequence& s = *block.sequence;
  const int64_t head =
      block.kv_head * panel.group_size + row % panel.group_size;
  return static_cast<Storage<kType>*>(s.weights) +
         (head * s.query_length + panel.Token(row)) * s.key_length;
}

// Writes what the rows see of `keys` to the weights tensor.
template <DataType kType>
void StoreWeights(const Block& block, const MaskBand& band, const Panel& panel,
                  KeyRange keys, const float* weights, const float* sums) {
  for (int64_t r = 0; r < panel.rows(); ++r) {
    Storage<kType>* to = WeightsRow<kType>(block, panel, panel.begin + r);
    const KeyRange seen =
        Intersect(keys, band.VisibleKeys(panel.Token(panel.begin + r)));
    const float normalizer = sums[r] == 0.0f ? 0.0f : 1.0f / sums[r];
    for (int64_t key = seen.begin; key < seen.end; ++key) {
      to[key] = FromFloat<kType>(weights[(key - keys.begin) * kPanelRows + r] *
                                 normalizer);
    }
  }
}

template <DataType kType>
class BlockComputation {
 public:
  BlockComputation(const HeadConfig& config, const Block& block,
                   float* scratch_memory)
      : config_(config),
        block_(block),
        scratch_(config, scratch_memory),
        band_(MakeMaskBand(config.mask, *block.sequence)),
        panel_{block.row_begin, block.row_end,
               config.query_head_count / config.kv_head_count} {}

  void Run() {
    const Sequence& s = *block_.sequence;
    std::fill_n(scratch_.max, kPanelRows, kMinusInfinity);
    std::fill_n(scratch_.sum, kPanelRows, 0.0f);
    std::fill_n(scratch_.output, panel_.rows() * scratch_.padded_v, 0.0f);
    LoadQueryPanel<kType>(config_, s, block_.kv_head, panel_, s.scale,
                          scratch_.query);
    for (int64_t key = block_.keys.begin; key < block_.keys.end;
         key += kPanelKeys) {
      const KeyRange keys = KeyPanel(block_, key);
      ComputeWeights(keys, scratch_.sum);
      Accumulate(keys);
    }
    if (s.weights != nullptr) ReturnWeights();
    for (int64_t r = 0; r < panel_.rows(); ++r) {
      StoreResult<kType>(config_, s, block_.kv_head, block_.row_begin + r,
                         scratch_.max[r], scratch_.sum[r], /*value_scale=*/1.0f,
                         scratch_.output + r * scratch_.padded_v);
    }
  }

 private:
  // Steps one and two for a panel: weights relative to the maximum so far.
  void ComputeWeights(KeyRange keys, float* sum) {
    const Sequence& s = *block_.sequence;
    for (int64_t key = keys.begin; key < keys.end; key += kTileKeys) {
      const KeyRange tile_keys = {key, std::min(key + kTileKeys, keys.end)};
      const TokenTile tile =
          LoadTile(KeysOf<kType>(config_, s), block_.kv_head, tile_keys,
                   config_.head_dim_qk, /*in_place=*/true, scratch_.tile);
      Multiply</*kOverwrite=*/true>(
          tile_keys.end - key, panel_.vectors(), tile.data, tile.stride, 1,
          scratch_.query, kPanelRows, config_.head_dim_qk, nullptr,
          scratch_.weights + (key - keys.begin) * kPanelRows, kPanelRows);
    }
    MaskScores(band_, panel_, keys, scratch_.weights);
    SoftmaxColumns(panel_.vectors(), keys.end - keys.begin, scratch_.weights,
                   scratch_.max, sum, scratch_.alpha);
  }

  // Step three for a panel.
  void Accumulate(KeyRange keys) {
    const Sequence& s = *block_.sequence;
    // Not left to the first tile: it skips rows that see none of its keys.
    for (int64_t r = 0; keys.begin > block_.keys.begin && r < panel_.rows();
         ++r) {
      float* row = scratch_.output + r * scratch_.padded_v;
      for (int64_t i = 0; i < scratch_.padded_v; ++i) {
        row[i] *= scratch_.alpha[r];
      }
    }
    for (int64_t key = keys.begin; key < keys.end; key += kTileKeys) {
      const KeyRange tile_keys = {key, std::min(key + kTileKeys, keys.end)};
      const TokenTile tile =
          LoadTile(ValuesOf<kType>(config_, s), block_.kv_head, tile_keys,
                   scratch_.padded_v, /*in_place=*/false, scratch_.tile);
      AccumulateValues(band_, panel_, tile_keys,
                       scratch_.weights + (key - keys.begin) * kPanelRows, tile,
                       scratch_.padded_v / kLanes, scratch_.ones,
                       scratch_.output, scratch_.padded_v);
    }
  }

  // All rows have been seen to the end: their maxima and sums are final.
  void ReturnWeights() {
    for (int64_t row = panel_.begin; row < panel_.end; ++row) {
      std::fill_n(WeightsRow<kType>(block_, panel_, row),
                  block_.sequence->key_length, Storage<kType>{0});
    }
    const bool one_panel = block_.keys.end - block_.keys.begin <= kPanelKeys;
    for (int64_t key = block_.keys.begin; key < block_.keys.end;
         key += kPanelKeys) {
      const KeyRange keys = KeyPanel(block_, key);
      // The scores are what they were, to the bit, so the maxima stay.
      if (!one_panel) ComputeWeights(keys, scratch_.unused_sum);
      StoreWeights<kType>(block_, band_, panel_, keys, scratch_.weights,
                          scratch_.sum);
    }
  }

  const HeadConfig& config_;
  const Block& block_;
  const Scratch scratch_;
  const MaskBand band_;
  const Panel panel_;
};

void ComputeBlock(const HeadConfig& config, const Block& block,
                  float* scratch) {
  WithDataType(config.data_type, [&]<DataType kType>() HWY_ATTR {
    BlockComputation<kType>(config, block, scratch).Run();
  });
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
  const auto compute_block = HWY_DYNAMIC_DISPATCH(ComputeBlock);
  RunBlockLoop(
      params,
      {.mask_of =
           [&](const Sequence& s) { return MakeSinkMask(config.mask, s); },
       .rows_per_block = HWY_DYNAMIC_DISPATCH(BlockRows)(),
       .scratch_floats = HWY_DYNAMIC_DISPATCH(ScratchFloats)(config),
       .compute = [&](const Block& block, float* scratch,
                      float*) { compute_block(config, block, scratch); },
       .merge_row = nullptr},
      pool);
}

}  // namespace attention::cpu
#endif  // HWY_ONCE
