// Paged attention of the fake CUDA runtime.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cpu/paged.h"
#include "kernels/validation.h"
#include "tests/server/engine/fake_cuda_runtime.h"

namespace attention::test {
namespace {

// Hands out memory one piece after the other.
class Cursor {
 public:
  explicit Cursor(void* data) : next_(static_cast<char*>(data)) {}

  template <typename T>
  T* Copy(const T* from, int64_t count) {
    if (from == nullptr) return nullptr;
    T* const to = reinterpret_cast<T*>(next_);
    std::copy_n(from, count, to);
    next_ += count * static_cast<int64_t>(sizeof(T));
    return to;
  }

 private:
  char* next_;
};

}  // namespace

void FakeCudaRuntime::SetScratchPerPage(size_t bytes) {
  absl::MutexLock lock(&mutex_);
  scratch_per_page_ = bytes;
}

// As the real one, of lengths only.
CudaRuntime::ScratchBytes FakeCudaRuntime::PagedScratchSize(
    const PagedParams& params) {
  absl::MutexLock lock(&mutex_);
  size_t host_bytes = static_cast<size_t>(params.copy_count) * sizeof(PageCopy);
  size_t device_bytes = 0;
  for (int64_t i = 0; i < params.sequence_count; ++i) {
    const int64_t pages =
        PagesFor(params.config, params.sequences[i].key_length);
    host_bytes += sizeof(PagedSequence) + pages * sizeof(void*) +
                  2 * params.config.heads.kv_head_count * sizeof(float);
    device_bytes += pages * scratch_per_page_;
  }
  return {.host_bytes = host_bytes, .device_bytes = device_bytes};
}

absl::Status FakeCudaRuntime::CheckPaged(const PagedParams& params) const {
  absl::Status status = ValidatePagedParams(params);
  const size_t page_bytes = static_cast<size_t>(PageBytes(params.config));
  const auto check = [&](const void* pointer, size_t bytes) {
    if (pointer == nullptr) return;
    status.Update(CheckRange(pointer, bytes, Kind::kDevice));
  };
  for (int64_t i = 0; i < params.sequence_count; ++i) {
    const PagedSequence& s = params.sequences[i];
    if (s.query_length > 0) {
      check(s.query, 0);
      check(s.output, 0);
      check(s.log_sum_exp, 0);
    }
    if (s.append_length > 0) {
      check(s.new_key, 0);
      check(s.new_value, 0);
    }
    for (int64_t p = 0; p < PagesFor(params.config, s.key_length); ++p) {
      check(s.pages[p], page_bytes);
    }
  }
  for (int64_t i = 0; i < params.copy_count; ++i) {
    check(params.copies[i].from, page_bytes);
    check(params.copies[i].to, page_bytes);
  }
  return status;
}

absl::Status FakeCudaRuntime::LaunchPaged(const PagedParams& params,
                                          const Scratch& scratch,
                                          Stream stream) {
  absl::Status status = Enter(Call::kLaunchPaged);
  status.Update(CheckScratch(scratch, PagedScratchSize(params)));
  status.Update(CheckPaged(params));
  if (!status.ok()) return status;
  // All that lies in host memory may be gone when the launch comes to run.
  Cursor cursor(scratch.host);
  PagedParams later = params;
  PagedSequence* const sequences =
      cursor.Copy(params.sequences, params.sequence_count);
  later.sequences = sequences;
  later.copies = cursor.Copy(params.copies, params.copy_count);
  for (int64_t i = 0; i < params.sequence_count; ++i) {
    PagedSequence& s = sequences[i];
    s.pages = cursor.Copy(s.pages, PagesFor(params.config, s.key_length));
  }
  for (int64_t i = 0; i < params.sequence_count; ++i) {
    PagedSequence& s = sequences[i];
    const int32_t heads = params.config.heads.kv_head_count;
    s.key_scales = cursor.Copy(s.key_scales, heads);
    s.value_scales = cursor.Copy(s.value_scales, heads);
  }
  Enqueue(stream, [this, later] {
    EXPECT_TRUE(cpu::ComputePaged(later, threads_).ok());
  });
  return status;
}

}  // namespace attention::test
