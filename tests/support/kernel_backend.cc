#include "tests/support/kernel_backend.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/attention_cpu.h"
#include "kernels/cpu/paged.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/validation.h"

namespace attention::test {
namespace {

class HostPages : public PageMemory {
 public:
  // Ends where accessible memory ends: reading beyond is a crash. `bytes` is a
  // multiple of 256.
  explicit HostPages(size_t bytes)
      : bytes_(bytes),
        mapped_bytes_((bytes + kGuard - 1) / kGuard * kGuard + kGuard),
        mapping_(mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)),
        data_(static_cast<std::byte*>(mapping_) + mapped_bytes_ - kGuard -
              bytes) {
    EXPECT_NE(mapping_, MAP_FAILED);
    EXPECT_EQ(mprotect(data_ + bytes, kGuard, PROT_NONE), 0);
    std::fill_n(data_, bytes, std::byte{0xff});
  }
  ~HostPages() override { munmap(mapping_, mapped_bytes_); }

  std::byte* data() override { return data_; }
  absl::StatusOr<std::vector<std::byte>> Read() override {
    return std::vector<std::byte>(data_, data_ + bytes_);
  }
  absl::Status Fill(size_t offset, size_t bytes, std::byte value) override {
    std::fill_n(data_ + offset, bytes, value);
    return absl::OkStatus();
  }

 private:
  static constexpr size_t kGuard = 1 << 16;  // whole pages of any system
  const size_t bytes_;
  const size_t mapped_bytes_;
  void* const mapping_;
  std::byte* const data_;
};

class CpuBackend : public KernelBackend {
 public:
  explicit CpuBackend(int thread_count) : pool_(thread_count) {}

  absl::Status Compute(const AttentionParams& params,
                       std::span<Buffer>) override {
    if (auto status = ValidateParams(params); !status.ok()) return status;
    return cpu::ComputeAttention(params, pool_);
  }

  absl::StatusOr<std::unique_ptr<PageMemory>> AllocatePages(
      size_t bytes) override {
    return std::make_unique<HostPages>(bytes);
  }

  absl::Status ComputePaged(const PagedParams& params,
                            std::span<Buffer>) override {
    if (auto status = ValidatePagedParams(params); !status.ok()) return status;
    return cpu::ComputePaged(params, pool_);
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
  EXPECT_TRUE(MatchesReference(problem, float8_weights()));
}

void KernelTest::Check(const ProblemSpec& spec) {
  AttentionProblem problem(spec);
  Check(problem);
}

std::string BackendName(const testing::TestParamInfo<BackendKind>& info) {
  return info.param == BackendKind::kCpu ? "Cpu" : "Cuda";
}

}  // namespace attention::test
