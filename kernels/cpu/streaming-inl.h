// The streaming algorithm (Milakov & Gimelshein 2018; Rabe & Staats 2021; Dao
// et al. 2022): a block of rows walks over its keys in tiles and keeps, per
// row, the running maximum m, the denominator l and the accumulator o:
//
//   m' = max(m, max_j s_j);  l' = l 2^(m - m') + sum_j 2^(s_j - m');
//   o' = o 2^(m - m') + sum_j 2^(s_j - m') v_j
//
// Wherever keys and values lie. Compiled once per target, so there is no
// ordinary include guard.
#if defined(ATTENTION_KERNELS_CPU_STREAMING_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef ATTENTION_KERNELS_CPU_STREAMING_INL_H_
#undef ATTENTION_KERNELS_CPU_STREAMING_INL_H_
#else
#define ATTENTION_KERNELS_CPU_STREAMING_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/few_rows-inl.h"
#include "kernels/cpu/panel-inl.h"
#include "kernels/softmax_state.h"

HWY_BEFORE_NAMESPACE();
namespace attention::cpu {
namespace HWY_NAMESPACE {

// Keys per tile. Tiles begin at multiples of this, so that appending masked
// keys does not change a bit.
constexpr int64_t kTileKeys = 96;

// Rows per block: enough to hide the conversion of K/V tiles, few enough to
// keep all threads busy.
constexpr int64_t kBlockRows = 96;

// Up to this many rows, as when decoding, keys are read once and used for dot
// products: panels would be mostly padding.
constexpr int64_t kFewRows = 8;
constexpr int64_t kScoreStride = RoundUp(kTileKeys, kLanes);  // between them

// Scratch memory of one thread. Every array begins on a cache line. Without
// `base`, only the size is meaningful.
struct Scratch {
  Scratch(const HeadConfig& config, float* base)
      : padded_qk(RoundUp(config.head_dim_qk, kLanes)),
        padded_v(RoundUp(config.head_dim_v, kLanes)) {
    constexpr int64_t kRows = RoundUp(kBlockRows, kPanelRows);
    const auto take = [&](int64_t count) {
      float* taken = base == nullptr ? nullptr : base + floats;
      floats += RoundUp(count, 16);
      return taken;
    };
    query = take(std::max(kRows * config.head_dim_qk, kFewRows * padded_qk));
    key = take(kTileKeys * (padded_qk + kLanes));
    value = take(kTileKeys * (padded_v + kLanes));
    scores = take(std::max(kTileKeys * kPanelRows, kFewRows * kScoreStride));
    output = take(kRows * padded_v);
    max = take(kRows);
    sum = take(kRows);
    alpha = take(kRows);
  }

  int64_t padded_qk;
  int64_t padded_v;
  float* query;
  float* key;
  float* value;
  float* scores;
  float* output;
  float* max;
  float* sum;
  float* alpha;
  int64_t floats = 0;  // size of the whole
};

inline int64_t ScratchFloats(const HeadConfig& config) {
  return Scratch(config, nullptr).floats;
}

inline int64_t BlockRows() { return kBlockRows; }

inline int64_t TileEnd(int64_t key, int64_t end) {
  return std::min((key / kTileKeys + 1) * kTileKeys, end);
}

// The keys of a block that its rows see by `band`.
inline KeyRange SeenKeys(const HeadConfig& config, const Block& block,
                         const MaskBand& band) {
  const int64_t group = config.query_head_count / config.kv_head_count;
  return Intersect(block.keys, band.VisibleKeys(block.row_begin / group,
                                                (block.row_end - 1) / group));
}

template <DataType kType, typename Tokens>
void ComputePanels(const HeadConfig& config, const Block& block,
                   const SinkMask& mask, const Tokens& key_source,
                   const Tokens& value_source, const Scratch& scratch) {
  const Sequence& s = *block.sequence;
  const double scale = s.scale * key_source.Scale(block.kv_head);
  const int64_t group = config.query_head_count / config.kv_head_count;
  const int64_t value_vectors = scratch.padded_v / kLanes;
  for (int64_t row = block.row_begin; row < block.row_end; row += kPanelRows) {
    const Panel panel = {row, std::min(row + kPanelRows, block.row_end), group};
    LoadQueryPanel<kType>(
        config, s, block.kv_head, panel, scale,
        scratch.query + (row - block.row_begin) * config.head_dim_qk);
  }
  for (const MaskBand& band : {mask.sinks, mask.window}) {
    const KeyRange seen = SeenKeys(config, block, band);
    int64_t tile_end;
    for (int64_t key = seen.begin; key < seen.end; key = tile_end) {
      tile_end = TileEnd(key, seen.end);
      const KeyRange tile = {key, tile_end};
      const TokenTile k_tile =
          LoadTile(key_source, block.kv_head, tile, config.head_dim_qk,
                   /*in_place=*/true, scratch.key);
      const TokenTile v_tile =
          LoadTile(value_source, block.kv_head, tile, scratch.padded_v,
                   /*in_place=*/false, scratch.value);
      for (int64_t row = block.row_begin; row < block.row_end;
           row += kPanelRows) {
        const Panel panel = {row, std::min(row + kPanelRows, block.row_end),
                             group};
        const KeyRange keys = Intersect(tile, panel.VisibleKeys(band));
        if (keys.begin >= keys.end) continue;
        const int64_t first_row = row - block.row_begin;
        const int64_t skip = keys.begin - tile.begin;
        const int64_t count = keys.end - keys.begin;
        Multiply</*kOverwrite=*/true>(
            count, panel.vectors(), k_tile.data + skip * k_tile.stride,
            k_tile.stride, 1, scratch.query + first_row * config.head_dim_qk,
            kPanelRows, config.head_dim_qk, nullptr, scratch.scores,
            kPanelRows);
        if (!band.SeesAll(panel.Token(panel.begin), panel.Token(panel.end - 1),
                          keys)) {
          MaskScores(band, panel, keys, scratch.scores);
        }
        SoftmaxColumns(panel.vectors(), count, scratch.scores,
                       scratch.max + first_row, scratch.sum + first_row,
                       scratch.alpha);
        AccumulateValues(band, panel, keys, scratch.scores,
                         {v_tile.data + skip * v_tile.stride, v_tile.stride},
                         value_vectors, scratch.alpha,
                         scratch.output + first_row * scratch.padded_v,
                         scratch.padded_v);
      }
    }
  }
}

template <DataType kType, typename Tokens>
void ComputeFewRows(const HeadConfig& config, const Block& block,
                    const SinkMask& mask, const Tokens& key_source,
                    const Tokens& value_source, const Scratch& scratch) {
  const Sequence& s = *block.sequence;
  const double scale = s.scale * key_source.Scale(block.kv_head);
  const int64_t group = config.query_head_count / config.kv_head_count;
  const int64_t rows = block.row_end - block.row_begin;
  for (int64_t r = 0; r < rows; ++r) {
    LoadQueryRow<kType>(config, s, block.kv_head, block.row_begin + r, scale,
                        scratch.padded_qk,
                        scratch.query + r * scratch.padded_qk);
  }
  for (const MaskBand& band : {mask.sinks, mask.window}) {
    const KeyRange seen = SeenKeys(config, block, band);
    int64_t tile_end;
    for (int64_t key = seen.begin; key < seen.end; key = tile_end) {
      tile_end = TileEnd(key, seen.end);
      const KeyRange tile = {key, tile_end};
      TokenTile k_tile = {};
      TokenTile v_tile = {};
      if (!ReadsInPlace(key_source)) {
        k_tile = LoadTile(key_source, block.kv_head, tile, scratch.padded_qk,
                          /*in_place=*/true, scratch.key);
      }
      if (!ReadsInPlace(value_source)) {
        v_tile = LoadTile(value_source, block.kv_head, tile, scratch.padded_v,
                          /*in_place=*/true, scratch.value);
      }
      // Rows of one query see the same keys.
      int64_t end;
      for (int64_t r = 0; r < rows; r = end) {
        const int64_t token = (block.row_begin + r) / group;
        end = std::min((token + 1) * group - block.row_begin, rows);
        const KeyRange keys = Intersect(tile, band.VisibleKeys(token));
        if (keys.begin >= keys.end) continue;
        float* scores = scratch.scores + r * kScoreStride;
        ForRuns(key_source, block.kv_head, keys, k_tile, tile.begin,
                [&](const auto& run, int64_t offset) HWY_ATTR {
                  Dots(end - r, scratch.query + r * scratch.padded_qk,
                       scratch.padded_qk, run, scratch.padded_qk,
                       scores + offset, kScoreStride);
                });
        for (int64_t i = r; i < end; ++i) {
          SoftmaxRow(keys.end - keys.begin, scratch.scores + i * kScoreStride,
                     scratch.max[i], scratch.sum[i], scratch.alpha[i]);
        }
        ForRuns(value_source, block.kv_head, keys, v_tile, tile.begin,
                [&](const auto& run, int64_t offset) HWY_ATTR {
                  AddValues(end - r, scores + offset, kScoreStride, run,
                            scratch.padded_v / kLanes,
                            offset == 0 ? scratch.alpha + r : nullptr,
                            scratch.output + r * scratch.padded_v,
                            scratch.padded_v);
                });
      }
    }
  }
}

// Computes a block's result, or its partial result. kType is that of queries;
// keys and values are TensorTokens or the like.
template <DataType kType, typename Tokens>
void ComputeBlockOf(const HeadConfig& config, const Block& block,
                    const SinkMask& mask, const Tokens& keys,
                    const Tokens& values, float* scratch_memory,
                    float* partials) {
  const Scratch scratch(config, scratch_memory);
  const int64_t rows = block.row_end - block.row_begin;
  const int64_t padded_rows = RoundUp(rows, kPanelRows);
  std::fill_n(scratch.max, padded_rows, kMinusInfinity);
  std::fill_n(scratch.sum, padded_rows, 0.0f);
  std::fill_n(scratch.output, rows * scratch.padded_v, 0.0f);
  if (rows <= kFewRows) {
    ComputeFewRows<kType>(config, block, mask, keys, values, scratch);
  } else {
    ComputePanels<kType>(config, block, mask, keys, values, scratch);
  }
  const float value_scale = values.Scale(block.kv_head);
  for (int64_t r = 0; r < rows; ++r) {
    const float* output = scratch.output + r * scratch.padded_v;
    if (block.partial_offset == kWholeRange) {
      StoreResult<OutputType(kType)>(
          config, *block.sequence, block.kv_head, block.row_begin + r,
          scratch.max[r], scratch.sum[r], value_scale, output);
    } else {
      float* to = partials + block.partial_offset + r * (config.head_dim_v + 2);
      for (int64_t i = 0; i < config.head_dim_v; ++i) {
        *to++ = output[i] * value_scale;
      }
      to[0] = scratch.max[r];
      to[1] = scratch.sum[r];
    }
  }
}

// Merges the partial results of one row in the order of their keys. kType is
// that of outputs.
template <DataType kType>
void MergeRowOf(const HeadConfig& config, const Block* begin, const Block* end,
                int64_t r, const float* partials) {
  const int64_t dim = config.head_dim_v;
  float merged[kMaxHeadDim] = {};
  SoftmaxState<double> state;
  for (const Block* block = begin; block < end; ++block) {
    const float* from = partials + block->partial_offset + r * (dim + 2);
    const auto rescale = state.Merge({from[dim] * kLn2, from[dim + 1]});
    const float self = static_cast<float>(rescale.self);
    const float other = static_cast<float>(rescale.other);
    for (int64_t i = 0; i < dim; ++i)
      merged[i] = merged[i] * self + from[i] * other;
  }
  StoreResult<kType>(config, *begin->sequence, begin->kv_head,
                     begin->row_begin + r, static_cast<float>(state.m * kLog2E),
                     static_cast<float>(state.l), /*value_scale=*/1.0f, merged);
}

inline void MergeRow(const HeadConfig& config, const Block* begin,
                     const Block* end, int64_t r, const float* partials) {
  WithDataType(OutputType(config.data_type), [&]<DataType kType>() HWY_ATTR {
    MergeRowOf<kType>(config, begin, end, r, partials);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace attention::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
