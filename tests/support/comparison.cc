#include "tests/support/comparison.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/float_convert.h"

namespace attention::test {
namespace {

// Largest relative error of rounding to the type.
double UnitRoundoff(DataType type) {
  switch (type) {
    case DataType::kFloat32:
      return 0x1p-24;
    case DataType::kFloat16:
      return 0x1p-11;
    case DataType::kBFloat16:
      return 0x1p-8;
    case DataType::kFloat8E4M3:
      return 0x1p-4;
  }
  return 0;
}

float RoundTo(DataType type, float value) {
  float rounded = 0;
  StoreFromFloat(type, &rounded, 0, value);
  return LoadAsFloat(type, &rounded, 0);
}

// [count, dims] of one head of [count, heads, dims].
std::vector<float> Gather(const std::vector<double>& tensor, int64_t heads,
                          int64_t head, int64_t dims) {
  std::vector<float> values;
  for (size_t row = head * dims; row < tensor.size(); row += heads * dims) {
    values.insert(values.end(), tensor.begin() + row,
                  tensor.begin() + row + dims);
  }
  return values;
}

// Ignores what is not finite: its placement is compared exactly anyway.
void UpdateMax(double& max, double value) {
  if (std::isfinite(value)) max = std::max(max, std::abs(value));
}

// max|o - want| of attention whose scores, weights and outputs are rounded to
// the 16-bit type after each step.
double PlainComputationError(const HeadConfig& c,
                             const reference::DenseSequence& s,
                             const reference::SequenceResult& want) {
  double worst = 0;
  std::vector<int64_t> keys;
  std::vector<float> weights;
  std::vector<float> row(c.head_dim_v);
  for (int64_t h = 0; h < c.query_head_count; ++h) {
    const int64_t kv = h / (c.query_head_count / c.kv_head_count);
    const auto query = Gather(s.query, c.query_head_count, h, c.head_dim_qk);
    const auto key = Gather(s.key, c.kv_head_count, kv, c.head_dim_qk);
    const auto value = Gather(s.value, c.kv_head_count, kv, c.head_dim_v);
    for (int64_t i = 0; i < s.query_length; ++i) {
      keys.clear();
      for (int64_t j = 0; j < s.key_length; ++j) {
        if (s.sees(i, j)) keys.push_back(j);
      }
      if (keys.empty()) continue;
      weights.clear();
      float max = -INFINITY;
      for (int64_t j : keys) {
        float dot = 0;
        for (int64_t d = 0; d < c.head_dim_qk; ++d) {
          dot += query[i * c.head_dim_qk + d] * key[j * c.head_dim_qk + d];
        }
        weights.push_back(
            RoundTo(c.data_type, static_cast<float>(s.scale) * dot));
        max = std::max(max, weights.back());
      }
      float sum = 0;
      for (float& w : weights) sum += w = std::exp(w - max);
      std::fill(row.begin(), row.end(), 0.0f);
      for (size_t k = 0; k < keys.size(); ++k) {
        const float w = RoundTo(c.data_type, weights[k] / sum);
        for (int64_t d = 0; d < c.head_dim_v; ++d) {
          row[d] += w * value[keys[k] * c.head_dim_v + d];
        }
      }
      for (int64_t d = 0; d < c.head_dim_v; ++d) {
        const double expected =
            want.output[(i * c.query_head_count + h) * c.head_dim_v + d];
        UpdateMax(worst, RoundTo(c.data_type, row[d]) - expected);
      }
    }
  }
  return worst;
}

double RoundingNoise(DataType type, const std::vector<double>& want) {
  double worst = 0;
  for (double value : want) {
    const float ref = RoundTo(type, static_cast<float>(value));
    const float there = RoundTo(type, ref + RoundTo(type, 0.3f));
    UpdateMax(worst, RoundTo(type, there - RoundTo(type, 0.3f)) - ref);
  }
  return worst;
}

// The likely largest error of each score, as comparison.h has it, beside that
// of fp32 products: `of_operands` in units of the likely largest sum, and
// `of_addends` in units of the largest addend.
std::vector<double> ScoreErrors(const HeadConfig& c,
                                const reference::DenseSequence& s,
                                double of_operands, double of_addends = 0) {
  const double dims = c.head_dim_qk;
  const double of_fp32 =
      UnitRoundoff(DataType::kFloat32) * (std::sqrt(dims) + 4);
  std::vector<double> errors;
  errors.reserve(c.query_head_count * s.query_length * s.key_length);
  for (int64_t h = 0; h < c.query_head_count; ++h) {
    const int64_t kv = h / (c.query_head_count / c.kv_head_count);
    for (int64_t i = 0; i < s.query_length; ++i) {
      const double* query =
          &s.query[(i * c.query_head_count + h) * c.head_dim_qk];
      for (int64_t j = 0; j < s.key_length; ++j) {
        if (!s.sees(i, j)) {
          errors.push_back(0);
          continue;
        }
        const double* key = &s.key[(j * c.kv_head_count + kv) * c.head_dim_qk];
        double sum = 0;
        double squares = 0;
        double dot = 0;
        double addend = 0;
        for (int64_t d = 0; d < c.head_dim_qk; ++d) {
          const double product = std::abs(query[d] * key[d]);
          sum += product;
          squares += product * product;
          dot += query[d] * key[d];
          addend = std::max({addend, product, std::abs(dot)});
        }
        errors.push_back(std::abs(s.scale) *
                         (of_fp32 * sum +
                          of_operands * std::min(sum, 3 * std::sqrt(squares)) +
                          of_addends * std::sqrt(dims) * addend));
      }
    }
  }
  return errors;
}

// The mean of the errors of a row's scores under its weights; 0 if unknown.
double MeanScoreError(const Tolerance& tolerance,
                      const reference::SequenceResult& want, int64_t row,
                      int64_t key_length) {
  if (tolerance.scores.empty() || want.weights.empty()) return 0;
  double mean = 0;
  for (int64_t k = row * key_length; k < (row + 1) * key_length; ++k) {
    // What is not visible has no weight, and may be NaN.
    if (want.weights[k] > 0) mean += want.weights[k] * tolerance.scores[k];
  }
  return mean;
}

// What errors of the scores, independent of each other, do to outputs: the
// largest standard deviation.
double OutputScoreError(const HeadConfig& c, const reference::DenseSequence& s,
                        const reference::SequenceResult& want,
                        const std::vector<double>& score_errors) {
  double worst = 0;
  if (want.weights.empty()) return worst;
  std::vector<double> variances(c.head_dim_v);
  for (int64_t h = 0; h < c.query_head_count; ++h) {
    const int64_t kv = h / (c.query_head_count / c.kv_head_count);
    for (int64_t i = 0; i < s.query_length; ++i) {
      const double* output =
          &want.output[(i * c.query_head_count + h) * c.head_dim_v];
      std::fill(variances.begin(), variances.end(), 0.0);
      for (int64_t j = 0; j < s.key_length; ++j) {
        const int64_t index = (h * s.query_length + i) * s.key_length + j;
        const double error = want.weights[index] * score_errors[index];
        if (!(error > 0)) continue;  // not visible, or NaN
        const double* value =
            &s.value[(j * c.kv_head_count + kv) * c.head_dim_v];
        for (int64_t d = 0; d < c.head_dim_v; ++d) {
          const double change = error * (value[d] - output[d]);
          variances[d] += change * change;
        }
      }
      for (double variance : variances) UpdateMax(worst, std::sqrt(variance));
    }
  }
  return worst;
}

// The likely largest error of each output of fp8 attention, as comparison.h has
// it: [M, query_head_count, head_dim_v].
std::vector<double> Float8OutputErrors(const HeadConfig& c,
                                       const reference::DenseSequence& s,
                                       const reference::SequenceResult& want,
                                       const std::vector<double>& score_errors,
                                       Float8Weights weights) {
  std::vector<double> errors(want.output.size());
  struct Sums {
    double changes, squares;  // by weights
    double variance;          // by scores
  };
  std::vector<Sums> sums(c.head_dim_v);
  for (int64_t h = 0; h < c.query_head_count; ++h) {
    const int64_t kv = h / (c.query_head_count / c.kv_head_count);
    for (int64_t i = 0; i < s.query_length; ++i) {
      const int64_t first = (h * s.query_length + i) * s.key_length;
      const double* row = want.weights.data() + first;
      double largest = 0;
      for (int64_t j = 0; j < s.key_length; ++j) UpdateMax(largest, row[j]);
      const int64_t output = (i * c.query_head_count + h) * c.head_dim_v;
      std::fill(sums.begin(), sums.end(), Sums{});
      for (int64_t j = 0; j < s.key_length; ++j) {
        if (!(row[j] > 0)) continue;  // not visible, or NaN
        const double error =
            weights == Float8Weights::kBFloat16
                ? row[j] * UnitRoundoff(DataType::kBFloat16)
                : std::max(row[j] * UnitRoundoff(DataType::kFloat8E4M3),
                           std::min(row[j], largest * 0x1p-17));
        const double score_error = row[j] * score_errors[first + j];
        const double* value =
            &s.value[(j * c.kv_head_count + kv) * c.head_dim_v];
        for (int64_t d = 0; d < c.head_dim_v; ++d) {
          const double change = std::abs(error * value[d]);
          const double by_score =
              score_error * (value[d] - want.output[output + d]);
          sums[d].changes += change;
          sums[d].squares += change * change;
          sums[d].variance += by_score * by_score;
        }
      }
      for (int64_t d = 0; d < c.head_dim_v; ++d) {
        errors[output + d] =
            std::min(sums[d].changes, 2.5 * std::sqrt(sums[d].squares)) +
            std::sqrt(sums[d].variance) +
            std::abs(want.output[output + d]) *
                UnitRoundoff(DataType::kBFloat16) +
            std::numeric_limits<float>::min();
      }
    }
  }
  return errors;
}

double Magnitude(const reference::DenseSequence& s,
                 const reference::SequenceResult& want) {
  double max_output = 0;
  for (double value : want.output) UpdateMax(max_output, value);
  double max_value = 0;
  for (double value : s.value) UpdateMax(max_value, value);
  double max_row_norm = 0;  // sqrt(sum over keys of weight^2)
  for (int64_t row = 0;
       s.key_length > 0 &&
       row < static_cast<int64_t>(want.weights.size() / s.key_length);
       ++row) {
    double sum = 0;
    for (int64_t j = 0; j < s.key_length; ++j) {
      const double w = want.weights[row * s.key_length + j];
      sum += w * w;
    }
    UpdateMax(max_row_norm, std::sqrt(sum));
  }
  return std::max(max_output, max_row_norm * max_value);
}

bool Agrees(double got, double want, double tolerance) {
  if (std::isnan(want)) return std::isnan(got);
  if (std::isinf(want)) return got == want;
  return std::abs(got - want) <= tolerance;
}

testing::AssertionResult Differs(const char* what, int64_t token, int64_t head,
                                 int64_t index, double got, double want,
                                 double tolerance) {
  return testing::AssertionFailure()
         << what << "[token " << token << ", head " << head << ", " << index
         << "] is " << got << ", want " << want << " +- " << tolerance
         << " (off by " << std::abs(got - want) << ")";
}

}  // namespace

Tolerance ContractTolerance(const HeadConfig& c, const Sequence& s,
                            const reference::SequenceResult& want,
                            Float8Weights weights) {
  return ContractTolerance(c, reference::MakeDense(c, s), want, weights);
}

Tolerance ContractTolerance(const HeadConfig& c,
                            const reference::DenseSequence& s,
                            const reference::SequenceResult& want,
                            Float8Weights weights) {
  if (c.data_type == DataType::kFloat8E4M3) {
    auto scores =
        ScoreErrors(c, s, 0, weights == Float8Weights::kFloat8 ? 0x1p-13 : 0);
    auto outputs = Float8OutputErrors(c, s, want, scores, weights);
    return {.output = 0,
            .log_sum_exp_relative = 2e-4,
            .weights_relative = 0,
            .weights_absolute = 0,
            .scores = std::move(scores),
            .outputs = std::move(outputs)};
  }
  const double magnitude = Magnitude(s, want);
  const double u = UnitRoundoff(c.data_type);
  if (c.data_type == DataType::kFloat32) {
    const double relative = c.precision == Precision::kTf32 ? 2e-3 : 1e-5;
    auto score_errors =
        ScoreErrors(c, s, c.precision == Precision::kTf32 ? 0x1p-10 : 0);
    const double output = std::max(relative * magnitude,
                                   OutputScoreError(c, s, want, score_errors));
    return {output, relative, relative, relative * 1e-2,
            std::move(score_errors)};
  }
  const double relative = c.data_type == DataType::kFloat16 ? 2e-3 : 1.6e-2;
  const double plain = 2 * PlainComputationError(c, s, want) +
                       2 * RoundingNoise(c.data_type, want.output);
  const double cap = 1e-3 + relative * magnitude;
  // The absolute term is half of fp16's smallest subnormal, and a little more.
  return {std::min(plain, cap) + 2 * u * magnitude, 2e-4, 2 * u, 1e-6};
}

testing::AssertionResult Matches(const HeadConfig& c, const Sequence& s,
                                 const reference::SequenceResult& want,
                                 const Tolerance& tolerance) {
  const int64_t heads = c.query_head_count;
  for (int64_t i = 0; i < s.query_length; ++i) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t d = 0; d < c.head_dim_v; ++d) {
        const TensorStrides& strides = s.output_strides;
        const double got =
            LoadAsFloat(OutputType(c.data_type), s.output,
                        i * strides.token + h * strides.head + d * strides.dim);
        const int64_t index = (i * heads + h) * c.head_dim_v + d;
        const double expected = want.output[index];
        const double allowed =
            tolerance.output +
            (tolerance.outputs.empty() ? 0 : tolerance.outputs[index]);
        if (!Agrees(got, expected, allowed)) {
          return Differs("output", i, h, d, got, expected, allowed);
        }
      }
      const int64_t row = h * s.query_length + i;
      const double score_error =
          MeanScoreError(tolerance, want, row, s.key_length);
      if (s.log_sum_exp != nullptr) {
        const double got = s.log_sum_exp[i * s.log_sum_exp_token_stride +
                                         h * s.log_sum_exp_head_stride];
        const double expected = want.log_sum_exp[i * heads + h];
        const double allowed = std::max(
            tolerance.log_sum_exp_relative * std::max(1.0, std::abs(expected)),
            score_error);
        if (!Agrees(got, expected, allowed)) {
          return Differs("log_sum_exp", i, h, 0, got, expected, allowed);
        }
      }
      if (s.weights != nullptr) {
        for (int64_t j = 0; j < s.key_length; ++j) {
          const int64_t index = row * s.key_length + j;
          const double got = LoadAsFloat(c.data_type, s.weights, index);
          const double expected = want.weights[index];
          double relative = tolerance.weights_relative;
          if (expected > 0 && !tolerance.scores.empty()) {
            relative =
                std::max(relative, score_error + tolerance.scores[index]);
          }
          const double allowed =
              relative * std::abs(expected) + tolerance.weights_absolute;
          if (!Agrees(got, expected, allowed)) {
            return Differs("weights", i, h, j, got, expected, allowed);
          }
        }
      }
    }
  }
  return testing::AssertionSuccess();
}

testing::AssertionResult MatchesReference(const HeadConfig& config,
                                          const Sequence& sequence,
                                          Float8Weights weights) {
  const auto dense = reference::MakeDense(config, sequence);
  const auto want = reference::ComputeAttention(config, dense, true);
  return Matches(config, sequence, want,
                 ContractTolerance(config, dense, want, weights));
}

testing::AssertionResult MatchesReference(const AttentionProblem& problem,
                                          Float8Weights weights) {
  const AttentionParams params = problem.params();
  for (int64_t i = 0; i < params.sequence_count; ++i) {
    auto result = MatchesReference(params.config, params.sequences[i], weights);
    if (!result) {
      return testing::AssertionFailure()
             << "sequence " << i << ": " << result.message() << "\n  in "
             << ToString(problem.spec());
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace attention::test
