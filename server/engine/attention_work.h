// One request on its way through queue, batch and device.
//
// The RPC layer makes a Work out of a checked request, the scheduler queues it
// and the device computes it and calls `done`. Nothing here knows gRPC,
// protobuf or CUDA.
#ifndef ATTENTION_SERVER_ENGINE_ATTENTION_WORK_H_
#define ATTENTION_SERVER_ENGINE_ATTENTION_WORK_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/attention_params.h"
#include "kernels/paged_params.h"
#include "server/engine/direct_memory.h"
#include "server/engine/kv_cache.h"
#include "server/engine/payload.h"
#include "server/memory/memory_pool.h"

namespace attention {

// A sequence of a Work. Offsets are in elements from the start of the tensor's
// payload or of the output buffer; everything else as in attention::Sequence.
// Validated: no element addressed lies outside its payload or buffer.
struct WorkSequence {
  int64_t query_offset = 0;
  int64_t key_offset = 0;
  int64_t value_offset = 0;
  int64_t output_offset = 0;
  int64_t log_sum_exp_offset = 0;
  int64_t weights_offset = 0;

  // Lengths, strides, scale and window are set; pointers are null until the
  // device binds them.
  Sequence shape;
};

// Of the elements of each head, as in attention::Sequence. Empty: 1 for all.
struct HeadScales {
  std::vector<float> query;  // [query_head_count]
  std::vector<float> key;    // [kv_head_count]
  std::vector<float> value;  // [kv_head_count]
};

// What a device hands back. Buffers are host memory that can be sent as it is;
// one that the device has written to its target instead is empty.
struct WorkResult {
  Block output;       // output_bytes
  Block log_sum_exp;  // log_sum_exp_bytes, or empty
  Block weights;      // weights_bytes, or empty
  // Of each sequence of a resident work, in order; empty for others. Where it
  // is not OK, nothing was appended, and the sequence's output is 0 and its
  // log-sum-exp -inf.
  absl::InlinedVector<absl::Status, 1> sequence_statuses;
  // What each of these found or made its layer's length, its own tokens
  // included; 0 where it failed.
  absl::InlinedVector<int64_t, 1> sequence_key_lengths;

  absl::Duration queue_duration;
  absl::Duration copy_in_duration;
  absl::Duration compute_duration;
  absl::Duration copy_out_duration;
  int32_t batch_request_count = 0;
  int64_t batch_sequence_count = 0;
  std::string device_name;
};

// Memory for the results of a work, got from its device before it runs, as that
// device arranges it.
using ReservedResults = absl::InlinedVector<Block, 3>;

struct AttentionWork {
  HeadConfig config;
  std::vector<WorkSequence> sequences;  // empty is legal: an empty answer
  HeadScales scales;                    // kFloat8E4M3 only

  // A resident work attends to keys and values that stay on its required
  // device: one step per sequence, begun in this order. Then `key` and `value`
  // have the tokens to append only, which the key and value offsets and strides
  // of a sequence describe, append_length of them. Its key_length is what the
  // layer will have by then, as far as that is known: an estimate for
  // predictions and memory. The layer knows better, and sets the left window
  // too; the right one is the sequence's. The algorithm is kStreaming, there are
  // no weights.
  std::vector<KvStep> kv_steps;
  KvDataType kv_data_type = KvDataType::kSame;
  int32_t page_tokens = 0;  // of the layers; 0 unless the work is resident
  SplitPolicy split_policy = SplitPolicy::kFixed;

  Payload query;
  Payload key;
  Payload value;
  // Keeps the payloads alive. Devices reset it as soon as the payloads have
  // been copied (or read for the last time), so that large requests do not hold
  // their wire buffers longer than needed.
  std::shared_ptr<void> payload_owner;

  size_t output_bytes = 0;
  size_t log_sum_exp_bytes = 0;  // 0 unless asked for
  size_t weights_bytes = 0;      // 0 unless asked for
  // Where results may go instead of into blocks; a device that cannot write
  // there, or for which it is not worth it, hands out a block all the same.
  // Each as large as its result and valid until `done` is called.
  DirectMemory output_target;
  DirectMemory log_sum_exp_target;
  DirectMemory weights_target;
  // Set by Device::ReserveResults, for the device to use when the work runs.
  ReservedResults reserved_results;
  // True when sequences do not cover every output element (padded batches):
  // the device then clears the output and weights, and sets the log-sum-exp to
  // -inf, before it computes.
  bool has_padding = false;

  // The one device that may compute this, because it has tensors in its memory.
  int required_device = kAnyDevice;
  // Who shares the devices with others by device time; empty: nobody in
  // particular, which is a tenant too.
  std::string tenant;
  int32_t priority = 0;  // among the tenant's works; higher runs first
  absl::Time arrival_time = absl::InfinitePast();
  absl::Time deadline = absl::InfiniteFuture();

  // Called exactly once, on any thread, never under a lock of the caller's.
  // Cheap: it may run on a device's thread.
  absl::AnyInvocable<void(absl::StatusOr<WorkResult>)> done;

  bool is_resident() const { return page_tokens > 0; }
  // Of a resident work.
  PagedConfig paged_config() const {
    return {config, kv_data_type, page_tokens, split_policy};
  }

  size_t input_bytes() const {
    return query.size_bytes() + key.size_bytes() + value.size_bytes();
  }
  size_t result_bytes() const {
    return output_bytes + log_sum_exp_bytes + weights_bytes;
  }
  // Those that a device needs memory for and that travel there or back: all but
  // those of tensors that lie in the memory of the required device.
  size_t moved_bytes() const {
    size_t bytes = 0;
    for (const Payload* input : {&query, &key, &value}) {
      if (!input->direct_memory().is_on_device()) bytes += input->size_bytes();
    }
    if (!output_target.is_on_device()) bytes += output_bytes;
    if (!log_sum_exp_target.is_on_device()) bytes += log_sum_exp_bytes;
    if (!weights_target.is_on_device()) bytes += weights_bytes;
    return bytes;
  }
  // Lets go of everything that belongs to the caller; right before `done`, so
  // that callers with their answer may take their memory back.
  void ReleaseInputs() {
    for (Payload* input : {&query, &key, &value}) *input = {};
    payload_owner.reset();
  }
  int64_t query_tokens() const {
    int64_t tokens = 0;
    for (const WorkSequence& s : sequences) tokens += s.shape.query_length;
    return tokens;
  }
};

// Why a batch was closed when it was; a label in metrics.
enum class FlushReason {
  kIdle,     // a device was idle, so there was nothing to wait for
  kFull,     // a limit on requests, bytes or tokens was reached
  kDelay,    // max_queue_delay had passed
  kDrain,    // the server is stopping
};

// Works of one kind that share a launch: of one head configuration and required
// device, and all resident with equal pages or none.
struct Batch {
  HeadConfig config;
  std::vector<std::unique_ptr<AttentionWork>> works;  // never empty
  FlushReason flush_reason = FlushReason::kIdle;
  // Set if the works are resident: see KvCache. A device runs every batch, also
  // after it has failed, so that none is waited for in vain.
  std::optional<uint64_t> kv_batch_number;
  // So short that another thread would hardly have woken up before it is over:
  // the device may compute it on the thread that brings it.
  bool is_short = false;
  // Not made of requests: metrics do not count it.
  bool is_measurement = false;
  absl::Time start_time = absl::InfinitePast();  // when it left the queue
};

}  // namespace attention

#endif  // ATTENTION_SERVER_ENGINE_ATTENTION_WORK_H_
