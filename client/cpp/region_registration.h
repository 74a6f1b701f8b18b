// A region of a client, as the server and the client's requests know it.
#ifndef ATTENTION_CLIENT_CPP_REGION_REGISTRATION_H_
#define ATTENTION_CLIENT_CPP_REGION_REGISTRATION_H_

#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/cpp/call_runner.h"
#include "client/cpp/messages.h"
#include "client/cpp/region_table.h"

namespace attention {

// OK for what the server takes.
absl::Status CheckRegionOptions(size_t size_bytes, absl::Duration lease);

// Forgotten, here and there, when this is destroyed.
class RegionRegistration {
 public:
  // Calls take at most `timeout`. Table and runner outlive this object.
  RegionRegistration(std::string name, absl::Duration timeout,
                     RegionTable* table, CallRunner* runner)
      : name_(std::move(name)),
        timeout_(timeout),
        table_(*table),
        runner_(*runner) {}
  ~RegionRegistration();
  RegionRegistration(const RegionRegistration&) = delete;
  RegionRegistration& operator=(const RegionRegistration&) = delete;

  // Sends `request`, which says what the region is, with its owner, name and
  // lease. Errors are the server's.
  template <typename Request>
  absl::Status Register(const char* method, Request request,
                        absl::Duration lease) {
    request.set_owner_token(table_.owner_token());
    request.set_region_name(name_);
    *request.mutable_lease_duration() = ToProto(lease);
    return runner_.Run({method, Serialize(request), timeout_}).status();
  }

  // From now on requests refer to tensors in these bytes. Once.
  void Use(const void* data, size_t size_bytes, bool in_gpu_memory);

 private:
  const std::string name_;
  const absl::Duration timeout_;
  RegionTable& table_;
  CallRunner& runner_;
  const void* data_ = nullptr;  // null until it is used
};

}  // namespace attention

#endif  // ATTENTION_CLIENT_CPP_REGION_REGISTRATION_H_
