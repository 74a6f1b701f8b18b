// Memory that the client and a server on the same machine share.
//
//   auto region = client->CreateSharedMemoryRegion({.size_bytes = bytes});
//   if (!region.ok()) return region.status();
//   char* q = static_cast<char*>((*region)->data());
//   ...
//   request.query = attention::TensorView::Contiguous(q, shape, 2);
//
// Tensors of a request that lie in a region of its client are not sent: the
// server reads them there. Likewise AttentionRequest::output_buffer and the
// like let the server write results there.
#ifndef ATTENTION_CLIENT_CPP_SHARED_MEMORY_REGION_H_
#define ATTENTION_CLIENT_CPP_SHARED_MEMORY_REGION_H_

#include <sys/types.h>

#include <cstddef>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace attention {

// Destroy regions before their client, after all calls that use them, and not
// in a callback: the destructor tells the server, unmaps and unlinks. Should
// the server not answer, it lets go of the region when the lease ends. Methods
// are thread-safe.
class SharedMemoryRegion {
 public:
  struct Options {
    size_t size_bytes = 0;  // more than 0
    // The server forgets a region that no request has used for so long. More
    // than 0, at most 1 hour.
    absl::Duration lease = absl::Minutes(1);
    // Permissions of the object. The server's user must be able to read and
    // write it; the default is for a server of the same user.
    mode_t mode = 0600;
  };

  virtual ~SharedMemoryRegion() = default;

  // Page-aligned, zero at first.
  virtual void* data() const = 0;
  virtual size_t size_bytes() const = 0;

  // Begins a new lease, also when the last one has ended or the server has been
  // started anew. Errors are the server's.
  virtual absl::Status Renew() = 0;
};

}  // namespace attention

#endif  // ATTENTION_CLIENT_CPP_SHARED_MEMORY_REGION_H_
