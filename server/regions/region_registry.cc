#include "server/regions/region_registry.h"

#include "absl/strings/str_cat.h"
#include "server/engine/error_reason.h"
#include "server/regions/system_region.h"

namespace attention {
namespace {

absl::Status CheckLength(absl::string_view field, absl::string_view value,
                         size_t low, size_t high) {
  if (value.size() >= low && value.size() <= high) return absl::OkStatus();
  return InvalidRequest(absl::StrCat(field, " must have ", low, " to ", high,
                                     " bytes; got ", value.size()));
}

absl::Status CheckLease(absl::Duration lease) {
  if (lease > absl::ZeroDuration() && lease <= kMaxLease) {
    return absl::OkStatus();
  }
  return InvalidRequest(
      absl::StrCat("lease_duration must be more than 0 and at most ",
                   absl::FormatDuration(kMaxLease), "; got ",
                   absl::FormatDuration(lease)));
}

// The same whether it never was, has expired or is another owner's.
absl::Status NotFound(absl::string_view name) {
  return WithReason(
      absl::NotFoundError(absl::StrCat(
          "no region \"", name, "\" of this owner; its lease may have ended")),
      error_reason::kInvalidRequest);
}

absl::Status IsOff(absl::string_view what, absl::string_view flag) {
  return WithReason(absl::UnimplementedError(
                        absl::StrCat(what, "; start the server with ", flag)),
                    error_reason::kUnsupported);
}

absl::StatusOr<std::shared_ptr<CudaHandles>> MakeHandles(
    const RegionRegistry::Options& options, CudaRuntime* cuda) {
  if (!options.allow_cuda) {
    return IsOff("sharing memory of GPUs is off", "--allow_cuda_ipc");
  }
  if (cuda == nullptr) {
    return WithReason(absl::FailedPreconditionError(
                          "the server computes on the CPU: it has no GPU whose "
                          "memory could be shared"),
                      error_reason::kUnsupported);
  }
  return CudaHandles::Create(cuda);
}

}  // namespace

class RegionRegistry::Usage : public std::enable_shared_from_this<Usage> {
 public:
  Usage(const Options& options, Metrics* metrics)
      : options_(options), metrics_(metrics) {}

  // Counts the region until the last reference to it is gone.
  absl::StatusOr<std::shared_ptr<Region>> Admit(std::unique_ptr<Region> region)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    const int64_t bytes = region->size_bytes();
    {
      absl::MutexLock lock(&mutex_);
      if (count_ >= options_.max_region_count) {
        return absl::ResourceExhaustedError(
            absl::StrCat("at most ", options_.max_region_count,
                         " regions can be registered at a time"));
      }
      if (bytes > options_.max_bytes - bytes_) {
        return absl::ResourceExhaustedError(absl::StrCat(
            "all regions together must be at most ", options_.max_bytes,
            " bytes; got ", bytes, " on top of ", bytes_));
      }
      Add(1, bytes);
    }
    return std::shared_ptr<Region>(
        region.release(), [self = shared_from_this(), bytes](Region* r) {
          delete r;
          absl::MutexLock lock(&self->mutex_);
          self->Add(-1, -bytes);
        });
  }

 private:
  void Add(int count, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    count_ += count;
    bytes_ += bytes;
    metrics_->SetSharedMemoryRegions(count_, bytes_);
  }

  const Options options_;
  Metrics* const metrics_;
  absl::Mutex mutex_;
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

RegionRegistry::RegionRegistry(Options options, Clock* clock, Metrics* metrics,
                               CudaRuntime* cuda)
    : options_(options),
      clock_(clock),
      cuda_(cuda),
      cuda_handles_(MakeHandles(options, cuda)),
      usage_(std::make_shared<Usage>(options, metrics)) {}

absl::StatusOr<std::shared_ptr<const Region>> RegionRegistry::Register(
    absl::string_view owner, const RegionDescription& description) {
  for (const absl::Status& status :
       {CheckLength("owner_token", owner, kMinOwnerTokenBytes,
                    kMaxOwnerTokenBytes),
        CheckLength("region_name", description.name, 1, kMaxRegionNameBytes),
        CheckLease(description.lease)}) {
    if (!status.ok()) return status;
  }
  auto opened = Open(description);
  if (!opened.ok()) return opened.status();
  ReleaseExpired();  // makes room
  {
    absl::MutexLock lock(&mutex_);
    auto renewed = Renew(owner, description, **opened);
    if (!renewed.ok() || *renewed != nullptr) return renewed;
  }
  auto region = usage_->Admit(*std::move(opened));
  if (!region.ok()) return region.status();
  (*region)->MakeDirect();  // takes a while, and so has no lock

  std::shared_ptr<const Region> expired;  // let go outside the lock
  absl::MutexLock lock(&mutex_);
  auto renewed = Renew(owner, description, **region);
  if (!renewed.ok() || *renewed != nullptr) return renewed;
  Entry& entry = entries_[Key(owner, description.name)];
  expired = std::move(entry.region);
  entry = {description, *region, clock_->Now() + description.lease};
  return *region;
}

absl::StatusOr<std::unique_ptr<Region>> RegionRegistry::Open(
    const RegionDescription& description) {
  if (description.cuda.has_value()) {
    if (!cuda_handles_.ok()) return cuda_handles_.status();
    return (*cuda_handles_)
        ->OpenRegion(*description.cuda, description.byte_offset,
                     description.byte_size);
  }
  if (!options_.allow_system) {
    return IsOff("shared memory is off", "--allow_shared_memory");
  }
  return SystemRegion::Open(description.object_name, description.byte_offset,
                            description.byte_size, cuda_);
}

absl::StatusOr<std::shared_ptr<const Region>> RegionRegistry::Renew(
    absl::string_view owner, const RegionDescription& description,
    const Region& region) {
  Entry* entry = Find(owner, description.name);
  if (entry == nullptr) return std::shared_ptr<const Region>();
  if (entry->region->identity() != region.identity()) {
    return WithReason(absl::AlreadyExistsError(absl::StrCat(
                          "region_name \"", description.name,
                          "\" is taken by another region of this owner")),
                      error_reason::kInvalidRequest);
  }
  entry->description.lease = description.lease;
  entry->expiry = clock_->Now() + description.lease;
  return entry->region;
}

absl::Status RegionRegistry::Unregister(absl::string_view owner,
                                        absl::string_view name) {
  // Let go outside the lock: the last reference to a large object whose name is
  // gone frees its memory, which takes a while.
  std::shared_ptr<const Region> region;
  absl::MutexLock lock(&mutex_);
  Entry* entry = Find(owner, name);
  if (entry == nullptr) return NotFound(name);
  region = std::move(entry->region);
  entries_.erase(Key(owner, name));
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const Region>> RegionRegistry::Use(
    absl::string_view owner, absl::string_view name) {
  absl::MutexLock lock(&mutex_);
  Entry* entry = Find(owner, name);
  if (entry == nullptr) return NotFound(name);
  entry->expiry = clock_->Now() + entry->description.lease;
  return entry->region;
}

std::vector<RegionRegistry::Listed> RegionRegistry::List(
    absl::string_view owner) {
  std::vector<Listed> listed;
  absl::MutexLock lock(&mutex_);
  const absl::Time now = clock_->Now();
  for (auto it = entries_.lower_bound(Key(owner, ""));
       it != entries_.end() && it->first.first == owner; ++it) {
    const Entry& entry = it->second;
    if (entry.expiry > now) {
      listed.push_back({entry.description, entry.expiry - now,
                        entry.region->direct_memory()});
    }
  }
  return listed;
}

void RegionRegistry::ReleaseExpired() {
  std::vector<std::shared_ptr<const Region>> regions;  // as in Unregister
  absl::MutexLock lock(&mutex_);
  const absl::Time now = clock_->Now();
  for (auto it = entries_.begin(); it != entries_.end();) {
    if (it->second.expiry > now) {
      ++it;
      continue;
    }
    regions.push_back(std::move(it->second.region));
    it = entries_.erase(it);
  }
}

RegionRegistry::Entry* RegionRegistry::Find(absl::string_view owner,
                                            absl::string_view name) {
  const auto it = entries_.find(Key(owner, name));
  return it == entries_.end() || it->second.expiry <= clock_->Now()
             ? nullptr
             : &it->second;
}

}  // namespace attention
