// Counts the bytes that the process copies. Linking it replaces the program's
// memcpy and memmove, also for the shared libraries that it uses; what a kernel
// or a system call moves is not among them.
#ifndef ATTENTION_TESTS_SUPPORT_COPY_COUNTER_H_
#define ATTENTION_TESTS_SUPPORT_COPY_COUNTER_H_

#include <cstdint>

namespace attention {

// By all threads since the program began, in copies of at least 1 KiB: payloads
// come in larger pieces. The rows that CPU kernels store are smaller.
int64_t CopiedBytes();

}  // namespace attention

#endif  // ATTENTION_TESTS_SUPPORT_COPY_COUNTER_H_
