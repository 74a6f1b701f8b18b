// Makes clients with another clock or retry policy than the default, for tests.
#ifndef ATTENTION_CLIENT_CPP_CLIENT_FACTORY_H_
#define ATTENTION_CLIENT_CPP_CLIENT_FACTORY_H_

#include <memory>

#include "absl/status/statusor.h"
#include "client/cpp/attention_client.h"
#include "client/cpp/call_runner.h"
#include "client/cpp/retry.h"

namespace attention {

// As Client::Create. `policy` except its max_attempts, which is the options';
// `clock` outlives the client.
absl::StatusOr<std::unique_ptr<Client>> CreateClient(Client::Options options,
                                                     RetryPolicy policy,
                                                     CallClock* clock);

}  // namespace attention

#endif  // ATTENTION_CLIENT_CPP_CLIENT_FACTORY_H_
