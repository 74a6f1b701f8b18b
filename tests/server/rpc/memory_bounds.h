// What a decoded request promises to the kernels.
#ifndef ATTENTION_TESTS_SERVER_RPC_MEMORY_BOUNDS_H_
#define ATTENTION_TESTS_SERVER_RPC_MEMORY_BOUNDS_H_

#include "absl/status/status.h"
#include "server/engine/attention_work.h"

namespace attention::test {

// Every element that a kernel would touch lies in its payload or in its result
// buffer. INTERNAL, naming the tensor, otherwise.
absl::Status CheckMemoryBounds(const AttentionWork& work);

}  // namespace attention::test

#endif  // ATTENTION_TESTS_SERVER_RPC_MEMORY_BOUNDS_H_
