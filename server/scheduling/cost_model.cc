#include "server/scheduling/cost_model.h"

#include <algorithm>
#include <cmath>

#include "kernels/cost.h"
#include "server/engine/estimated_sequence.h"

namespace attention {
namespace {

constexpr double kGain = 0.1;
constexpr double kCalibrationGain = 0.5;
constexpr int kCalibrationRounds = 5000;  // some milliseconds
constexpr int kCalibrationWeight = 3;
constexpr double kLeastPart = 0.125;
constexpr int kStartObservations = 8;
// The last stateless one is that of e4m3, which is never computed in three
// steps.
constexpr size_t kFirstResidentClass = 7;
constexpr int kTrustedObservations = 16;
constexpr double kMinMargin = 1.5;
const double kMaxCorrection = std::log(2.0);
// Bounds what a single outlier does to the margin.
const double kMaxError = std::log(16.0);

}  // namespace

WorkCost& WorkCost::operator-=(const WorkCost& other) {
  flops = std::max(0.0, flops - other.flops);
  bytes = std::max(0.0, bytes - other.bytes);
  resident_bytes = std::max(0.0, resident_bytes - other.resident_bytes);
  return *this;
}

WorkCost CostOf(const AttentionWork& work) {
  WorkCost cost;
  for (size_t i = 0; i < work.sequences.size(); ++i) {
    const WorkSequence& sequence = work.sequences[i];
    if (work.is_resident()) {
      const PagedSequence estimate =
          EstimatedSequence(sequence, work.kv_steps[i]);
      cost.flops += PagedFlops(work.paged_config(), estimate);
      cost.resident_bytes += PagedBytes(work.paged_config(), estimate);
    } else {
      cost.flops += AttentionFlops(work.config, sequence.shape);
    }
  }
  cost.bytes = static_cast<double>(work.moved_bytes());
  return cost;
}

size_t CostClassOf(const HeadConfig& config, bool is_resident) {
  if (is_resident) {
    return kFirstResidentClass + static_cast<size_t>(config.data_type);
  }
  return static_cast<size_t>(config.data_type) * 2 +
         static_cast<size_t>(config.algorithm);
}

CostModel::CostModel(const std::vector<DeviceDescription>& devices) {
  for (const DeviceDescription& device : devices) {
    terms_.push_back(InitialTerms(device));
  }
}

std::array<CostModel::Terms, kCostClassCount> CostModel::InitialTerms(
    const DeviceDescription& device) {
  const bool cuda = device.backend == "cuda";
  const double processors = std::max(1, device.processor_count);
  std::array<Terms, kCostClassCount> terms;
  for (size_t i = 0; i < kCostClassCount; ++i) {
    const bool is_resident = i >= kFirstResidentClass;
    const size_t data_type = is_resident ? i - kFirstResidentClass : i / 2;
    const bool is_float32 =
        data_type == static_cast<size_t>(DataType::kFloat32);
    const bool is_three_step =
        !is_resident && i % 2 == static_cast<size_t>(Algorithm::kThreeStep);
    // Per multiprocessor, or per thread. Only GPUs have faster units for
    // smaller types.
    double flops_per_second = processors * 20e9;
    if (cuda) flops_per_second *= is_float32 ? 4 : 40;
    if (is_three_step) flops_per_second /= 4;
    terms[i] = {.launch = cuda ? 50e-6 : 20e-6,
                .per_byte = cuda ? 1 / 20e9 : 1 / 10e9,
                .per_flop = 1 / flops_per_second,
                .per_resident_byte = cuda ? 1 / 2e12 : 1 / 20e9};
  }
  return terms;
}

absl::Duration CostModel::Launch(size_t device, size_t cost_class) const {
  return absl::Seconds(terms_[device][cost_class].launch);
}

absl::Duration CostModel::Added(size_t device, size_t cost_class,
                                const WorkCost& cost) const {
  const Terms& terms = terms_[device][cost_class];
  return absl::Seconds(cost.bytes * terms.per_byte +
                       cost.flops * terms.per_flop +
                       cost.resident_bytes * terms.per_resident_byte);
}

void CostModel::Correct(Terms& terms, const WorkCost& cost, double step) {
  const double byte_seconds = cost.bytes * terms.per_byte;
  const double flop_seconds = cost.flops * terms.per_flop;
  const double resident_seconds = cost.resident_bytes * terms.per_resident_byte;
  const double predicted =
      terms.launch + byte_seconds + flop_seconds + resident_seconds;
  // Both ends are beyond any device; between them no term can get lost.
  const auto correct = [&](double term, double its_seconds) {
    return std::clamp(term * std::exp(step * its_seconds / predicted), 1e-18,
                      1e6);
  };
  terms.launch = correct(terms.launch, terms.launch);
  terms.per_byte = correct(terms.per_byte, byte_seconds);
  terms.per_flop = correct(terms.per_flop, flop_seconds);
  terms.per_resident_byte =
      correct(terms.per_resident_byte, resident_seconds);
}

double CostModel::Error(const Terms& terms, const WorkCost& cost,
                        double seconds) {
  return std::log(seconds /
                  (terms.launch + cost.bytes * terms.per_byte +
                   cost.flops * terms.per_flop +
                   cost.resident_bytes * terms.per_resident_byte));
}

void CostModel::Calibrate(size_t device, size_t cost_class,
                          absl::Span<const Measurement> measurements) {
  Terms& terms = terms_[device][cost_class];
  const auto is_usable = [](const Measurement& m) {
    return m.time > absl::ZeroDuration() && m.time != absl::InfiniteDuration();
  };
  // Nothing is larger than the least time that it is a part of. A term may be
  // hard to tell from the others, but none is taken to be much smaller.
  Terms most = {1e6, 1e6, 1e6};
  for (const Measurement& m : measurements) {
    if (!is_usable(m)) continue;
    const double seconds = absl::ToDoubleSeconds(m.time);
    most.launch = std::min(most.launch, seconds);
    most.per_byte = std::min(most.per_byte, seconds / m.cost.bytes);
    most.per_flop = std::min(most.per_flop, seconds / m.cost.flops);
    terms.calibration_weight = kCalibrationWeight;
  }
  if (terms.calibration_weight == 0) return;
  for (int round = 0; round < kCalibrationRounds; ++round) {
    for (const Measurement& m : measurements) {
      if (!is_usable(m)) continue;
      Correct(terms, m.cost,
              kCalibrationGain *
                  Error(terms, m.cost, absl::ToDoubleSeconds(m.time)));
      terms.launch = std::max(terms.launch, most.launch * kLeastPart);
      terms.per_byte = std::max(terms.per_byte, most.per_byte * kLeastPart);
      terms.per_flop = std::max(terms.per_flop, most.per_flop * kLeastPart);
    }
  }
}

void CostModel::Observe(size_t device, size_t cost_class, const WorkCost& cost,
                        absl::Duration time) {
  const double seconds = absl::ToDoubleSeconds(time);
  if (!(seconds > 0) || !std::isfinite(seconds)) return;
  Terms& terms = terms_[device][cost_class];
  double error = Error(terms, cost, seconds);

  double gain = kGain;
  if (terms.observations < kStartObservations) {
    gain = 1.0 / (terms.calibration_weight + terms.observations + 1);
  } else {
    terms.mean_error +=
        kGain * (std::min(std::abs(error), kMaxError) - terms.mean_error);
    error = std::clamp(error, -kMaxCorrection, kMaxCorrection);
  }
  terms.observations = std::min(terms.observations + 1, kTrustedObservations);
  Correct(terms, cost, gain * error);
}

std::optional<double> CostModel::Margin(size_t device,
                                        size_t cost_class) const {
  const Terms& terms = terms_[device][cost_class];
  if (terms.observations < kTrustedObservations) return std::nullopt;
  return std::max(kMinMargin, std::exp(3 * terms.mean_error));
}

}  // namespace attention
