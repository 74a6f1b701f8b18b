// The online-softmax state of one query row and how two of them merge.
//
// A state summarises a set of keys: the largest score m, the denominator
// l = sum exp(score - m) and, kept beside it by the caller, the accumulator
// o = sum exp(score - m) * value. States of disjoint key sets merge exactly
// (Milakov & Gimelshein 2018, "Online normalizer calculation for softmax").
#ifndef ATTENTION_KERNELS_SOFTMAX_STATE_H_
#define ATTENTION_KERNELS_SOFTMAX_STATE_H_

#include <cmath>
#include <limits>

#include "kernels/host_device.h"

namespace attention {

template <typename Real>
struct SoftmaxState {
  Real m = -std::numeric_limits<Real>::infinity();  // of no keys: -inf
  Real l = 0;

  // Factors by which the two accumulators are scaled before they are added.
  struct Rescale {
    Real self;
    Real other;
  };

  ATTENTION_HOST_DEVICE Rescale Merge(const SoftmaxState& other) {
    using std::exp;
    const Real m_new = m > other.m || m != m ? m : other.m;
    // Both empty: -inf - -inf is NaN, while two empty sets make an empty set.
    const Real self =
        m == -std::numeric_limits<Real>::infinity() ? Real(0) : exp(m - m_new);
    const Real from_other = other.m == -std::numeric_limits<Real>::infinity()
                                ? Real(0)
                                : exp(other.m - m_new);
    l = l * self + other.l * from_other;
    m = m_new;
    return {self, from_other};
  }

  // 1 / l, and 0 for a row without visible keys so that its output is 0.
  ATTENTION_HOST_DEVICE Real Normalizer() const {
    return l == Real(0) ? Real(0) : Real(1) / l;
  }

  // Natural log; -inf for a row without visible keys.
  ATTENTION_HOST_DEVICE Real LogSumExp() const {
    using std::log;
    return l == Real(0) ? -std::numeric_limits<Real>::infinity() : m + log(l);
  }
};

}  // namespace attention

#endif  // ATTENTION_KERNELS_SOFTMAX_STATE_H_
