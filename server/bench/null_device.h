// A Device that moves every byte as a real one does and computes nothing: what
// is left of a call's time is the server's own.
#ifndef ATTENTION_SERVER_BENCH_NULL_DEVICE_H_
#define ATTENTION_SERVER_BENCH_NULL_DEVICE_H_

#include <memory>

#include "server/engine/device.h"
#include "server/memory/memory_pool.h"
#include "server/metrics/metrics.h"

namespace attention {

// Gathers inputs into blocks of `pool` and answers with blocks of `pool`, whose
// contents it leaves as they are. Two slots. Both arguments must outlive it.
std::unique_ptr<Device> MakeNullDevice(MemoryPool* pool, Metrics* metrics);

}  // namespace attention

#endif  // ATTENTION_SERVER_BENCH_NULL_DEVICE_H_
