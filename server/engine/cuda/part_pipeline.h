// Computes the parts of a work beside each other.
#ifndef ATTENTION_SERVER_ENGINE_CUDA_PART_PIPELINE_H_
#define ATTENTION_SERVER_ENGINE_CUDA_PART_PIPELINE_H_

#include <array>
#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/attention_params.h"
#include "server/engine/cuda/cuda_runtime.h"

namespace attention {

// Computes parts, and copies their results out, on streams of its own, while
// another stream brings the inputs of later parts. Used by one thread at a
// time; all calls for one work name the same `stream`.
class PartPipeline {
 public:
  // Of a part's output, to pinned memory.
  struct CopyOut {
    void* host;
    const void* device;
    size_t bytes;
  };

  // On the current device. `runtime` must outlive the object.
  static absl::StatusOr<std::unique_ptr<PartPipeline>> Create(
      CudaRuntime* runtime);
  ~PartPipeline();

  // Enqueues the part to begin when all that `stream` has been given is done.
  absl::Status Enqueue(const AttentionParams& params,
                       const CudaRuntime::Scratch& scratch,
                       const CopyOut& copy_out, CudaRuntime::Stream stream);

  // What `stream` is given from now on happens after all parts have been
  // computed, or also copied out.
  absl::Status AwaitComputed(CudaRuntime::Stream stream);
  absl::Status AwaitCopiedOut(CudaRuntime::Stream stream);

  // Returns when nothing is under way; for use after an error.
  void Synchronize();

 private:
  // Enough for parts to fill the GPU together; streams share few channels to
  // it.
  static constexpr size_t kLaneCount = 3;

  struct Lane {
    CudaRuntime::Stream stream = nullptr;
    CudaRuntime::Event computed = nullptr;  // its last part
    CudaRuntime::Event copied_out = nullptr;
  };

  explicit PartPipeline(CudaRuntime* runtime) : runtime_(*runtime) {}
  absl::Status SetUp();

  CudaRuntime& runtime_;
  CudaRuntime::Event arrived_ = nullptr;
  std::array<Lane, kLaneCount> lanes_;
  size_t next_lane_ = 0;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_ENGINE_CUDA_PART_PIPELINE_H_
