#include "server/uploads/upload_registry.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/error_reason.h"

namespace attention {
namespace {

// Worth a retry: others will let go.
absl::Status Full(absl::string_view message) {
  return WithReason(absl::ResourceExhaustedError(message),
                    error_reason::kQueueFull);
}

}  // namespace

class UploadRegistry::Usage : public std::enable_shared_from_this<Usage> {
 public:
  Usage(const Options& options, Metrics* metrics)
      : options_(options), metrics_(metrics) {}

  // Counts an upload of so many bytes.
  absl::Status Admit(size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (count_ >= options_.max_upload_count) {
      return Full(absl::StrCat("at most ", options_.max_upload_count,
                               " uploads can be under way at a time"));
    }
    if (bytes > options_.max_bytes - bytes_) {
      return Full(absl::StrCat("all uploads together must be at most ",
                               options_.max_bytes, " bytes; got ", bytes,
                               " on top of ", bytes_));
    }
    Add(1, bytes);
    return absl::OkStatus();
  }

  void Dismiss(size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    Add(-1, -bytes);
  }

  // An upload that has been admitted; dismissed when it is gone.
  std::shared_ptr<Upload> Make(Device* device, const InputSizes& sizes,
                               std::unique_ptr<InputUpload> inputs)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      absl::MutexLock lock(&mutex_);
      device_bytes_[device] += sizes.total();
    }
    return std::shared_ptr<Upload>(
        new Upload(device, sizes, std::move(inputs)),
        [self = shared_from_this(), device, bytes = sizes.total()](Upload* u) {
          delete u;
          absl::MutexLock lock(&self->mutex_);
          self->device_bytes_[device] -= bytes;
          self->Add(-1, -bytes);
        });
  }

  size_t bytes_on(Device* device) const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    const auto found = device_bytes_.find(device);
    return found == device_bytes_.end() ? 0 : found->second;
  }

 private:
  // `bytes` may be the complement of a positive number.
  void Add(int count, size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    count_ += count;
    bytes_ += bytes;
    metrics_->SetUploads(count_, static_cast<int64_t>(bytes_));
  }

  const Options options_;
  Metrics* const metrics_;
  mutable absl::Mutex mutex_;
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<Device*, size_t> device_bytes_ ABSL_GUARDED_BY(mutex_);
};

UploadRegistry::Hold::~Hold() { registry_.LetGo(id_, number_, completed_); }

void UploadRegistry::Hold::ReleaseUnlessResumable() {
  if (id_.empty()) upload_.reset();
}

UploadRegistry::UploadRegistry(Options options, std::vector<Device*> devices,
                               Clock* clock, Metrics* metrics)
    : options_(options),
      devices_(std::move(devices)),
      clock_(clock),
      metrics_(metrics),
      usage_(std::make_shared<Usage>(options, metrics)) {}

UploadRegistry::~UploadRegistry() {
  absl::MutexLock lock(&mutex_);  // waits for a Hold that is about to let go
}

absl::Status UploadRegistry::Check(const Description& description) const {
  const size_t id_bytes = description.id.size();
  if (id_bytes == 0) return absl::OkStatus();
  if (id_bytes < kMinUploadIdBytes || id_bytes > kMaxUploadIdBytes) {
    return InvalidRequest(
        absl::StrCat("upload_id must be empty or have ", kMinUploadIdBytes,
                     " to ", kMaxUploadIdBytes, " bytes; got ", id_bytes));
  }
  if (description.lease <= absl::ZeroDuration() ||
      description.lease > options_.max_lease) {
    return InvalidRequest(
        absl::StrCat("lease_duration must be more than 0 and at most ",
                     absl::FormatDuration(options_.max_lease), "; got ",
                     absl::FormatDuration(description.lease)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Upload>> UploadRegistry::Reserve(
    const InputSizes& sizes) {
  std::vector<std::pair<size_t, Device*>> candidates;
  absl::Status unhealthy;
  for (Device* device : devices_) {
    const absl::Status health = device->health();
    if (health.ok()) {
      candidates.emplace_back(usage_->bytes_on(device), device);
    } else {
      unhealthy = health;
    }
  }
  if (candidates.empty()) {
    return WithReason(absl::UnavailableError(absl::StrCat(
                          "no device can compute any more; the last one: ",
                          unhealthy.message())),
                      error_reason::kDeviceFailed);
  }
  std::stable_sort(
      candidates.begin(), candidates.end(),
      [](const auto& a, const auto& b) { return a.first < b.first; });

  if (absl::Status s = usage_->Admit(sizes.total()); !s.ok()) return s;
  absl::Status status;
  for (const auto& [bytes, device] : candidates) {
    auto inputs = device->ReserveInputs(sizes);
    if (inputs.ok()) return usage_->Make(device, sizes, *std::move(inputs));
    status = inputs.status();
  }
  usage_->Dismiss(sizes.total());
  return absl::IsResourceExhausted(status) ? Full(status.message()) : status;
}

absl::StatusOr<std::unique_ptr<UploadRegistry::Hold>> UploadRegistry::Open(
    const Description& description, std::weak_ptr<UploadStream> stream) {
  if (absl::Status s = Check(description); !s.ok()) return s;
  ReleaseExpired();  // makes room
  std::shared_ptr<UploadStream> old_stream;
  auto hold = Take(description, nullptr, stream, old_stream);
  if (hold.ok() && *hold == nullptr) {
    // Outside the lock: memory may take a while to get. Should another stream
    // bring the same id meanwhile, its upload is the one to go on with.
    auto reserved = Reserve(description.sizes);
    if (!reserved.ok()) return reserved.status();
    hold = Take(description, *std::move(reserved), stream, old_stream);
  }
  if (!hold.ok()) return hold;
  metrics_->UploadOpened((*hold)->resumed());
  if (old_stream != nullptr) old_stream->OnTakenOver();
  return hold;
}

absl::StatusOr<std::unique_ptr<UploadRegistry::Hold>> UploadRegistry::Take(
    const Description& description, std::shared_ptr<Upload> reserved,
    const std::weak_ptr<UploadStream>& stream,
    std::shared_ptr<UploadStream>& old_stream) {
  const std::string& id = description.id;
  absl::MutexLock lock(&mutex_);
  const auto found = entries_.find(id);
  const bool resumed = found != entries_.end();
  if (!resumed && reserved == nullptr) return nullptr;
  if (resumed && (found->second.fingerprint != description.fingerprint ||
                  found->second.upload->sizes() != description.sizes)) {
    return WithReason(absl::AlreadyExistsError(
                          "upload_id is taken by an upload with another start"),
                      error_reason::kInvalidRequest);
  }
  if (resumed) old_stream = found->second.stream.lock();
  const Upload::StreamNumber number = ++last_number_;
  std::shared_ptr<Upload> upload = resumed ? found->second.upload : reserved;
  upload->SetStream(number);
  if (!id.empty()) {
    entries_[id] = {.upload = upload,
                    .fingerprint = description.fingerprint,
                    .lease = description.lease,
                    .stream_number = number,
                    .stream = stream};
  }
  return std::unique_ptr<Hold>(
      new Hold(this, id, number, std::move(upload), resumed));
}

void UploadRegistry::LetGo(const std::string& id, Upload::StreamNumber number,
                           bool completed) {
  if (id.empty()) return;
  Entry gone;  // its memory is freed outside the lock
  absl::MutexLock lock(&mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end() || found->second.stream_number != number) return;
  if (completed) {
    gone = std::move(found->second);
    entries_.erase(found);
    return;
  }
  found->second.stream.reset();
  found->second.expiry = clock_->Now() + found->second.lease;
}

void UploadRegistry::ReleaseExpired() {
  std::vector<Entry> gone;  // as in LetGo
  absl::MutexLock lock(&mutex_);
  const absl::Time now = clock_->Now();
  for (auto it = entries_.begin(); it != entries_.end();) {
    const auto next = std::next(it);
    if (it->second.expiry <= now) {
      metrics_->UploadExpired();
      gone.push_back(std::move(it->second));
      entries_.erase(it);
    }
    it = next;
  }
}

}  // namespace attention
