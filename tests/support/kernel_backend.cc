#include "tests/support/kernel_backend.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/attention_cpu.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/validation.h"
#include "tests/support/comparison.h"

namespace attention::test {
namespace {

class CpuBackend : public KernelBackend {
 public:
  explicit CpuBackend(int thread_count) : pool_(thread_count) {}

  absl::Status Compute(const AttentionParams& params,
                       std::span<Buffer>) override {
    if (auto status = ValidateParams(params); !status.ok()) return status;
    return cpu::ComputeAttention(params, pool_);
  }

 private:
  cpu::ThreadPool pool_;
};

// Backends live as long as the program: starting one is slow on a GPU.
absl::StatusOr<KernelBackend*> SharedBackend(BackendKind kind) {
  if (kind == BackendKind::kCpu) {
    static KernelBackend* const backend =
        MakeCpuBackend(std::max(2u, std::thread::hardware_concurrency()))
            .release();
    return backend;
  }
  static auto* const backend = new auto(MakeCudaBackend());
  if (!backend->ok()) return backend->status();
  return backend->value().get();
}

}  // namespace

std::unique_ptr<KernelBackend> MakeCpuBackend(int thread_count) {
  return std::make_unique<CpuBackend>(thread_count);
}

#if !defined(ATTENTION_TEST_CUDA)
absl::StatusOr<std::unique_ptr<KernelBackend>> MakeCudaBackend() {
  return absl::UnavailableError("built without the CUDA backend");
}
#endif

uint64_t RunSeed() {
  // GoogleTest's own seeds lie in [1, 99999].
  static const uint64_t seed = GTEST_FLAG_GET(random_seed) > 0
                                   ? GTEST_FLAG_GET(random_seed)
                                   : std::random_device()() % 99999 + 1;
  return seed;
}

void KernelTest::SetUp() {
  auto shared = SharedBackend(GetParam());
  if (!shared.ok()) GTEST_SKIP() << shared.status().message();
  backend_ = *shared;
  trace_ = std::make_unique<testing::ScopedTrace>(
      __FILE__, __LINE__,
      absl::StrCat("repeat with --gtest_random_seed=", RunSeed()));
  random_.seed(RunSeed());
}

void KernelTest::Run(AttentionProblem& problem) {
  problem.ResetOutputs();
  const absl::Status status =
      backend().Compute(problem.params(), problem.buffers());
  ASSERT_TRUE(status.ok()) << status << "\n  in " << ToString(problem.spec());
  ASSERT_TRUE(problem.OnlyOutputsWritten())
      << "  in " << ToString(problem.spec());
}

void KernelTest::Check(AttentionProblem& problem) {
  ASSERT_NO_FATAL_FAILURE(Run(problem));
  EXPECT_TRUE(MatchesReference(problem));
}

void KernelTest::Check(const ProblemSpec& spec) {
  AttentionProblem problem(spec);
  Check(problem);
}

std::string BackendName(const testing::TestParamInfo<BackendKind>& info) {
  return info.param == BackendKind::kCpu ? "Cpu" : "Cuda";
}

}  // namespace attention::test
