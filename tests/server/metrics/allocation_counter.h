// Counts heap allocations. Linking it replaces the program's operator new.
#ifndef ATTENTION_TESTS_SERVER_METRICS_ALLOCATION_COUNTER_H_
#define ATTENTION_TESTS_SERVER_METRICS_ALLOCATION_COUNTER_H_

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

}  // namespace attention

#endif  // ATTENTION_TESTS_SERVER_METRICS_ALLOCATION_COUNTER_H_
