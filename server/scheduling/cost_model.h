// How long a device will take for a batch: predicted from what the batch asks
// for, corrected by how long earlier ones took.
//
//   time = launch + bytes * seconds per byte + flops * seconds per flop
//        + resident bytes * seconds per resident byte
//
// with a set of terms for every device and every class of works (data type,
// algorithm, resident or not), started from the order of magnitude of the
// backend, or from measurements if there are some
// (server/scheduling/calibration.h). The length of resident keys is what was
// known when the work arrived.
//
// Learning. A batch that took r times as long as predicted corrects every term
// by r to the power of (gain * the term's share of the prediction): small
// batches teach the launch, long ones the flops. The gain is 1 / n for the
// first batches, which makes their geometric mean the start, and then constant;
// a calibration counts as the first three of them.
// From there on r counts as at most 2 and at least 1/2: one outlier (a page
// fault, a failed batch) moves a prediction by 7 %, a lasting change is learned
// within some dozens of batches.
#ifndef ATTENTION_SERVER_SCHEDULING_COST_MODEL_H_
#define ATTENTION_SERVER_SCHEDULING_COST_MODEL_H_

#include <array>
#include <cstddef>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "kernels/attention_params.h"
#include "server/engine/attention_work.h"
#include "server/engine/device.h"

namespace attention {

// What works ask of a device.
struct WorkCost {
  double flops = 0;  // over visible pairs
  double bytes = 0;  // AttentionWork::moved_bytes
  // Keys and values to be read that stay on the device.
  double resident_bytes = 0;

  WorkCost& operator+=(const WorkCost& other) {
    flops += other.flops;
    bytes += other.bytes;
    resident_bytes += other.resident_bytes;
    return *this;
  }
  // Never below 0, however sums were rounded.
  WorkCost& operator-=(const WorkCost& other);
};

// Linear in the number of sequences and payload fragments.
WorkCost CostOf(const AttentionWork& work);

// A batch of `cost` that took `time` of a device.
struct Measurement {
  WorkCost cost;
  absl::Duration time;
};

// What learns together: data type and algorithm, resident works by themselves.
inline constexpr size_t kCostClassCount = 10;
size_t CostClassOf(const HeadConfig& config, bool is_resident = false);
inline size_t CostClassOf(const Batch& batch) {
  return CostClassOf(batch.config, batch.kv_batch_number.has_value());
}

// Deterministic. Not thread-safe.
class CostModel {
 public:
  explicit CostModel(const std::vector<DeviceDescription>& devices);

  // Time of a batch before its first byte and operation.
  absl::Duration Launch(size_t device, size_t cost_class) const;

  // Time that works add to a batch.
  absl::Duration Added(size_t device, size_t cost_class,
                       const WorkCost& cost) const;

  // Makes the terms such that they predict these, as well as that goes. Before the first Observe. Says
  // nothing about how far predictions are to be trusted (see Margin): requests
  // may be of other shapes.
  void Calibrate(size_t device, size_t cost_class,
                 absl::Span<const Measurement> measurements);

  // A batch of `cost` took `time` of the device. Times of 0 are ignored.
  void Observe(size_t device, size_t cost_class, const WorkCost& cost,
               absl::Duration time);

  // The factor by which predictions are hardly ever too high: at least 1.5, and
  // the cube of their mean error of late. Nullopt until it has seen 16 batches.
  std::optional<double> Margin(size_t device, size_t cost_class) const;

 private:
  struct Terms {  // in seconds
    double launch;
    double per_byte;
    double per_flop;
    double per_resident_byte;
    int calibration_weight = 0;  // in observations
    int observations = 0;
    double mean_error = 0;  // of the logarithm, absolute
  };

  // Moves the logarithm of each term by its share of the prediction of `step`.
  static void Correct(Terms& terms, const WorkCost& cost, double step);
  // Logarithm of the time over the prediction.
  static double Error(const Terms& terms, const WorkCost& cost, double seconds);

  static std::array<Terms, kCostClassCount> InitialTerms(
      const DeviceDescription& device);

  std::vector<std::array<Terms, kCostClassCount>> terms_;  // by device
};

}  // namespace attention

#endif  // ATTENTION_SERVER_SCHEDULING_COST_MODEL_H_
