// What the tests of kernels/cuda/sm90 share: problems on the device, launched
// by an implementation that the test names, so that none passes because other
// kernels did the work.
#ifndef ATTENTION_TESTS_KERNELS_CUDA_PREFILL_FIXTURE_H_
#define ATTENTION_TESTS_KERNELS_CUDA_PREFILL_FIXTURE_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/attention_params.h"
#include "kernels/cuda/attention_cuda.h"
#include "kernels/cuda/sm90/kernels.h"
#include "tests/support/attention_problem.h"
#include "tests/support/device_memory.h"
#include "tests/support/kernel_backend.h"

namespace attention::test {

inline constexpr DataType kPrefillTypes[] = {DataType::kBFloat16,
                                             DataType::kFloat16};
inline constexpr MaskKind kMasks[] = {MaskKind::kNone, MaskKind::kCausalTopLeft,
                                      MaskKind::kCausalBottomRight};

// Head dimensions of query and key, and of value, that have a kernel for each
// type; e4m3 has fewer.
struct HeadDims {
  int32_t qk, v;
};
inline constexpr HeadDims kKernelDims[] = {{64, 64},   {96, 96},   {128, 128},
                                           {192, 128}, {192, 192}, {256, 256}};
inline constexpr HeadDims kFloat8KernelDims[] = {{64, 64}, {128, 128}};

HeadConfig Heads(DataType type, HeadDims dims, int32_t query_heads,
                 int32_t kv_heads, MaskKind mask = MaskKind::kNone);

struct Implementation {
  cuda::ScratchBytes (*scratch_size)(const AttentionParams&);
  cudaError_t (*launch)(const AttentionParams&, const cuda::Scratch&,
                        cudaStream_t);
};
extern const Implementation kPrefill;   // sm90; all sequences must suit it
extern const Implementation kPortable;  // portable/
extern const Implementation kAny;       // as the server calls them

// A problem's copy on the device, which may be launched again and again. CUDA
// errors are fatal failures of the test.
class DeviceProblem {
 public:
  explicit DeviceProblem(AttentionProblem& problem);

  // Of device pointers, valid as long as this object.
  AttentionParams params() const {
    return {problem_.spec().config, sequences_.data(),
            static_cast<int64_t>(sequences_.size())};
  }

  // Makes the device's tensors equal to the problem's, waiting for work under
  // way.
  void CopyIn();
  // Makes the outputs there NaN, with all around them, and what the last launch
  // left in its scratch memory; waits likewise.
  void ClearOutputs();
  // Enqueues the launch, without waiting. It shares its scratch memory with the
  // launch before by the same implementation.
  void Launch(const Implementation& implementation,
              cudaStream_t stream = nullptr);
  // Waits for all streams and reads the memory of the results back into the
  // problem.
  void CopyOut();

 private:
  AttentionProblem& problem_;
  DeviceBuffers buffers_;
  std::vector<Sequence> sequences_;
  DeviceScratch scratch_;
  const Implementation* scratch_owner_ = nullptr;
};

using Bits = std::vector<std::byte>;

// Skipped without a device of compute capability 9.0, and in a program without
// code for it.
class PrefillTest : public KernelTest {
 protected:
  void SetUp() override;

  // The kernel of a sequence of that many queries and keys.
  static const cuda::sm90::PrefillKernel& KernelFor(const HeadConfig& config,
                                                    int64_t query_length = 1000,
                                                    int64_t key_length = 1000);

  // Computes with kPrefill. Fails the test if a sequence does not suit it, or
  // if anything but the outputs is written.
  void Compute(AttentionProblem& problem);
  // Compute(), and the results must match the reference.
  void Check(AttentionProblem& problem);
  void Check(const ProblemSpec& spec);

  // Compute(), and the results of all sequences.
  std::vector<Bits> ComputeBits(AttentionProblem& problem);

  // body(type, dims) for each type and kKernelDims, until one fails fatally.
  template <typename Body>
  void ForEachKernel(Body body) {
    for (DataType type : kPrefillTypes) {
      for (HeadDims dims : kKernelDims) {
        body(type, dims);
        if (HasFatalFailure()) return;
      }
    }
  }
  template <typename Body>
  void ForEachKernelAndFloat8(Body body) {
    ForEachKernel(body);
    for (HeadDims dims : kFloat8KernelDims) {
      if (HasFatalFailure()) return;
      body(DataType::kFloat8E4M3, dims);
    }
  }
};

std::vector<Bits> AllBits(const AttentionProblem& problem);

#define INSTANTIATE_FOR_CUDA(suite)                             \
  INSTANTIATE_TEST_SUITE_P(                                     \
      Backends, suite,                                          \
      ::testing::Values(::attention::test::BackendKind::kCuda), \
      ::attention::test::BackendName)

}  // namespace attention::test

#endif  // ATTENTION_TESTS_KERNELS_CUDA_PREFILL_FIXTURE_H_
