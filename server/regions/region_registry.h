// The regions that callers have registered, by owner and name.
//
// An owner is whoever knows a token, a secret that the caller chooses: a
// connection's address would not do, since a client spreads its calls over
// several connections and reconnects, and proxies merge those of many.
//
// gRPC does not tell when a client is gone, so regions live on leases: one that
// is not used for as long as its lease says is forgotten. Whoever got a region
// keeps it alive, whatever becomes of its registration; such regions still
// count towards the limits, until they are let go.
#ifndef ATTENTION_SERVER_REGIONS_REGION_REGISTRY_H_
#define ATTENTION_SERVER_REGIONS_REGION_REGISTRY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/engine/cuda/cuda_runtime.h"
#include "server/metrics/metrics.h"
#include "server/regions/cuda_region.h"
#include "server/regions/region.h"
#include "server/scheduling/clock.h"

namespace attention {

inline constexpr size_t kMinOwnerTokenBytes = 16;
inline constexpr size_t kMaxOwnerTokenBytes = 64;
inline constexpr size_t kMaxRegionNameBytes = 256;
inline constexpr absl::Duration kDefaultLease = absl::Minutes(1);
inline constexpr absl::Duration kMaxLease = absl::Hours(1);

struct RegionDescription {
  std::string name;
  std::string object_name;         // of POSIX shared memory
  std::optional<CudaMemory> cuda;  // or memory of a GPU
  int64_t byte_offset = 0;
  int64_t byte_size = 0;
  absl::Duration lease = kDefaultLease;  // more than 0, at most kMaxLease
};

// Thread-safe.
class RegionRegistry {
 public:
  struct Options {
    bool allow_system = true;               // POSIX shared memory
    bool allow_cuda = false;                // memory of GPUs, by CUDA IPC
    int max_region_count = 256;             // each may take a file descriptor
    int64_t max_bytes = int64_t{64} << 30;  // of all regions together
  };

  // All outlive the registry, `metrics` and `cuda` also all regions. `cuda` is
  // null without GPUs.
  RegionRegistry(Options options, Clock* clock, Metrics* metrics,
                 CudaRuntime* cuda = nullptr);

  bool takes_system_memory() const { return options_.allow_system; }
  bool takes_cuda_memory() const { return cuda_handles_.ok(); }

  // The region, whether new or not. Errors of SystemRegion::Open and
  // CudaHandles::OpenRegion, and
  //   UNIMPLEMENTED       regions of this sort are not allowed
  //   FAILED_PRECONDITION a GPU's memory is none that this server can use
  //   INVALID_ARGUMENT    token, name or lease out of range
  //   ALREADY_EXISTS      the owner has another region of that name. The same
  //                       one is renewed, with the new lease.
  //   RESOURCE_EXHAUSTED  a limit is reached
  absl::StatusOr<std::shared_ptr<const Region>> Register(
      absl::string_view owner, const RegionDescription& description)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // NOT_FOUND when the owner has no such region (any more).
  absl::Status Unregister(absl::string_view owner, absl::string_view name)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Renews the lease. NOT_FOUND as above.
  absl::StatusOr<std::shared_ptr<const Region>> Use(absl::string_view owner,
                                                    absl::string_view name)
      ABSL_LOCKS_EXCLUDED(mutex_);

  struct Listed {
    RegionDescription description;
    absl::Duration remaining;  // of the lease
    DirectMemory direct;
  };
  // By name.
  std::vector<Listed> List(absl::string_view owner) ABSL_LOCKS_EXCLUDED(mutex_);

  // To be called now and then: forgets regions whose lease has ended. (They are
  // not to be had any more in any case.)
  void ReleaseExpired() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Entry {
    RegionDescription description;
    std::shared_ptr<const Region> region;
    absl::Time expiry;
  };
  using Key = std::pair<std::string, std::string>;  // owner, name

  // Regions that are registered or held.
  class Usage;

  absl::StatusOr<std::unique_ptr<Region>> Open(
      const RegionDescription& description);
  // The owner's region of that name if it is the given one, with its lease
  // renewed; null when there is none. ALREADY_EXISTS when it is another.
  absl::StatusOr<std::shared_ptr<const Region>> Renew(
      absl::string_view owner, const RegionDescription& description,
      const Region& region) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Null when there is none, or when its lease has ended.
  Entry* Find(absl::string_view owner, absl::string_view name)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  Clock* const clock_;
  CudaRuntime* const cuda_;
  // Why there are none, if there are none.
  const absl::StatusOr<std::shared_ptr<CudaHandles>> cuda_handles_;
  const std::shared_ptr<Usage> usage_;
  absl::Mutex mutex_;
  std::map<Key, Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attention

#endif  // ATTENTION_SERVER_REGIONS_REGION_REGISTRY_H_
