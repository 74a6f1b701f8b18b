// How far an answer may be from the float64 reference. What a client can check
// without computing anew in 16 bits; the kernels' own tests are stricter.
#ifndef ATTENTION_KERNELS_REFERENCE_TOLERANCE_H_
#define ATTENTION_KERNELS_REFERENCE_TOLERANCE_H_

#include <algorithm>
#include <cmath>

#include "kernels/attention_params.h"

namespace attention::reference {

struct Tolerance {
  double output_absolute;
  double output_relative;       // of the largest expected |output|
  double log_sum_exp_relative;  // of max(1, |expected|)

  // Largest |got - expected| of an output, when `max` is the largest expected
  // |output|. Weights are outputs with max = 1.
  double Output(double max) const {
    return output_absolute + output_relative * max;
  }

  // 0 for an expected infinity, which must be met exactly.
  double LogSumExp(double expected) const {
    return std::isfinite(expected)
               ? log_sum_exp_relative * std::max(1.0, std::abs(expected))
               : 0;
  }
};

inline Tolerance ToleranceOf(DataType data_type, Precision precision) {
  switch (data_type) {
    case DataType::kFloat16:
      return {1e-3, 2e-3, 2e-4};
    case DataType::kBFloat16:
      return {1e-3, 1.6e-2, 2e-4};
    case DataType::kFloat8E4M3:
      // Inputs are exact. Tensor cores multiply values by weights of 4
      // significant bits, each off by 2^-4 at most, which is the most that an
      // output is off by where all errors and values have one sign; bf16 outputs
      // add 2^-8. Other backends are as for bf16. Tensor cores also drop what
      // lies 13 bits below the largest product of a score, of which there may be
      // some in a score of 1.
      return {1e-3, 7e-2, 1e-3};
    case DataType::kFloat32:
      break;
  }
  if (precision == Precision::kTf32) return {0, 2e-3, 2e-3};
  return {0, 1e-5, 1e-5};
}

}  // namespace attention::reference

#endif  // ATTENTION_KERNELS_REFERENCE_TOLERANCE_H_
