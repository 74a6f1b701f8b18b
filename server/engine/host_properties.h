// What the process may use of the machine that it runs on.
#ifndef ATTENTION_SERVER_ENGINE_HOST_PROPERTIES_H_
#define ATTENTION_SERVER_ENGINE_HOST_PROPERTIES_H_

#include <cstddef>

namespace attention {

// Processors that the process may be scheduled on, at least 1.
int UsableProcessorCount();

// Physical memory, or the limit of the process's control group if that is less.
size_t HostMemoryBytes();

}  // namespace attention

#endif  // ATTENTION_SERVER_ENGINE_HOST_PROPERTIES_H_
