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

}  // namespace

int64_t VisiblePairCount(MaskKind mask, const Sequence& sequence) {
  const MaskBand band = MakeMaskBand(mask, sequence);
  const int64_t m = sequence.query_length;
  const int64_t n = sequence.key_length;
  return SumOfClamped(m, band.upper + 1, n) - SumOfClamped(m, band.lower, n);
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
  const double dims = config.head_dim_qk + config.head_dim_v;
  const double query_side = static_cast<double>(sequence.query_length) *
                            config.query_head_count * dims;
  const double key_side = static_cast<double>(sequence.key_length) *
                          config.kv_head_count * dims;
  return (query_side + key_side) *
         static_cast<double>(ElementBytes(config.data_type));
}

}  // namespace attention
