// Memory of works on a GPU, and beside it on the host.
#ifndef ATTENTION_SERVER_ENGINE_CUDA_BATCH_MEMORY_H_
#define ATTENTION_SERVER_ENGINE_CUDA_BATCH_MEMORY_H_

#include <array>
#include <cstddef>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/engine/attention_work.h"
#include "server/engine/batch_binding.h"
#include "server/memory/memory_pool.h"

namespace attention {

// How a tensor gets into the GPU's memory, or out of it.
enum class Route {
  kStaged,   // through memory of the pools, on both sides
  kPinned,   // between the GPU's memory and pinned memory of the caller
  kInPlace,  // not at all: the kernel uses it where it is
};

struct TensorPlace {
  Route route = Route::kStaged;
  DirectMemory direct;  // unless staged
  size_t bytes = 0;
  // From the start of the work's inputs or results on the device, and of those
  // in staging memory; unless in place.
  size_t offset = 0;
};

inline constexpr size_t kTensorAlignment = 256;
constexpr size_t AlignTensor(size_t bytes) {
  return (bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
}

// Where the tensors of a work lie. Aligned, sizes too, so that
// works can follow each other. Staged tensors come first, so that they lie in
// staging memory as on the device.
struct WorkLayout {
  explicit WorkLayout(const AttentionWork& work);

  TensorPlace query, key, value;
  size_t staged_input_bytes = 0;
  size_t input_bytes = 0;  // on the device
  TensorPlace output, log_sum_exp, weights;
  size_t staged_result_bytes = 0;
  size_t result_bytes = 0;

  std::array<const TensorPlace*, 3> inputs() const {
    return {&query, &key, &value};
  }
  std::array<const TensorPlace*, 3> results() const {
    return {&output, &log_sum_exp, &weights};
  }
};

// INTERNAL when a tensor lies in the memory of another GPU than `device`.
absl::Status CheckDevice(const AttentionWork& work, int device);

// Works from the front that are small enough to share memory: one copy then
// serves many, and few sizes of blocks serve every mixture. A large work does
// without, as its blocks would pin the answers of its batch mates, and so does
// one that has reserved its own.
size_t CountToPlaceTogether(absl::Span<const PreparedWork> works);

// Reserves memory for the results of a work: pinned, and on the device.
// RESOURCE_EXHAUSTED as MemoryPool::Allocate; then the work is unchanged.
absl::Status ReserveResultMemory(AttentionWork& work, MemoryPool& pinned,
                                 MemoryPool& device);

// Gets memory for all works, which lie one after the other in one block of
// inputs in pinned memory, one of results there, and one on the device; sets
// all of each but its work. RESOURCE_EXHAUSTED as MemoryPool::Allocate; then
// the works are unchanged.
absl::Status PlaceTogether(absl::Span<PreparedWork> works, MemoryPool& pinned,
                           MemoryPool& device);

// Whether the staged results of `next` begin where those of `previous` end,
// both in the memory that they share on the host and on the device.
bool StagedResultsFollow(const PreparedWork& next,
                         const PreparedWork& previous);

}  // namespace attention

#endif  // ATTENTION_SERVER_ENGINE_CUDA_BATCH_MEMORY_H_
