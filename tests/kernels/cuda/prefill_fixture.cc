#include "tests/kernels/cuda/prefill_fixture.h"

#include "kernels/cuda/portable/streaming.h"
#include "kernels/cuda/sm90/prefill.h"
#include "tests/support/comparison.h"

namespace attention::test {

HeadConfig Heads(DataType type, HeadDims dims, int32_t query_heads,
                 int32_t kv_heads, MaskKind mask) {
  return {.data_type = type,
          .head_dim_qk = dims.qk,
          .head_dim_v = dims.v,
          .query_head_count = query_heads,
          .kv_head_count = kv_heads,
          .mask = mask};
}

const Implementation kPrefill = {cuda::sm90::ScratchSize, cuda::sm90::Launch};
const Implementation kPortable = {
    cuda::portable::ScratchSize,
    [](const AttentionParams& params, const cuda::Scratch& scratch,
       cudaStream_t stream) {
      return cuda::portable::Launch(params, scratch, stream);
    }};
const Implementation kAny = {cuda::ScratchSize, cuda::Launch};

DeviceProblem::DeviceProblem(AttentionProblem& problem)
    : problem_(problem), buffers_(problem.buffers()) {
  CopyIn();
  const AttentionParams params = problem.params();
  sequences_.assign(params.sequences, params.sequences + params.sequence_count);
  for (Sequence& s : sequences_) buffers_.RedirectTensors(s);
}

void DeviceProblem::CopyIn() {
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  ASSERT_EQ(buffers_.CopyIn(), absl::OkStatus());
}

void DeviceProblem::ClearOutputs() {
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  ASSERT_EQ(buffers_.ClearOutputs(), absl::OkStatus());
  ASSERT_EQ(scratch_.Clear(), absl::OkStatus());
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

void DeviceProblem::Launch(const Implementation& implementation,
                           cudaStream_t stream) {
  if (scratch_owner_ != &implementation) {
    ASSERT_EQ(scratch_.Allocate(implementation.scratch_size(params())),
              absl::OkStatus());
    scratch_owner_ = &implementation;
  }
  ASSERT_EQ(implementation.launch(params(), scratch_.get(), stream),
            cudaSuccess)
      << "  in " << ToString(problem_.spec());
}

void DeviceProblem::CopyOut() {
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess)
      << "  in " << ToString(problem_.spec());
  ASSERT_EQ(buffers_.CopyOut(), absl::OkStatus());
}

void PrefillTest::SetUp() {
  KernelTest::SetUp();
  if (IsSkipped()) return;
  bool is_supported = false;
  ASSERT_EQ(cuda::sm90::IsSupported(&is_supported), cudaSuccess);
  if (!is_supported) GTEST_SKIP() << "no device of compute capability 9.0";
  if (cuda::sm90::KernelFor(Heads(kPrefillTypes[0], {64, 64}, 1, 1),
                            Sequence{}) == nullptr) {
    GTEST_SKIP() << "built without code for sm_90a";
  }
}

const cuda::sm90::PrefillKernel& PrefillTest::KernelFor(
    const HeadConfig& config, int64_t query_length, int64_t key_length) {
  Sequence s;
  s.query_length = query_length;
  s.key_length = key_length;
  return *cuda::sm90::KernelFor(config, s);
}

void PrefillTest::Compute(AttentionProblem& problem) {
  const AttentionParams params = problem.params();
  for (int64_t i = 0; i < params.sequence_count; ++i) {
    ASSERT_TRUE(cuda::sm90::CanCompute(params.config, params.sequences[i]))
        << "sequence " << i << " of " << ToString(problem.spec());
  }
  problem.ResetOutputs();
  DeviceProblem device(problem);
  ASSERT_NO_FATAL_FAILURE(device.Launch(kPrefill));
  ASSERT_NO_FATAL_FAILURE(device.CopyOut());
  ASSERT_TRUE(problem.OnlyOutputsWritten())
      << "  in " << ToString(problem.spec());
}

void PrefillTest::Check(AttentionProblem& problem) {
  ASSERT_NO_FATAL_FAILURE(Compute(problem));
  EXPECT_TRUE(MatchesReference(problem));
}

void PrefillTest::Check(const ProblemSpec& spec) {
  AttentionProblem problem(spec);
  Check(problem);
}

std::vector<Bits> PrefillTest::ComputeBits(AttentionProblem& problem) {
  Compute(problem);
  return AllBits(problem);
}

std::vector<Bits> AllBits(const AttentionProblem& problem) {
  std::vector<Bits> bits;
  for (size_t i = 0; i < problem.spec().sequences.size(); ++i) {
    bits.push_back(problem.OutputBits(static_cast<int64_t>(i)));
  }
  return bits;
}

}  // namespace attention::test
