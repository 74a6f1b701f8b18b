#include "kernels/cost.h"

#include <algorithm>

#include "kernels/mask.h"

namespace attention {
namespace {

// sum of clamp(i + offset, 0, limit) for i in [0, count)
int64_t SumOfClamped(int64_t count, int64_t offset, int64_t limit) {
  // Rows [0, first) give 0, rows [last, count) give limit.
  const int64_t first = std::clamp(-offset, int64_t{0}, count);
  const int64_t last = std::clamp(limit - offset, first, count);
  const int64_t rows = last - first;
  const int64_t ramp = rows == 0 ? 0
                                 : rows * (first + offset) + rows * (rows - 1) / 2;
  return ramp + (count - last) * limit;
}

// Those that `query_count` queries see.
int64_t PairCount(const MaskBand& band, int64_t query_count) {
  const int64_t keys = band.key_end - band.key_begin;
  return SumOfClamped(query_count, band.upper + 1 - band.key_begin, keys) -
         SumOfClamped(query_count, band.lower - band.key_begin, keys);
}

}  // namespace

int64_t VisiblePairCount(MaskKind mask, const Sequence& sequence) {
  return PairCount(MakeMaskBand(mask, sequence), sequence.query_length);
}

double AttentionFlops(const HeadConfig& config, const Sequence& sequence) {
  return 2.0 * static_cast<double>(VisiblePairCount(config.mask, sequence)) *
         config.query_head_count *
         (config.head_dim_qk + config.head_dim_v);
}

double EffectiveFlops(const HeadConfig& config, const Sequence& sequence) {
  // From the CPU backend, where a thread does some 50 GFLOP/s of large products:
  // a key of a lone query takes about 20 ns, a head of its own about 1 us.
  constexpr double kPerPair = 32;
  constexpr double kPerKey = 1e3;
  constexpr double kPerRow = 5e4;
  const double pairs =
      static_cast<double>(VisiblePairCount(config.mask, sequence));
  const double keys = static_cast<double>(sequence.key_length);
  const double rows = static_cast<double>(sequence.query_length);
  return AttentionFlops(config, sequence) +
         config.query_head_count *
             (kPerPair * pairs + kPerKey * keys + kPerRow * rows);
}

double AttentionBytes(const HeadConfig& config, const Sequence& sequence) {
  const double input = static_cast<double>(ElementBytes(config.data_type));
  const double output =
      static_cast<double>(ElementBytes(OutputType(config.data_type)));
  const double query_row = static_cast<double>(sequence.query_length) *
                           config.query_head_count;
  const double key_row =
      static_cast<double>(sequence.key_length) * config.kv_head_count;
  return query_row * (config.head_dim_qk * input + config.head_dim_v * output) +
         key_row * (config.head_dim_qk + config.head_dim_v) * input;
}

double PagedFlops(const PagedConfig& config, const PagedSequence& sequence) {
  const SinkMask mask = MakeSinkMask(config.heads.mask, sequence);
  const int64_t pairs = PairCount(mask.sinks, sequence.query_length) +
                        PairCount(mask.window, sequence.query_length);
  return 2.0 * static_cast<double>(pairs) * config.heads.query_head_count *
         (config.heads.head_dim_qk + config.heads.head_dim_v);
}

double PagedBytes(const PagedConfig& config, const PagedSequence& sequence) {
  if (sequence.query_length == 0) return 0;
  const SinkMask mask = MakeSinkMask(config.heads.mask, sequence);
  int64_t keys = 0;
  for (const MaskBand* band : {&mask.sinks, &mask.window}) {
    const KeyRange seen = band->VisibleKeys(0, sequence.query_length - 1);
    keys += std::max(seen.end - seen.begin, int64_t{0});
  }
  return static_cast<double>(keys) * config.heads.kv_head_count *
         static_cast<double>(PageRowBytes(config, config.heads.head_dim_qk) +
                             PageRowBytes(config, config.heads.head_dim_v));
}

}  // namespace attention
