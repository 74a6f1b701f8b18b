// From Works to kernel parameters: what every backend does with a batch.
#ifndef ATTENTION_SERVER_ENGINE_BATCH_BINDING_H_
#define ATTENTION_SERVER_ENGINE_BATCH_BINDING_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/attention_params.h"
#include "server/engine/attention_work.h"
#include "server/memory/memory_pool.h"

namespace attention {

// Where the tensors of one Work begin, in the address space of the device. Null
// for tensors without bytes.
struct WorkAddresses {
  const void* query = nullptr;
  const void* key = nullptr;
  const void* value = nullptr;
  void* output = nullptr;
  float* log_sum_exp = nullptr;
  void* weights = nullptr;
};

// `base` advanced by `elements`; null stays null, so that tensors without bytes
// cause no pointer arithmetic.
template <typename T>
T* Advance(T* base, int64_t elements, int64_t element_bytes) {
  if (base == nullptr) return nullptr;
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  return reinterpret_cast<T*>(reinterpret_cast<Byte*>(base) +
                              elements * element_bytes);
}

// A Work with the memory that it needs while it is computed.
struct PreparedWork {
  std::unique_ptr<AttentionWork> work;
  WorkResult result;  // the blocks; durations are filled in at the end
  WorkAddresses addresses;
  Block staging;  // host memory for the inputs, where they are copied
  // Only on devices with memory of their own: they begin with what lies in
  // `staging` and in `host_results`, of which `result` has parts.
  Block device_inputs;
  Block device_results;
  Block host_results;
  // Set while computing: an error of this work alone. Its result is void, those
  // of its batch mates are not.
  absl::Status status;
};

// Host blocks of the sizes that `work` asks for. RESOURCE_EXHAUSTED as
// MemoryPool::Allocate; then the work is unchanged.
absl::Status ReserveHostResults(AttentionWork& work, MemoryPool& pool);

// The blocks that have been reserved, or as above.
absl::StatusOr<WorkResult> AllocateResult(AttentionWork& work,
                                          MemoryPool& pool);

// The sequence of that index with its pointers set. Those to scales are to the
// work's.
Sequence BindSequence(const AttentionWork& work, size_t index,
                      const WorkAddresses& addresses);

// Makes `sequences` those of all works with their pointers set, ready for a
// launch. Keeps the vector's memory.
void BindSequences(absl::Span<const PreparedWork> works,
                   std::vector<Sequence>& sequences);

// That the work is one that kernels compute: ValidateParams once its pointers
// are set, for a resident work as if the tokens to append were its only keys.
// `sequences` lends its memory.
absl::Status ValidateWork(const PreparedWork& prepared,
                          std::vector<Sequence>& sequences);

// Sum over visible (query, key) pairs; see kernels/cost.h.
double TotalFlops(const AttentionWork& work);

// The payload's bytes where they are, if it is one fragment that is aligned to
// elements of `element_bytes`; otherwise null.
const void* InPlace(const Payload& payload, size_t element_bytes);

// Copies the payload to `destination`. Errors are those of its source; then the
// destination is undefined.
absl::Status Gather(const Payload& payload, void* destination);

// Whether some of the sequence_statuses are not OK: then the results are to be
// cleared before the others are computed.
bool HasFailedSteps(const PreparedWork& prepared);

// Fills a log-sum-exp buffer with -infinity: what rows without keys have.
void FillEmptyLogSumExp(void* log_sum_exp, size_t bytes);

}  // namespace attention

#endif  // ATTENTION_SERVER_ENGINE_BATCH_BINDING_H_
