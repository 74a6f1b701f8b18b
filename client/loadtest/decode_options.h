// The flags of attention-load --mode=decode.
#ifndef ATTENTION_CLIENT_LOADTEST_DECODE_OPTIONS_H_
#define ATTENTION_CLIENT_LOADTEST_DECODE_OPTIONS_H_

#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/loadtest/decode_plan.h"
#include "client/loadtest/given_flags.h"
#include "client/loadtest/load_runner.h"

namespace attention::loadtest {

// Nothing in the other mode. InvalidArgument naming flag, value and bound, also
// where a flag is given that the mode does not heed.
absl::StatusOr<std::optional<DecodePlan>> DecodePlanFromFlags(
    const GivenFlags& given, const LoadPlan& load, absl::string_view transport);

}  // namespace attention::loadtest

#endif  // ATTENTION_CLIENT_LOADTEST_DECODE_OPTIONS_H_
