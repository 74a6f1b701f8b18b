// The cases of gpu_bench.
#ifndef ATTENTION_KERNELS_BENCH_GPU_CASE_CUH_
#define ATTENTION_KERNELS_BENCH_GPU_CASE_CUH_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/attention_params.h"
#include "kernels/bench/gpu_support.cuh"

namespace attention::bench {

// Of the sequences of a batch.
enum class Lengths {
  kEqual,
  kLogNormal,  // as the requests of strangers; their mean is as asked for
  kSameFlops,  // equal, of as many FLOPs as kLogNormal has
};

struct Case {
  std::string text;
  HeadConfig config;
  int64_t batch = 1;
  Lengths lengths = Lengths::kEqual;
  int64_t query_length = 1024;
  int64_t key_length = 0;  // 0: as query_length
};

inline Case ParseCase(const std::string& text) {
  Case c;
  c.text = text;
  c.config = {.data_type = DataType::kBFloat16,
              .head_dim_qk = 128,
              .query_head_count = 16};
  for (const Item& item : ParseItems(text)) {
    const std::string whole = item.key + "=" + item.value;
    const int32_t number = std::atoi(item.value.c_str());
    if (ParseHeads(item, c.config)) continue;
    if (item.key == "b")
      c.batch = number;
    else if (item.key == "m")
      c.query_length = number;
    else if (item.key == "n")
      c.key_length = number;
    else if (whole == "lengths=equal")
      c.lengths = Lengths::kEqual;
    else if (whole == "lengths=lognormal")
      c.lengths = Lengths::kLogNormal;
    else if (whole == "lengths=same_flops")
      c.lengths = Lengths::kSameFlops;
    else if (whole == "precision=ieee")
      c.config.precision = Precision::kIeee;
    else if (whole == "precision=tf32")
      c.config.precision = Precision::kTf32;
    else if (whole == "mask=none")
      c.config.mask = MaskKind::kNone;
    else if (whole == "mask=top_left")
      c.config.mask = MaskKind::kCausalTopLeft;
    else if (whole == "mask=bottom_right")
      c.config.mask = MaskKind::kCausalBottomRight;
    else if (whole == "algorithm=streaming")
      c.config.algorithm = Algorithm::kStreaming;
    else if (whole == "algorithm=three_step")
      c.config.algorithm = Algorithm::kThreeStep;
    else
      Refuse(whole);
  }
  if (c.key_length == 0) c.key_length = c.query_length;
  if (c.lengths != Lengths::kEqual && c.key_length != c.query_length) {
    Refuse(text);
  }
  CompleteHeads(c.config);
  return c;
}

// The same in every run.
inline std::vector<int64_t> LogNormalLengths(int64_t count, int64_t mean) {
  constexpr double kSigma = 1;  // of the logarithms
  std::mt19937_64 random(1);
  std::lognormal_distribution<double> distribution(0, kSigma);
  std::vector<double> draws(count);
  for (double& draw : draws) draw = distribution(random);
  const double sum = std::accumulate(draws.begin(), draws.end(), 0.0);
  std::vector<int64_t> lengths;
  for (double draw : draws) {
    const double length = draw * static_cast<double>(mean * count) / sum;
    lengths.push_back(std::max<int64_t>(std::llround(length), 1));
  }
  return lengths;
}

// Without pointers and strides.
inline std::vector<Sequence> ShapesOf(const Case& c) {
  Sequence s;
  s.query_length = c.query_length;
  s.key_length = c.key_length;
  s.scale = 1.0 / std::sqrt(c.config.head_dim_qk);
  std::vector<Sequence> shapes(c.batch, s);
  if (c.lengths == Lengths::kEqual) return shapes;
  const auto lengths = LogNormalLengths(c.batch, c.query_length);
  double squares = 0;
  for (int64_t i = 0; i < c.batch; ++i) {
    shapes[i].query_length = shapes[i].key_length = lengths[i];
    squares += static_cast<double>(lengths[i] * lengths[i]);
  }
  if (c.lengths == Lengths::kLogNormal) return shapes;
  s.query_length = s.key_length =
      std::llround(std::sqrt(squares / static_cast<double>(c.batch)));
  return std::vector<Sequence>(c.batch, s);
}

}  // namespace attention::bench

#endif  // ATTENTION_KERNELS_BENCH_GPU_CASE_CUH_
