#include "server/engine/cuda/part_pipeline.h"

namespace attention {

absl::StatusOr<std::unique_ptr<PartPipeline>> PartPipeline::Create(
    CudaRuntime* runtime) {
  std::unique_ptr<PartPipeline> pipeline(new PartPipeline(runtime));
  if (absl::Status status = pipeline->SetUp(); !status.ok()) return status;
  return pipeline;
}

absl::Status PartPipeline::SetUp() {
  const auto create_event = [this](CudaRuntime::Event& event) {
    absl::StatusOr<CudaRuntime::Event> created = runtime_.CreateEvent();
    if (created.ok()) event = *created;
    return created.status();
  };
  absl::Status status = create_event(arrived_);
  for (Lane& lane : lanes_) {
    absl::StatusOr<CudaRuntime::Stream> stream = runtime_.CreateStream();
    if (!stream.ok()) return stream.status();
    lane.stream = *stream;
    status.Update(create_event(lane.computed));
    status.Update(create_event(lane.copied_out));
  }
  return status;
}

PartPipeline::~PartPipeline() {
  for (const Lane& lane : lanes_) {
    if (lane.computed != nullptr) runtime_.DestroyEvent(lane.computed);
    if (lane.copied_out != nullptr) runtime_.DestroyEvent(lane.copied_out);
    if (lane.stream != nullptr) runtime_.DestroyStream(lane.stream);
  }
  if (arrived_ != nullptr) runtime_.DestroyEvent(arrived_);
}

absl::Status PartPipeline::Enqueue(const AttentionParams& params,
                                   const CudaRuntime::Scratch& scratch,
                                   const CopyOut& copy_out,
                                   CudaRuntime::Stream stream) {
  const Lane& lane = lanes_[next_lane_];
  next_lane_ = (next_lane_ + 1) % kLaneCount;
  absl::Status status = runtime_.RecordEvent(arrived_, stream);
  if (status.ok()) status = runtime_.WaitEvent(lane.stream, arrived_);
  if (status.ok()) status = runtime_.Launch(params, scratch, lane.stream);
  if (status.ok()) status = runtime_.RecordEvent(lane.computed, lane.stream);
  if (status.ok()) {
    status = runtime_.CopyToHost(copy_out.host, copy_out.device, copy_out.bytes,
                                 lane.stream);
  }
  if (status.ok()) status = runtime_.RecordEvent(lane.copied_out, lane.stream);
  return status;
}

absl::Status PartPipeline::AwaitComputed(CudaRuntime::Stream stream) {
  for (const Lane& lane : lanes_) {
    absl::Status status = runtime_.WaitEvent(stream, lane.computed);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status PartPipeline::AwaitCopiedOut(CudaRuntime::Stream stream) {
  for (const Lane& lane : lanes_) {
    absl::Status status = runtime_.WaitEvent(stream, lane.copied_out);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

void PartPipeline::Synchronize() {
  for (const Lane& lane : lanes_) {
    // The first error is known already.
    (void)runtime_.Synchronize(lane.stream);
  }
}

}  // namespace attention
