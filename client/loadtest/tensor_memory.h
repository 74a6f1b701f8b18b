// Memory that a server on this machine shares with the load tester.
#ifndef ATTENTION_CLIENT_LOADTEST_TENSOR_MEMORY_H_
#define ATTENTION_CLIENT_LOADTEST_TENSOR_MEMORY_H_

#include <cstddef>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/attention_client.h"

namespace attention::loadtest {

// Thread-safe. `data` of requests points into it.
class TensorMemory {
 public:
  virtual ~TensorMemory() = default;

  // Aligned to a cache line at least. Not necessarily the host's.
  virtual char* data() const = 0;
  // Between it and the host's memory; complete on return. `to` and `from` lie
  // in this memory.
  virtual absl::Status Write(char* to, const void* from, size_t bytes) = 0;
  virtual absl::Status Read(void* to, const char* from, size_t bytes) = 0;
};

// Memory of `bytes` (> 0) for requests of the client, which must outlive it.
using MakeTensorMemory =
    absl::FunctionRef<absl::StatusOr<std::unique_ptr<TensorMemory>>(
        Client& client, size_t bytes)>;

// POSIX shared memory. Errors are Client::CreateSharedMemoryRegion's.
absl::StatusOr<std::unique_ptr<TensorMemory>> MakeSharedMemory(Client& client,
                                                               size_t bytes);

// Memory of GPU `device` (CUDA's number in this process), by CUDA IPC. Errors
// are Client::RegisterCudaMemory's and CUDA's; UNIMPLEMENTED in a build without
// CUDA.
absl::StatusOr<std::unique_ptr<TensorMemory>> MakeCudaMemory(Client& client,
                                                             size_t bytes,
                                                             int device);

}  // namespace attention::loadtest

#endif  // ATTENTION_CLIENT_LOADTEST_TENSOR_MEMORY_H_
