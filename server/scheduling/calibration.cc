#include "server/scheduling/calibration.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"

namespace attention {
namespace {

constexpr int kRepetitions = 3;
// The square work starts where operations outweigh bytes on a CPU and is doubled
// until it takes this many times the launch, ...
constexpr int64_t kMinTokens = 256;
constexpr int kLaunchesToShow = 16;
// ... or is this large.
constexpr int64_t kMaxTokens = 4096;
constexpr double kMaxBytes = 64 << 20;

// gRPC delivers messages in pieces of this size.
constexpr size_t kPieceBytes = size_t{64} << 10;
constexpr char kZeros[kPieceBytes] = {};

struct Lengths {
  int64_t query;
  int64_t key;
};

Payload ZeroPayload(size_t size_bytes) {
  Payload payload;
  for (size_t at = 0; at < size_bytes; at += kPieceBytes) {
    payload.fragments.emplace_back(kZeros,
                                   std::min(kPieceBytes, size_bytes - at));
  }
  return payload;
}

// [token, head, dim], contiguous.
TensorStrides Strides(int64_t heads, int64_t dim) { return {heads * dim, dim, 1}; }

std::unique_ptr<AttentionWork> MakeWork(const HeadConfig& c, Lengths lengths) {
  const auto bytes = [](int64_t tokens, int64_t heads, int64_t dim,
                        DataType type) {
    return static_cast<size_t>(tokens * heads * dim * ElementBytes(type));
  };
  auto work = std::make_unique<AttentionWork>();
  work->config = c;
  WorkSequence sequence;
  sequence.shape.query_length = lengths.query;
  sequence.shape.key_length = lengths.key;
  sequence.shape.query_strides = Strides(c.query_head_count, c.head_dim_qk);
  sequence.shape.key_strides = Strides(c.kv_head_count, c.head_dim_qk);
  sequence.shape.value_strides = Strides(c.kv_head_count, c.head_dim_v);
  sequence.shape.output_strides = Strides(c.query_head_count, c.head_dim_v);
  sequence.shape.scale = 1;
  work->sequences.push_back(sequence);
  work->query = ZeroPayload(
      bytes(lengths.query, c.query_head_count, c.head_dim_qk, c.data_type));
  work->key = ZeroPayload(
      bytes(lengths.key, c.kv_head_count, c.head_dim_qk, c.data_type));
  work->value = ZeroPayload(
      bytes(lengths.key, c.kv_head_count, c.head_dim_v, c.data_type));
  work->output_bytes = bytes(lengths.query, c.query_head_count, c.head_dim_v,
                             OutputType(c.data_type));
  return work;
}

absl::StatusOr<absl::Duration> TimeOnce(Device& device, const HeadConfig& config,
                                        Lengths lengths, Clock& clock) {
  absl::Status answer;
  absl::Notification slot_freed;
  auto batch = std::make_unique<Batch>();
  batch->config = config;
  batch->is_short = true;
  batch->is_measurement = true;
  batch->works.push_back(MakeWork(config, lengths));
  batch->works.front()->done = [&](const absl::StatusOr<WorkResult>& result) {
    answer = result.status();
  };
  const absl::Time start = clock.Now();
  batch->start_time = start;
  absl::Time end;
  device.Run(std::move(batch), [&] {
    end = clock.Now();
    slot_freed.Notify();
  });
  slot_freed.WaitForNotification();
  if (!answer.ok()) return answer;
  return end - start;
}

absl::StatusOr<Measurement> Time(Device& device, const HeadConfig& config,
                                 Lengths lengths, Clock& clock) {
  absl::Duration best = absl::InfiniteDuration();
  for (int i = 0; i < kRepetitions; ++i) {
    auto time = TimeOnce(device, config, lengths, clock);
    if (!time.ok()) return time.status();
    best = std::min(best, *time);
  }
  return Measurement{CostOf(*MakeWork(config, lengths)), best};
}

}  // namespace

std::vector<HeadConfig> DefaultCalibrationConfigs() {
  std::vector<HeadConfig> configs;
  for (DataType type : {DataType::kFloat32, DataType::kFloat16,
                        DataType::kBFloat16, DataType::kFloat8E4M3}) {
    for (Algorithm algorithm : {Algorithm::kStreaming, Algorithm::kThreeStep}) {
      if (type == DataType::kFloat8E4M3 && algorithm == Algorithm::kThreeStep) {
        continue;  // nobody computes it
      }
      configs.push_back({.data_type = type,
                         .head_dim_qk = 128,
                         .head_dim_v = 128,
                         .query_head_count = 8,
                         .kv_head_count = 8,
                         .algorithm = algorithm});
    }
  }
  return configs;
}

absl::StatusOr<std::vector<Measurement>> MeasureDevice(Device& device,
                                                       const HeadConfig& config,
                                                       Clock& clock) {
  std::vector<Measurement> measurements;
  auto launch = Time(device, config, {1, 1}, clock);
  if (!launch.ok()) return launch.status();
  measurements.push_back(*launch);

  int64_t tokens = kMinTokens;
  for (;; tokens *= 2) {
    auto square = Time(device, config, {tokens, tokens}, clock);
    if (!square.ok()) return square.status();
    if (square->time >= launch->time * kLaunchesToShow || tokens >= kMaxTokens ||
        2 * square->cost.bytes > kMaxBytes) {
      measurements.push_back(*square);
      break;
    }
  }
  auto row = Time(device, config, {1, 4 * tokens}, clock);
  if (!row.ok()) return row.status();
  measurements.push_back(*row);
  return measurements;
}

}  // namespace attention
