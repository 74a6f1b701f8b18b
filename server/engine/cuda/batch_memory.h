// Memory of works on a GPU, and beside it on the host.
#ifndef ATTENTION_SERVER_ENGINE_CUDA_BATCH_MEMORY_H_
#define ATTENTION_SERVER_ENGINE_CUDA_BATCH_MEMORY_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/engine/attention_work.h"
#include "server/engine/batch_binding.h"
#include "server/memory/memory_pool.h"

namespace attention {

// Where the tensors of a work begin, in bytes from the start of its inputs and
// of its results. Aligned to 256 bytes, sizes too, so that works can follow
// each other.
struct WorkLayout {
  explicit WorkLayout(const AttentionWork& work);

  size_t query, key, value;
  size_t input_bytes;
  size_t output, log_sum_exp, weights;
  size_t result_bytes;
};

// Works from the front that are small enough to share memory: one copy then
// serves many, and few sizes of blocks serve every mixture. A large work does
// without, as its blocks would pin the answers of its batch mates.
size_t CountToPlaceTogether(absl::Span<const PreparedWork> works);

// Gets memory for all works, which lie one after the other in one block of
// inputs in pinned memory, one of results there, and one on the device; sets
// all of each but its work. RESOURCE_EXHAUSTED as MemoryPool::Allocate; then
// the works are unchanged.
absl::Status PlaceTogether(absl::Span<PreparedWork> works, MemoryPool& pinned,
                           MemoryPool& device);

// Whether `next` begins where `block` ends, in memory that they share.
bool Follows(const Block& next, const Block& block);

}  // namespace attention

#endif  // ATTENTION_SERVER_ENGINE_CUDA_BATCH_MEMORY_H_
