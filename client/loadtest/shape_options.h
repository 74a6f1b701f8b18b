// The flags of attention-load that say what requests look like.
#ifndef ATTENTION_CLIENT_LOADTEST_SHAPE_OPTIONS_H_
#define ATTENTION_CLIENT_LOADTEST_SHAPE_OPTIONS_H_

#include "absl/status/statusor.h"
#include "client/loadtest/decode_plan.h"
#include "client/loadtest/given_flags.h"
#include "client/loadtest/shape_mix.h"

namespace attention::loadtest {

// Of --mode=attention. InvalidArgument or NotFound naming flag, value and
// bound, or what is wrong with the mix file.
absl::StatusOr<ShapeMix> MixFromFlags();

// One shape, that of the tapes of --mode=decode. InvalidArgument also where a
// flag is given that decoding does not heed.
absl::StatusOr<ShapeMix> TapesFromFlags(const GivenFlags& given,
                                        const DecodePlan& plan);

}  // namespace attention::loadtest

#endif  // ATTENTION_CLIENT_LOADTEST_SHAPE_OPTIONS_H_
