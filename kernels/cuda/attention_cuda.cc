#include "kernels/cuda/attention_cuda.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include "kernels/cuda/portable/float8.h"
#include "kernels/cuda/portable/streaming.h"
#include "kernels/cuda/sm90/prefill.h"
#include "kernels/cuda/three_step/three_step.h"

namespace attention::cuda {
namespace {

// The scratch memory behind the first part.
Scratch After(const Scratch& scratch, const ScratchBytes& part) {
  return {.host = static_cast<uint8_t*>(scratch.host) + part.host_bytes,
          .device = static_cast<uint8_t*>(scratch.device) + part.device_bytes};
}

ScratchBytes StreamingScratchSize(const AttentionParams& params);
cudaError_t LaunchStreaming(const AttentionParams& params,
                            const Scratch& scratch, cudaStream_t stream);

// All that there are for fp16: the sm_90 kernels have no e4m3 products for more
// than 128 dimensions.
portable::HalfKernels AllHalfKernels() {
  return {.scratch_size = StreamingScratchSize,
          .launch = LaunchStreaming,
          .folds_scales = true};
}

// What the sm_90 kernels do not compute as it is.
cudaError_t LaunchRest(const AttentionParams& params, const Scratch& scratch,
                       cudaStream_t stream, bool has_sm90) {
  if (has_sm90 && params.config.data_type == DataType::kFloat8E4M3) {
    return portable::LaunchFloat8(params, scratch, stream, AllHalfKernels());
  }
  return portable::Launch(params, scratch, stream);
}

// Each sequence by the kernels that suit it, whatever the others are, so that
// its answer does not depend on them.
cudaError_t LaunchStreaming(const AttentionParams& params,
                            const Scratch& scratch, cudaStream_t stream) {
  bool has_sm90 = false;
  cudaError_t error = sm90::IsSupported(&has_sm90);
  if (error != cudaSuccess) return error;
  const auto suits_sm90 = [&](const Sequence& s) {
    return has_sm90 && sm90::CanCompute(params.config, s);
  };
  const Sequence* const end = params.sequences + params.sequence_count;
  const int64_t sm90_count = std::count_if(params.sequences, end, suits_sm90);
  if (sm90_count == 0) return LaunchRest(params, scratch, stream, has_sm90);
  if (sm90_count == params.sequence_count) {
    return sm90::Launch(params, scratch, stream);
  }

  std::vector<Sequence> sequences(params.sequences, end);
  std::stable_partition(sequences.begin(), sequences.end(), suits_sm90);
  AttentionParams part = params;
  part.sequences = sequences.data();
  part.sequence_count = sm90_count;
  error = sm90::Launch(part, scratch, stream);
  if (error != cudaSuccess) return error;
  const Scratch rest = After(scratch, sm90::ScratchSize(part));
  part.sequences += sm90_count;
  part.sequence_count = params.sequence_count - sm90_count;
  return LaunchRest(part, rest, stream, has_sm90);
}

// What LaunchRest needs at most.
ScratchBytes RestScratchSize(const AttentionParams& params) {
  bool has_sm90 = false;
  if (params.config.data_type != DataType::kFloat8E4M3 ||
      sm90::IsSupported(&has_sm90) != cudaSuccess || !has_sm90) {
    return portable::ScratchSize(params);
  }
  // Tensors are converted in scratch memory: of those sequences only that are
  // left.
  std::vector<Sequence> rest;
  std::copy_if(params.sequences, params.sequences + params.sequence_count,
               std::back_inserter(rest), [&](const Sequence& s) {
                 return !sm90::CanCompute(params.config, s);
               });
  return portable::Float8ScratchSize(
      {params.config, rest.data(), static_cast<int64_t>(rest.size())},
      AllHalfKernels());
}

ScratchBytes StreamingScratchSize(const AttentionParams& params) {
  // Either may get all sequences.
  const ScratchBytes rest = RestScratchSize(params);
  const ScratchBytes sm90 = sm90::ScratchSize(params);
  return {.host_bytes = rest.host_bytes + sm90.host_bytes,
          .device_bytes = rest.device_bytes + sm90.device_bytes};
}

}  // namespace

ScratchBytes ScratchSize(const AttentionParams& params) {
  if (params.config.algorithm == Algorithm::kThreeStep) {
    return three_step::ScratchSize(params);
  }
  return StreamingScratchSize(params);
}

cudaError_t Launch(const AttentionParams& params, const Scratch& scratch,
                   cudaStream_t stream) {
  if (params.sequence_count == 0 || params.config.query_head_count == 0) {
    return cudaSuccess;
  }
  if (params.config.algorithm == Algorithm::kThreeStep) {
    return three_step::Launch(params, scratch, stream);
  }
  return LaunchStreaming(params, scratch, stream);
}

}  // namespace attention::cuda
