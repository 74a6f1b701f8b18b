#include "kernels/cuda/sm90/kernels.h"

#include <initializer_list>

#include "kernels/cuda/cut_alignment.h"
#include "kernels/cuda/sm90/shape.h"

namespace attention::cuda::sm90 {
#if defined(ATTENTION_HAVE_SM90A)
namespace {

// Kernels of one type; the first that suits is taken.
struct Kernels {
  const PrefillKernel *d64, *d64_few, *d96, *d128, *d128_wide, *d192x128, *d192,
      *d256;
};
constexpr Kernels kHalf = {&kHalf64,      &kHalf64Few,   &kHalf96,  &kHalf128,
                           &kHalf128Wide, &kHalf192x128, &kHalf192, &kHalf256};
constexpr Kernels kBFloat = {&kBFloat64,  &kBFloat64Few,   &kBFloat96,
                             &kBFloat128, &kBFloat128Wide, &kBFloat192x128,
                             &kBFloat192, &kBFloat256};

// Tiles of two warpgroups of 64 rows cover less of what a causal mask hides
// from a short sequence than tiles of three do, which are faster against many
// keys. Both have steps of as many keys and give the same bits, so that the
// choice may depend on lengths that differ between a whole sequence and its
// parts.
bool IsShortAndCausal(const HeadConfig& config, const Sequence& s) {
  constexpr int64_t kLongest = 1024;
  return config.mask != MaskKind::kNone && s.key_length <= kLongest &&
         s.query_length << GroupShift(config) <= kLongest;
}

const PrefillKernel* FirstThatSuffices(
    const HeadConfig& config,
    std::initializer_list<const PrefillKernel*> candidates) {
  for (const PrefillKernel* kernel : candidates) {
    if (kernel->query_dims >= config.head_dim_qk &&
        kernel->value_dims >= config.head_dim_v) {
      return kernel;
    }
  }
  return nullptr;
}

}  // namespace

const PrefillKernel* KernelFor(const HeadConfig& config, const Sequence& s) {
  if (config.query_head_count == 0) return nullptr;
  if (config.data_type == DataType::kFloat32) {
    return config.precision == Precision::kIeee
               ? FirstThatSuffices(config, {&kIeeeAt64, &kIeeeAt128})
               : FirstThatSuffices(config, {&kTf32At64, &kTf32At128});
  }
  if (config.data_type == DataType::kFloat8E4M3) {
    return FirstThatSuffices(config, {&kFloat8At64, &kFloat8At128});
  }
  const Kernels& kernels =
      config.data_type == DataType::kFloat16 ? kHalf : kBFloat;
  const bool has_few_queries = s.query_length <= kMaxChunkedQueries;
  constexpr int64_t kManyKeys = 3072;
  const bool sees_many_keys =
      config.mask == MaskKind::kNone && s.window_left == kUnlimitedWindow &&
      s.window_right == kUnlimitedWindow && s.key_length >= kManyKeys;
  return FirstThatSuffices(
      config,
      {has_few_queries || IsShortAndCausal(config, s) ? kernels.d64_few
                                                      : kernels.d64,
       kernels.d96,
       sees_many_keys && !has_few_queries ? kernels.d128_wide : kernels.d128,
       kernels.d192x128, kernels.d192, kernels.d256});
}
#else
const PrefillKernel* KernelFor(const HeadConfig&, const Sequence&) {
  return nullptr;
}
#endif

}  // namespace attention::cuda::sm90
