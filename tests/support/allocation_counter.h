// Counts heap allocations. Linking it replaces the program's operator new.
#ifndef ATTENTION_TESTS_SUPPORT_ALLOCATION_COUNTER_H_
#define ATTENTION_TESTS_SUPPORT_ALLOCATION_COUNTER_H_

#include <cstdint>

namespace attention {

// Counts what the constructing thread allocates while this object lives. One at
// a time per thread.
class AllocationCounter {
 public:
  AllocationCounter();
  ~AllocationCounter();
  int64_t count() const;
};

// What all threads together have allocated since the program began.
int64_t AllocationsOfAllThreads();

}  // namespace attention

#endif  // ATTENTION_TESTS_SUPPORT_ALLOCATION_COUNTER_H_
