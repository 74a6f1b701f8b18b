// The uploads of a server: who goes on with which, and what they may hold.
//
// An upload with an id outlives the stream that brought it: when a connection
// breaks, what has arrived waits for the time of its lease for another stream
// with the same id. The id is a secret that the caller chooses, so that nobody
// else can go on with it.
//
// gRPC does not always tell soon that a connection is gone. So a stream that
// opens an upload which another one still holds takes it over, and the old one
// is told.
#ifndef ATTENTION_SERVER_UPLOADS_UPLOAD_REGISTRY_H_
#define ATTENTION_SERVER_UPLOADS_UPLOAD_REGISTRY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/metrics/metrics.h"
#include "server/scheduling/clock.h"
#include "server/uploads/upload.h"

namespace attention {

inline constexpr size_t kMinUploadIdBytes = 16;
inline constexpr size_t kMaxUploadIdBytes = 64;

// A stream, as the registry sees it.
class UploadStream {
 public:
  virtual ~UploadStream() = default;
  // Another stream goes on with the upload. May run on any thread.
  virtual void OnTakenOver() = 0;
};

// Thread-safe.
class UploadRegistry {
 public:
  struct Options {
    // Most uploads at a time.
    int max_upload_count = 256;
    // Most bytes of inputs of all of them.
    size_t max_bytes = 0;
    // Longest lease.
    absl::Duration max_lease = absl::Minutes(5);
  };

  struct Description {
    std::string id;            // empty: ends with its stream
    uint64_t fingerprint = 0;  // of all that a resumed upload must have equal
    InputSizes sizes;
    absl::Duration lease;
  };

  // A stream's hold on an upload. Destroying it lets go: the upload waits for
  // another stream, or is gone if it has no id.
  class Hold {
   public:
    ~Hold();
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

    const std::shared_ptr<Upload>& upload() const { return upload_; }
    bool resumed() const { return resumed_; }

    // As Upload::Write for this stream.
    absl::Status Write(InputTensor tensor, int64_t byte_offset,
                       absl::Span<const absl::string_view> fragments) {
      return upload_->Write(number_, tensor, byte_offset, fragments);
    }

    // The answer has been delivered: when this lets go the upload is over.
    void Complete() { completed_ = true; }

    // Without an id, gives the memory to whoever else holds the upload.
    void ReleaseUnlessResumable();

   private:
    friend class UploadRegistry;
    Hold(UploadRegistry* registry, std::string id, Upload::StreamNumber number,
         std::shared_ptr<Upload> upload, bool resumed)
        : registry_(*registry),
          id_(std::move(id)),
          number_(number),
          upload_(std::move(upload)),
          resumed_(resumed) {}

    UploadRegistry& registry_;
    const std::string id_;
    const Upload::StreamNumber number_;
    std::shared_ptr<Upload> upload_;
    const bool resumed_;
    bool completed_ = false;
  };

  // All outlive the registry, holds and uploads.
  UploadRegistry(Options options, std::vector<Device*> devices, Clock* clock,
                 Metrics* metrics);
  ~UploadRegistry();

  const Options& options() const { return options_; }

  // Goes on with the upload of that id, or reserves memory for a new one, on the
  // device with the fewest bytes of uploads. Errors:
  //   INVALID_ARGUMENT    id or lease out of range
  //   ALREADY_EXISTS      the upload of that id has another fingerprint or sizes
  //   RESOURCE_EXHAUSTED  (QUEUE_FULL) no place or no memory is free
  //   UNAVAILABLE         no device works
  absl::StatusOr<std::unique_ptr<Hold>> Open(
      const Description& description, std::weak_ptr<UploadStream> stream)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // To be called now and then: forgets uploads whose lease has ended. (They are
  // not to be had any more in any case.)
  void ReleaseExpired() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Entry {
    std::shared_ptr<Upload> upload;
    uint64_t fingerprint = 0;
    absl::Duration lease;
    Upload::StreamNumber stream_number = 0;
    std::weak_ptr<UploadStream> stream;
    // InfiniteFuture while a stream holds it.
    absl::Time expiry = absl::InfiniteFuture();
  };

  // What uploads hold, until the last reference to each is gone.
  class Usage;

  absl::Status Check(const Description& description) const;
  absl::StatusOr<std::shared_ptr<Upload>> Reserve(const InputSizes& sizes);
  // Null when there is no such upload and none was reserved. `old_stream` is the
  // one that held it, to be told.
  absl::StatusOr<std::unique_ptr<Hold>> Take(
      const Description& description, std::shared_ptr<Upload> reserved,
      const std::weak_ptr<UploadStream>& stream,
      std::shared_ptr<UploadStream>& old_stream) ABSL_LOCKS_EXCLUDED(mutex_);
  void LetGo(const std::string& id, Upload::StreamNumber number, bool completed)
      ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  const std::vector<Device*> devices_;
  Clock* const clock_;
  Metrics* const metrics_;
  const std::shared_ptr<Usage> usage_;
  absl::Mutex mutex_;
  Upload::StreamNumber last_number_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attention

#endif  // ATTENTION_SERVER_UPLOADS_UPLOAD_REGISTRY_H_
