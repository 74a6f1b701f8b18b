// Memory of a GPU that the client and a server on the same machine share.
//
//   cudaIpcMemHandle_t handle;
//   cudaIpcGetMemHandle(&handle, data);  // of cudaMalloc
//   cudaDeviceProp properties;
//   cudaGetDeviceProperties(&properties, device);
//   auto region = client->RegisterCudaMemory(
//       {.data = data,
//        .size_bytes = bytes,
//        .memory_handle = std::string(handle.reserved, sizeof(handle)),
//        .device_uuid = std::string(properties.uuid.bytes, 16)});
//
// Tensors of a request that lie in it are used where they are, and results are
// written to AttentionRequest::output_buffer and the like. The client library
// itself does not use CUDA.
//
// What fills the tensors must have finished before a request is sent
// (synchronise the stream); results are complete when the answer comes. A
// tensor that does not lie in a region as a whole is taken for the host's
// memory.
#ifndef ATTENTION_CLIENT_CPP_CUDA_MEMORY_REGION_H_
#define ATTENTION_CLIENT_CPP_CUDA_MEMORY_REGION_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace attention {

// Destroy regions before their client, after all calls that use them, and not
// in a callback: the destructor tells the server. Free the memory afterwards.
// Methods are thread-safe.
class CudaMemoryRegion {
 public:
  struct Options {
    void* data = nullptr;       // what cudaMalloc returned
    size_t size_bytes = 0;      // more than 0
    std::string memory_handle;  // 64 bytes: cudaIpcMemHandle_t
    std::string device_uuid;    // 16 bytes: cudaDeviceProp::uuid
    // The server forgets a region that no request has used for so long. More
    // than 0, at most 1 hour.
    absl::Duration lease = absl::Minutes(1);
  };

  virtual ~CudaMemoryRegion() = default;

  virtual void* data() const = 0;
  virtual size_t size_bytes() const = 0;

  // Begins a new lease, also when the last one has ended or the server has been
  // started anew. Errors are the server's.
  virtual absl::Status Renew() = 0;
};

}  // namespace attention

#endif  // ATTENTION_CLIENT_CPP_CUDA_MEMORY_REGION_H_
