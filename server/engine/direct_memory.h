// Memory that a GPU uses where it is, without a copy by a processor.
#ifndef ATTENTION_SERVER_ENGINE_DIRECT_MEMORY_H_
#define ATTENTION_SERVER_ENGINE_DIRECT_MEMORY_H_

#include <cstddef>

namespace attention {

// What the device of a work may be: an index into the scheduler's devices. A
// GPU's is CUDA's number of it too.
inline constexpr int kAnyDevice = -1;

// Where a tensor lies; the default is nowhere that a GPU can reach.
struct DirectMemory {
  enum class Kind {
    kNone,
    kPinned,  // host memory that the copy engines of every GPU reach
    kDevice,  // memory of the GPU `device`: kernels use it in place
  };

  Kind kind = Kind::kNone;
  // As GPUs see it. Of pinned memory a multiple of nothing in particular, in a
  // GPU's memory aligned to the elements of the tensor. Processors must not
  // touch it: it may belong to another process, which may take it away.
  void* address = nullptr;
  int device = kAnyDevice;  // only of kDevice

  bool is_pinned() const { return kind == Kind::kPinned; }
  bool is_on_device() const { return kind == Kind::kDevice; }
};

// Tensors of fewer bytes are copied through staging memory although they are
// pinned: copies of many small ones are made together there, and the driver may
// copy a few bytes with the processor.
inline constexpr size_t kMinDirectCopyBytes = size_t{256} << 10;

}  // namespace attention

#endif  // ATTENTION_SERVER_ENGINE_DIRECT_MEMORY_H_
