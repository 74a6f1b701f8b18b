#include "client/loadtest/load_stats.h"

#include <utility>

namespace attention::loadtest {
namespace {

absl::Duration FromProto(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) +
         absl::Nanoseconds(duration.nanos());
}

void Add(const AnswerSize& more, AnswerSize& size) {
  size.query_tokens += more.query_tokens;
  size.bytes_out += more.bytes_out;
  size.bytes_in += more.bytes_in;
  size.flops += more.flops;
}

}  // namespace

AnswerSize SizeOf(const RequestShape& shape) {
  return {.query_tokens = shape.batch * shape.query_length,
          .bytes_out = static_cast<double>(shape.RequestBytes()),
          .bytes_in =
              static_cast<double>(shape.OutputBytes() + shape.LogSumExpBytes()),
          .flops = shape.Flops()};
}

int64_t LoadStats::error_count() const {
  int64_t count = 0;
  for (const auto& [code, error] : errors) count += error.count;
  return count;
}

void LoadStats::RecordAnswer(const AnswerSize& answer,
                             const v1::ComputeAttentionTimings& timings,
                             absl::Duration answer_latency, bool was_verified,
                             const absl::Status& check) {
  if (was_verified) ++verified;
  if (check.ok()) {
    ++answered;
  } else {
    if (mismatched++ == 0) mismatch_example = std::string(check.message());
  }
  latency.Record(answer_latency);
  Add(answer, size);
  server_queue += FromProto(timings.queue_duration());
  server_copy_in += FromProto(timings.copy_in_duration());
  server_compute += FromProto(timings.compute_duration());
  server_copy_out += FromProto(timings.copy_out_duration());
  batch_requests += timings.batch_request_count();
  batch_sequences += timings.batch_sequence_count();
}

void LoadStats::RecordError(const absl::Status& error,
                            absl::Duration request_latency) {
  ErrorCount& entry = errors[error.code()];
  if (entry.count++ == 0) entry.example = std::string(error.message());
  error_latency.Record(request_latency);
}

void LoadStats::Merge(const LoadStats& other) {
  sent += other.sent;
  answered += other.answered;
  verified += other.verified;
  mismatched += other.mismatched;
  if (mismatch_example.empty()) mismatch_example = other.mismatch_example;
  for (const auto& [code, error] : other.errors) {
    ErrorCount& entry = errors[code];
    if (entry.count == 0) entry.example = error.example;
    entry.count += error.count;
  }
  latency.Merge(other.latency);
  error_latency.Merge(other.error_latency);
  send_delay.Merge(other.send_delay);
  Add(other.size, size);
  server_queue += other.server_queue;
  server_copy_in += other.server_copy_in;
  server_compute += other.server_compute;
  server_copy_out += other.server_copy_out;
  batch_requests += other.batch_requests;
  batch_sequences += other.batch_sequences;
}

LoadStats LoadResult::Total() const {
  LoadStats total;
  for (const LoadStats& stats : shapes) total.Merge(stats);
  return total;
}

}  // namespace attention::loadtest
