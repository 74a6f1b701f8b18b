// Memory for the requests' copies of tensors, used again by later requests.
//
// malloc gives tens of megabytes back to the system when they are freed, so
// that every request would fault in each of its pages anew: that costs as much
// as the copy, or on virtual machines many times as much.
#ifndef ATTENTION_CLIENT_CPP_REQUEST_MEMORY_H_
#define ATTENTION_CLIENT_CPP_REQUEST_MEMORY_H_

#include <cstddef>
#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/support/slice.h"

namespace attention {

// Thread-safe. Lives as long as its slices.
class RequestMemory : public std::enable_shared_from_this<RequestMemory> {
 public:
  // Keeps at most `max_cached_bytes` that no slice uses.
  static std::shared_ptr<RequestMemory> Create(size_t max_cached_bytes);
  ~RequestMemory();

  // A slice with a copy of `data`.
  grpc::Slice Copy(const void* data, size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  size_t cached_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Buffer {
    std::shared_ptr<RequestMemory> memory;
    void* data;
    size_t capacity;
  };

  explicit RequestMemory(size_t max_cached_bytes)
      : max_cached_bytes_(max_cached_bytes) {}
  static void Release(void* buffer);
  // Null when there is none.
  void* TakeCached(size_t capacity) ABSL_LOCKS_EXCLUDED(mutex_);
  void Keep(void* data, size_t capacity) ABSL_LOCKS_EXCLUDED(mutex_);

  const size_t max_cached_bytes_;
  mutable absl::Mutex mutex_;
  std::multimap<size_t, void*> free_ ABSL_GUARDED_BY(mutex_);  // by capacity
  size_t cached_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace attention

#endif  // ATTENTION_CLIENT_CPP_REQUEST_MEMORY_H_
