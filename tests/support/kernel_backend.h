// One interface to the kernels of the CPU and of a CUDA device, so that one
// test suite serves both.
#ifndef ATTENTION_TESTS_SUPPORT_KERNEL_BACKEND_H_
#define ATTENTION_TESTS_SUPPORT_KERNEL_BACKEND_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/attention_params.h"
#include "kernels/paged_params.h"
#include "tests/support/attention_problem.h"
#include "tests/support/comparison.h"

namespace attention::test {

// Memory of a backend's device that holds pages.
class PageMemory {
 public:
  virtual ~PageMemory() = default;

  // Aligned to 256 bytes; not for the host to touch.
  virtual std::byte* data() = 0;
  virtual absl::StatusOr<std::vector<std::byte>> Read() = 0;
  virtual absl::Status Fill(size_t offset, size_t bytes, std::byte value) = 0;
};

class KernelBackend {
 public:
  virtual ~KernelBackend() = default;

  // Validates and computes. Pointers in `params` are null or point into
  // `buffers`, which are host memory; writable buffers receive the results.
  virtual absl::Status Compute(const AttentionParams& params,
                               std::span<Buffer> buffers) = 0;

  // Every byte is 0xff, which makes every element NaN.
  virtual absl::StatusOr<std::unique_ptr<PageMemory>> AllocatePages(
      size_t bytes) = 0;

  // As Compute(); pages are addresses in memory from AllocatePages().
  virtual absl::Status ComputePaged(const PagedParams& params,
                                    std::span<Buffer> buffers) = 0;
};

enum class BackendKind { kCpu, kCuda };

std::unique_ptr<KernelBackend> MakeCpuBackend(int thread_count);

// Unavailable, with the reason, if this build or machine has no CUDA.
absl::StatusOr<std::unique_ptr<KernelBackend>> MakeCudaBackend();

// The seed of this run: --gtest_random_seed, or a fresh one if that is 0.
// Derive all randomness from it; failures print it.
uint64_t RunSeed();

// A test that runs once per backend, and is skipped where that is missing.
//
//   class SweepTest : public KernelTest {};
//   TEST_P(SweepTest, Dense) { Check(spec); }
//   INSTANTIATE_FOR_BACKENDS(SweepTest);
class KernelTest : public testing::TestWithParam<BackendKind> {
 protected:
  void SetUp() override;

  KernelBackend& backend() { return *backend_; }
  std::mt19937_64& random() { return random_; }

  // Uniform in [low, high].
  int64_t Draw(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }
  template <typename Range>
  auto Pick(const Range& choices) {
    return std::data(choices)[Draw(0, std::ssize(choices) - 1)];
  }

  // What the backend promises. On the CPU more than on a GPU.
  Float8Weights float8_weights() const {
    return GetParam() == BackendKind::kCpu ? Float8Weights::kBFloat16
                                           : Float8Weights::kFloat8;
  }

  // Computes the problem; fails the test if that fails, or if anything but the
  // outputs was written.
  void Run(AttentionProblem& problem);

  // Run(), and the results must match the reference.
  void Check(AttentionProblem& problem);
  void Check(const ProblemSpec& spec);

 private:
  std::mt19937_64 random_;
  std::unique_ptr<testing::ScopedTrace> trace_;
  KernelBackend* backend_ = nullptr;
};

std::string BackendName(const testing::TestParamInfo<BackendKind>& info);

#define INSTANTIATE_FOR_BACKENDS(suite)                         \
  INSTANTIATE_TEST_SUITE_P(                                     \
      Backends, suite,                                          \
      ::testing::Values(::attention::test::BackendKind::kCpu,   \
                        ::attention::test::BackendKind::kCuda), \
      ::attention::test::BackendName)

}  // namespace attention::test

#endif  // ATTENTION_TESTS_SUPPORT_KERNEL_BACKEND_H_
