// Hostile bytes as a ComputeAttentionRequest, and as a message of
// StreamComputeAttention with one in it, in whatever fragments:
//   - the scanner takes what protobuf's own parser takes, and finds the same
//     metadata and payloads in it;
//   - the decoder says no with a code and a reason that are documented, or makes
//     work whose every element lies inside its memory, with an answer within the
//     limits. Regions count as memory.
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "google/protobuf/stubs/logging.h"
#include "server/metrics/metrics.h"
#include "server/regions/region_registry.h"
#include "server/rpc/region_references.h"
#include "server/rpc/request_decoder.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/request_seeds.h"
#include "tests/fuzz/wire_properties.h"
#include "tests/server/regions/shared_memory_object.h"
#include "tests/server/rpc/memory_bounds.h"

namespace attention::test {
namespace {

using Request = v1::ComputeAttentionRequest;
using StreamRequest = v1::StreamComputeAttentionRequest;

constexpr int64_t kMaxMessageBytes = 1 << 16;

// One region, which the seeds refer to.
class Regions {
 public:
  Regions()
      : object_(kSeedRegionBytes), registry_({}, &Clock::Real(), &metrics_) {
    google::protobuf::SetLogHandler(nullptr);  // a line for each bad text
    const auto registered =
        registry_.Register(kSeedOwner, {.name = kSeedRegion,
                                        .object_name = object_.name(),
                                        .byte_size = kSeedRegionBytes,
                                        .lease = kMaxLease});
    status_ = registered.status();
    object_.Unlink();  // a fuzzer that is killed leaves nothing behind
  }

  const absl::Status& status() const { return status_; }
  RegionRegistry* registry() { return &registry_; }

 private:
  SharedMemoryObject object_;
  Metrics metrics_{{}};
  RegionRegistry registry_;
  absl::Status status_;
};

absl::StatusOr<Request> Reassemble(const ScannedRequest& scanned) {
  Request found = *scanned.metadata;
  if (!found.query().empty() || !found.key().empty() ||
      !found.value().empty()) {
    return Broken("a payload is among the metadata");
  }
  found.set_query(Join(scanned.query));
  found.set_key(Join(scanned.key));
  found.set_value(Join(scanned.value));
  return found;
}

absl::Status CheckDecoded(const DecodedRequest& decoded) {
  const AttentionWork& work = *decoded.work;
  size_t answer_bytes = work.result_bytes();
  const ResultTargets& targets = decoded.plan.targets;
  const std::pair<const RegionRange*, size_t> results[] = {
      {targets.output.get(), work.output_bytes},
      {targets.log_sum_exp.get(), work.log_sum_exp_bytes},
      {targets.weights.get(), work.weights_bytes}};
  for (const auto& [target, size_bytes] : results) {
    if (target == nullptr) continue;
    if (target->size_bytes() != size_bytes) {
      return Broken("a target does not have the size of its tensor");
    }
    answer_bytes -= size_bytes;
  }
  if (answer_bytes > static_cast<size_t>(kMaxMessageBytes)) {
    return Broken(absl::StrCat("an answer of ", answer_bytes, " bytes"));
  }
  return CheckMemoryBounds(work);
}

// Whether a request that was scanned is a sound one.
absl::StatusOr<bool> Decode(ScannedRequest scanned) {
  // Never destroyed: it would outlive what it uses.
  static Regions& regions = *new Regions;
  if (!regions.status().ok()) return regions.status();

  absl::Status status = ResolveReferences(regions.registry(), scanned);
  if (status.ok()) {
    RequestLimits limits;
    limits.max_message_bytes = kMaxMessageBytes;
    const absl::StatusOr<DecodedRequest> decoded =
        DecodeRequest(std::move(scanned), limits);
    if (decoded.ok()) {
      if (absl::Status broken = CheckDecoded(*decoded); !broken.ok()) {
        return broken;
      }
      return true;
    }
    status = decoded.status();
  }
  if (absl::Status broken = CheckRefusal(status); !broken.ok()) return broken;
  return false;
}

absl::StatusOr<bool> RunAlone(const FragmentedMessage& message) {
  MessageArena arena;
  absl::StatusOr<ScannedRequest> scanned =
      ScanRequest(message.fragments(), arena);
  Request expected;
  const absl::StatusOr<bool> valid =
      CheckScan(message.message(), scanned.status(), expected);
  if (!valid.ok() || !*valid) return valid;
  absl::StatusOr<Request> found = Reassemble(*scanned);
  if (!found.ok()) return found.status();
  if (auto s = CheckFound(*found, expected); !s.ok()) return s;
  return Decode(*std::move(scanned));
}

absl::StatusOr<bool> RunInStream(const FragmentedMessage& message) {
  MessageArena arena;
  absl::StatusOr<ScannedStreamCompute> scanned =
      ScanStreamComputeRequest(message.fragments(), arena);
  StreamRequest expected;
  const absl::StatusOr<bool> valid =
      CheckScan(message.message(), scanned.status(), expected);
  if (!valid.ok() || !*valid) return valid;
  absl::StatusOr<Request> request = Reassemble(scanned->request);
  if (!request.ok()) return request.status();
  StreamRequest found;
  found.set_tag(scanned->tag);
  *found.mutable_request() = *std::move(request);
  // To the server none is an empty one.
  expected.mutable_request();
  if (auto s = CheckFound(found, expected); !s.ok()) return s;
  return Decode(std::move(scanned->request));
}

absl::StatusOr<bool> RunRequest(absl::string_view input) {
  const FragmentedMessage message(input);
  const absl::StatusOr<bool> alone = RunAlone(message);
  if (!alone.ok()) return alone;
  const absl::StatusOr<bool> in_stream = RunInStream(message);
  if (!in_stream.ok()) return in_stream;
  return *alone || *in_stream;
}

}  // namespace

const FuzzTarget kRequestTarget = {"request", RunRequest, RequestSeeds};

}  // namespace attention::test
