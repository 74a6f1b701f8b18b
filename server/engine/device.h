// Something that computes batches: one GPU, or the host's processors.
//
// The interface between scheduling and the backends. A device works on up to
// slot_count() batches at a time, so that the copies of one overlap the
// computation of another; the scheduler never has more in flight.
#ifndef ATTENTION_SERVER_ENGINE_DEVICE_H_
#define ATTENTION_SERVER_ENGINE_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/engine/attention_work.h"
#include "server/engine/input_upload.h"
#include "server/engine/kv_cache.h"
#include "server/memory/memory_pool.h"

namespace attention {

struct DeviceDescription {
  std::string name;     // "cuda:0", "cpu:0"
  std::string backend;  // "cuda", "cpu"
  std::string model;    // "NVIDIA H200", "AVX3"
  std::string compute_capability;  // "9.0"; empty for a CPU
  std::string uuid;                // 16 bytes; empty for a CPU
  size_t memory_bytes = 0;
  size_t memory_budget_bytes = 0;
  int processor_count = 0;  // multiprocessors, or worker threads
};

class Device {
 public:
  // Waits for batches in flight.
  virtual ~Device() = default;

  virtual const DeviceDescription& description() const = 0;

  // Batches that may be in flight at the same time; at least 2 on a GPU.
  virtual int slot_count() const = 0;

  // Memory for inputs that arrive in pieces, on the way to a work that this
  // device runs. RESOURCE_EXHAUSTED when it does not fit at present,
  // UNIMPLEMENTED when the device takes none. The device outlives the result.
  virtual absl::StatusOr<std::unique_ptr<InputUpload>> ReserveInputs(
      const InputSizes& /*sizes*/) {
    return absl::UnimplementedError("the device takes no uploads");
  }

  // Gets memory for the results of `work`, which otherwise the batch does.
  // RESOURCE_EXHAUSTED when it does not fit at present; then the work is
  // unchanged.
  virtual absl::Status ReserveResults(AttentionWork& /*work*/) {
    return absl::UnimplementedError("the device reserves no results");
  }

  // Memory for the pages of keys and values that stay on the device; null when
  // it runs no resident works. As long-lived as the device.
  virtual MemoryPool* page_pool() { return nullptr; }

  // Memory of the host that KvCache::Move may name, for as long as the device
  // lives; null when it runs no resident works.
  virtual std::unique_ptr<Allocator> MakeSpillAllocator() { return nullptr; }

  // Where resident works find their keys and values. Before the first of them;
  // outlives the device's last batch.
  virtual void SetKvCache(KvCache* /*cache*/) {}

  // Takes the batch and returns at once; only one that is_short may be computed
  // before the return. Calls every work's `done` exactly once, and `slot_free`
  // once another batch may take its slot, perhaps before all answers have been
  // given: after the last one `slot_free` is destroyed. All that on the device's
  // own threads or before the return. An error
  // concerns the works that caused it where that can be told (a work that does not fit into
  // memory gets RESOURCE_EXHAUSTED while the others of its batch run), and the
  // whole batch otherwise.
  virtual void Run(std::unique_ptr<Batch> batch,
                   absl::AnyInvocable<void()> slot_free) = 0;

  // Not OK once the device cannot compute any more (a sticky CUDA error). Every
  // later batch fails with UNAVAILABLE.
  virtual absl::Status health() const = 0;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_ENGINE_DEVICE_H_
