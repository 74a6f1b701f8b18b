// What devices need for batches, measured before there are requests.
#ifndef ATTENTION_SERVER_SCHEDULING_CALIBRATION_H_
#define ATTENTION_SERVER_SCHEDULING_CALIBRATION_H_

#include <vector>

#include "absl/status/statusor.h"
#include "kernels/attention_params.h"
#include "server/engine/device.h"
#include "server/scheduling/clock.h"
#include "server/scheduling/cost_model.h"

namespace attention {

// One configuration for each class of the cost model: 8 heads of 128.
std::vector<HeadConfig> DefaultCalibrationConfigs();

// Times three works of the configuration on a device that is idle: one of a
// single token, which is nearly all launch; a square one, large enough that its
// time shows beside that; and one query against many keys, whose time is in its
// bytes. Payloads come in pieces as those of requests do. Each work runs several
// times, and the best time counts. Also loads the configuration's kernels.
// Blocks, for some milliseconds. The error of the device's answer, if it is one.
absl::StatusOr<std::vector<Measurement>> MeasureDevice(Device& device,
                                                       const HeadConfig& config,
                                                       Clock& clock);

}  // namespace attention

#endif  // ATTENTION_SERVER_SCHEDULING_CALIBRATION_H_
