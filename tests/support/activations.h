// Queries, keys and values of a real language model, with outputs that NumPy
// computed in float64.
#ifndef ATTENTION_TESTS_SUPPORT_ACTIVATIONS_H_
#define ATTENTION_TESTS_SUPPORT_ACTIVATIONS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/attention_params.h"
#include "kernels/reference/reference_attention.h"
#include "tests/support/attention_problem.h"

namespace attention::test {

// Part of the repository; relative to its root.
inline constexpr char kActivationsSample[] =
    "tests/data/activations_slice_bf16.safetensors";

// One causal sequence in layout [1, heads, tokens, dim] and its known answer.
struct Activations {
  HeadConfig config;
  Sequence sequence;
  std::vector<Buffer> buffers;  // what `sequence` points to
  std::vector<float> scales[3];  // of query, key and value, if they are fp8
  reference::SequenceResult want;
};

absl::StatusOr<std::unique_ptr<Activations>> LoadActivations(
    const std::string& path);

// The same as fp8, with scales that make the largest element of each head the
// largest of the type. `want` remains what the original elements give.
std::unique_ptr<Activations> ToFloat8(const Activations& original);

}  // namespace attention::test

#endif  // ATTENTION_TESTS_SUPPORT_ACTIVATIONS_H_
