#include "tests/server/engine/fake_cuda_runtime.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>
#include <utility>
#include <vector>

#include "kernels/cpu/attention_cpu.h"
#include "tests/server/engine/fake_streams.h"

namespace attention::test {
namespace {

constexpr std::align_val_t kAlignment{256};

thread_local int current_device = -1;

FakeStream& ToStream(CudaRuntime::Stream stream) {
  return *static_cast<FakeStream*>(stream);
}
FakeEvent& ToEvent(CudaRuntime::Event event) {
  return *static_cast<FakeEvent*>(event);
}

absl::Status CheckCurrentDevice() {
  if (current_device >= 0) return absl::OkStatus();
  return absl::InternalError("the thread has not chosen a device");
}

}  // namespace

FakeCudaRuntime::~FakeCudaRuntime() {
  EXPECT_EQ(live_allocations(), 0u) << "memory was not freed";
}

void FakeCudaRuntime::FailCall(Call call, int n, bool sticky) {
  absl::MutexLock lock(&mutex_);
  calls_until_failure_[call] = n;
  sticky_ = sticky;
}

void FakeCudaRuntime::LimitDeviceMemory(size_t bytes) {
  absl::MutexLock lock(&mutex_);
  device_limit_ = bytes;
}

void FakeCudaRuntime::SetScratchPerSequence(size_t bytes) {
  absl::MutexLock lock(&mutex_);
  scratch_per_sequence_ = bytes;
}

int FakeCudaRuntime::calls(Call call) const {
  absl::MutexLock lock(&mutex_);
  const auto found = calls_.find(call);
  return found == calls_.end() ? 0 : found->second;
}

size_t FakeCudaRuntime::live_allocations() const {
  absl::MutexLock lock(&mutex_);
  return allocations_.size();
}

absl::Status FakeCudaRuntime::Enter(Call call) {
  if (absl::Status status = CheckCurrentDevice(); !status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  ++calls_[call];
  if (!device_error_.ok()) return device_error_;
  const auto failure = calls_until_failure_.find(call);
  if (failure == calls_until_failure_.end() || --failure->second > 0) {
    return absl::OkStatus();
  }
  calls_until_failure_.erase(failure);
  const absl::Status error = absl::InternalError("injected CUDA error");
  if (sticky_) device_error_ = error;
  return error;
}

absl::StatusOr<void*> FakeCudaRuntime::Allocate(size_t bytes, Kind kind) {
  if (absl::Status status = CheckCurrentDevice(); !status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  if (!device_error_.ok()) return device_error_;
  if (kind == Kind::kDevice) {
    if (bytes > device_limit_ - device_bytes_) {
      return absl::ResourceExhaustedError("the fake GPU is full");
    }
    device_bytes_ += bytes;
  }
  void* data = ::operator new(bytes, kAlignment);
  std::memset(data, 0xff, bytes);  // NaN in every type
  allocations_[reinterpret_cast<uintptr_t>(data)] = {
      .bytes = bytes, .kind = kind, .device = current_device};
  return data;
}

void FakeCudaRuntime::Free(void* data, Kind kind, bool is_foreign) {
  absl::MutexLock lock(&mutex_);
  const auto found = allocations_.find(reinterpret_cast<uintptr_t>(data));
  if (found == allocations_.end() || found->second.kind != kind ||
      found->second.is_foreign != is_foreign) {
    ADD_FAILURE() << "freed memory that was not allocated this way";
    return;
  }
  const size_t bytes = found->second.bytes;
  allocations_.erase(found);
  if (is_foreign) return;
  if (kind == Kind::kDevice) device_bytes_ -= bytes;
  ::operator delete(data, kAlignment);
}

absl::Status FakeCudaRuntime::CheckRange(const void* data, size_t bytes,
                                         Kind kind) const {
  absl::MutexLock lock(&mutex_);
  const auto address = reinterpret_cast<uintptr_t>(data);
  auto found = allocations_.upper_bound(address);
  if (found == allocations_.begin()) return absl::InternalError("no memory");
  found = std::prev(found);
  if (found->second.kind != kind ||
      address + bytes > found->first + found->second.bytes) {
    return absl::InternalError("outside of any allocation of this kind");
  }
  if (kind == Kind::kDevice && found->second.device != current_device) {
    return absl::InternalError("on another device");
  }
  return absl::OkStatus();
}

absl::StatusOr<int> FakeCudaRuntime::DeviceCount() {
  if (device_count_ == 0) return absl::FailedPreconditionError("no GPU");
  return device_count_;
}

absl::StatusOr<CudaRuntime::Properties> FakeCudaRuntime::GetProperties(
    int device) {
  if (device >= device_count_) return absl::InternalError("no such device");
  return Properties{.name = "Fake GPU",
                    .uuid = Uuid(device),
                    .compute_capability = "9.0",
                    .memory_bytes = size_t{1} << 30,
                    .multiprocessor_count = 4};
}

absl::Status FakeCudaRuntime::SetDevice(int device) {
  if (device >= device_count_) return absl::InternalError("no such device");
  current_device = device;
  return absl::OkStatus();
}

absl::StatusOr<void*> FakeCudaRuntime::AllocateDevice(size_t bytes) {
  return Allocate(bytes, Kind::kDevice);
}
void FakeCudaRuntime::FreeDevice(void* data) { Free(data, Kind::kDevice); }
absl::StatusOr<void*> FakeCudaRuntime::AllocatePinned(size_t bytes) {
  return Allocate(bytes, Kind::kPinned);
}
void FakeCudaRuntime::FreePinned(void* data) { Free(data, Kind::kPinned); }

absl::Status FakeCudaRuntime::PinMemory(void* data, size_t bytes) {
  if (absl::Status status = Enter(Call::kPinMemory); !status.ok()) {
    return status;
  }
  constexpr uintptr_t kPage = 4096;
  const auto address = reinterpret_cast<uintptr_t>(data);
  EXPECT_EQ(address % kPage, 0u);
  EXPECT_EQ(bytes % kPage, 0u);
  absl::MutexLock lock(&mutex_);
  allocations_[address] = {
      .bytes = bytes, .kind = Kind::kPinned, .is_foreign = true};
  return absl::OkStatus();
}
void FakeCudaRuntime::UnpinMemory(void* data) {
  Free(data, Kind::kPinned, /*is_foreign=*/true);
}

std::string FakeCudaRuntime::Uuid(int device) {
  return std::string(kUuidBytes - 1, 'u') + static_cast<char>('0' + device);
}

std::string FakeCudaRuntime::Share(int device, size_t bytes) {
  absl::MutexLock lock(&mutex_);
  std::string handle(kHandleBytes - 1, 'h');
  handle.push_back(static_cast<char>(shared_.size()));
  // Aligned as cudaMalloc does, within the larger vector.
  shared_[handle] = {device, std::vector<char>(bytes + 256, '\xff')};
  return handle;
}

char* FakeCudaRuntime::shared_data(const std::string& handle) {
  absl::MutexLock lock(&mutex_);
  char* const data = shared_.at(handle).bytes.data();
  return data + (256 - reinterpret_cast<uintptr_t>(data) % 256) % 256;
}

absl::StatusOr<CudaRuntime::SharedMemory> FakeCudaRuntime::OpenShared(
    absl::string_view handle) {
  if (absl::Status status = Enter(Call::kOpenShared); !status.ok()) {
    return status;
  }
  EXPECT_EQ(handle.size(), kHandleBytes);
  SharedMemory memory;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = shared_.find(std::string(handle));
    if (found == shared_.end()) {
      return absl::InvalidArgumentError("no such handle");
    }
    memory.device = found->second.device;
    memory.bytes = found->second.bytes.size() - 256;
  }
  memory.data = shared_data(std::string(handle));
  absl::MutexLock lock(&mutex_);
  const bool is_new = allocations_
                          .insert({reinterpret_cast<uintptr_t>(memory.data),
                                   {.bytes = memory.bytes,
                                    .kind = Kind::kDevice,
                                    .is_foreign = true,
                                    .device = memory.device}})
                          .second;
  EXPECT_TRUE(is_new) << "opened twice";
  return memory;
}
void FakeCudaRuntime::CloseShared(void* data) {
  Free(data, Kind::kDevice, /*is_foreign=*/true);
}

absl::StatusOr<CudaRuntime::Stream> FakeCudaRuntime::CreateStream() {
  return new FakeStream;
}
void FakeCudaRuntime::DestroyStream(Stream stream) { delete &ToStream(stream); }

void FakeCudaRuntime::Enqueue(Stream stream, std::function<void()> operation) {
  ToStream(stream).Enqueue(std::move(operation));
}

absl::StatusOr<CudaRuntime::Event> FakeCudaRuntime::CreateEvent() {
  return new FakeEvent;
}
void FakeCudaRuntime::DestroyEvent(Event event) { delete &ToEvent(event); }

absl::Status FakeCudaRuntime::RecordEvent(Event event, Stream stream) {
  absl::Status status = Enter(Call::kRecordEvent);
  if (status.ok()) ToStream(stream).Record(ToEvent(event));
  return status;
}

absl::Status FakeCudaRuntime::WaitEvent(Stream stream, Event event) {
  absl::Status status = Enter(Call::kWaitEvent);
  if (status.ok()) ToStream(stream).Wait(ToEvent(event));
  return status;
}

absl::Status FakeCudaRuntime::CopyToDevice(void* device, const void* host,
                                           size_t bytes, Stream stream) {
  absl::Status status = Enter(Call::kCopyToDevice);
  status.Update(CheckRange(device, bytes, Kind::kDevice));
  status.Update(CheckRange(host, bytes, Kind::kPinned));
  if (!status.ok()) return status;
  Enqueue(stream, [=] { std::memcpy(device, host, bytes); });
  return status;
}

absl::Status FakeCudaRuntime::CopyToHost(void* host, const void* device,
                                         size_t bytes, Stream stream) {
  absl::Status status = Enter(Call::kCopyToHost);
  status.Update(CheckRange(device, bytes, Kind::kDevice));
  status.Update(CheckRange(host, bytes, Kind::kPinned));
  if (!status.ok()) return status;
  Enqueue(stream, [=] { std::memcpy(host, device, bytes); });
  return status;
}

absl::Status FakeCudaRuntime::WriteDevice(void* device, const void* host,
                                          size_t bytes) {
  absl::Status status = CheckCurrentDevice();
  status.Update(CheckRange(device, bytes, Kind::kDevice));
  if (status.ok()) std::memcpy(device, host, bytes);
  return status;
}

absl::Status FakeCudaRuntime::ClearDevice(void* device, size_t bytes,
                                          Stream stream) {
  absl::Status status = Enter(Call::kClearDevice);
  status.Update(CheckRange(device, bytes, Kind::kDevice));
  if (!status.ok()) return status;
  Enqueue(stream, [=] { std::memset(device, 0, bytes); });
  return status;
}

absl::Status FakeCudaRuntime::FillDevice(float* device, float value,
                                         size_t count, Stream stream) {
  absl::Status status = Enter(Call::kFillDevice);
  status.Update(CheckRange(device, count * sizeof(float), Kind::kDevice));
  if (!status.ok()) return status;
  Enqueue(stream, [=] { std::fill_n(device, count, value); });
  return status;
}

absl::Status FakeCudaRuntime::CheckPointers(const Sequence& sequence) const {
  if (sequence.query_length == 0) return absl::OkStatus();
  absl::Status status;
  for (const void* pointer : {sequence.query, sequence.key, sequence.value,
                              static_cast<const void*>(sequence.output),
                              static_cast<const void*>(sequence.log_sum_exp),
                              static_cast<const void*>(sequence.weights)}) {
    if (pointer != nullptr) {
      status.Update(CheckRange(pointer, 0, Kind::kDevice));
    }
  }
  return status;
}

absl::Status FakeCudaRuntime::CheckScratch(const Scratch& scratch,
                                           const ScratchBytes& bytes) const {
  absl::Status status;
  if (bytes.host_bytes > 0) {
    status.Update(CheckRange(scratch.host, bytes.host_bytes, Kind::kPinned));
  }
  if (bytes.device_bytes > 0) {
    status.Update(
        CheckRange(scratch.device, bytes.device_bytes, Kind::kDevice));
  }
  return status;
}

CudaRuntime::ScratchBytes FakeCudaRuntime::ScratchSize(
    const AttentionParams& params) {
  absl::MutexLock lock(&mutex_);
  return {.host_bytes = params.sequence_count * sizeof(Sequence),
          .device_bytes = params.sequence_count * scratch_per_sequence_};
}

absl::Status FakeCudaRuntime::Launch(const AttentionParams& params,
                                     const Scratch& scratch, Stream stream) {
  absl::Status status = Enter(Call::kLaunch);
  const ScratchBytes bytes = ScratchSize(params);
  status.Update(CheckScratch(scratch, bytes));
  for (int64_t i = 0; i < params.sequence_count; ++i) {
    status.Update(CheckPointers(params.sequences[i]));
  }
  if (!status.ok()) return status;
  // As the real launch, which reads the descriptors from the scratch memory.
  if (bytes.host_bytes > 0) {
    std::memcpy(scratch.host, params.sequences, bytes.host_bytes);
  }
  AttentionParams later = params;
  later.sequences = static_cast<const Sequence*>(scratch.host);
  Enqueue(stream, [this, later] {
    EXPECT_TRUE(cpu::ComputeAttention(later, threads_).ok());
  });
  return absl::OkStatus();
}

absl::Status FakeCudaRuntime::Synchronize(Stream stream) {
  const absl::Status status = Enter(Call::kSynchronize);
  if (CheckDevice(stream).ok()) {
    ToStream(stream).Run();
  } else {
    ToStream(stream).Discard();  // a dead device does nothing
  }
  return status;
}

// Time stands still.
absl::StatusOr<absl::Duration> FakeCudaRuntime::ElapsedTime(Event from,
                                                            Event to) {
  if (absl::Status status = Enter(Call::kElapsedTime); !status.ok()) {
    return status;
  }
  if (!ToEvent(from).has_happened() || !ToEvent(to).has_happened()) {
    return absl::InternalError("an event has not happened");
  }
  return absl::Milliseconds(3);
}

absl::Status FakeCudaRuntime::CheckDevice(Stream) {
  absl::MutexLock lock(&mutex_);
  return device_error_;
}

}  // namespace attention::test
