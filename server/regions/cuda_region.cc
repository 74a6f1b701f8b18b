#include "server/regions/cuda_region.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/engine/error_reason.h"

namespace attention {
namespace {

absl::Status Refused(absl::Status status) {
  return WithReason(std::move(status), error_reason::kInvalidRequest);
}

absl::Status CheckBytes(absl::string_view field, const std::string& value,
                        size_t bytes) {
  if (value.size() == bytes) return absl::OkStatus();
  return Refused(absl::InvalidArgumentError(
      absl::StrCat(field, " must have ", bytes, " bytes; got ", value.size())));
}

// As nvidia-smi has it.
std::string UuidText(const std::string& uuid) {
  const std::string hex = absl::BytesToHexString(uuid);
  return absl::StrCat("GPU-", hex.substr(0, 8), "-", hex.substr(8, 4), "-",
                      hex.substr(12, 4), "-", hex.substr(16, 4), "-",
                      hex.substr(20));
}

}  // namespace

absl::StatusOr<std::shared_ptr<CudaHandles>> CudaHandles::Create(
    CudaRuntime* cuda) {
  const absl::StatusOr<int> count = cuda->DeviceCount();
  if (!count.ok()) return count.status();
  std::vector<std::string> uuids;
  for (int device = 0; device < *count; ++device) {
    const auto properties = cuda->GetProperties(device);
    if (!properties.ok()) return properties.status();
    uuids.push_back(properties->uuid);
  }
  return std::shared_ptr<CudaHandles>(new CudaHandles(cuda, std::move(uuids)));
}

absl::StatusOr<std::unique_ptr<Region>> CudaHandles::OpenRegion(
    const CudaMemory& memory, int64_t byte_offset, int64_t byte_size) {
  for (const absl::Status& status :
       {CheckBytes("memory_handle", memory.handle, CudaRuntime::kHandleBytes),
        CheckBytes("device_uuid", memory.device_uuid,
                   CudaRuntime::kUuidBytes)}) {
    if (!status.ok()) return status;
  }
  if (byte_offset < 0 || byte_size <= 0) {
    return Refused(absl::InvalidArgumentError(absl::StrCat(
        "byte_offset must be at least 0 and byte_size more than 0; got ",
        byte_offset, " and ", byte_size)));
  }
  const auto uuid = std::find(uuids_.begin(), uuids_.end(), memory.device_uuid);
  if (uuid == uuids_.end()) {
    return Refused(absl::FailedPreconditionError(
        absl::StrCat("this server has no GPU with device_uuid ",
                     UuidText(memory.device_uuid))));
  }
  const Key key(static_cast<int>(uuid - uuids_.begin()), memory.handle);
  const auto opened = Acquire(key);
  if (!opened.ok()) return Refused(opened.status());
  // From here on the region releases it.
  auto region = std::unique_ptr<Region>(new CudaRegion(
      shared_from_this(), key, static_cast<char*>(opened->data) + byte_offset,
      byte_offset, byte_size));
  if (opened->device != key.first) {
    return Refused(absl::InvalidArgumentError(
        absl::StrCat("memory_handle is of another GPU than device_uuid ",
                     UuidText(memory.device_uuid))));
  }
  // Without a sum that could overflow.
  const auto size = static_cast<int64_t>(opened->bytes);
  if (byte_size > size || byte_offset > size - byte_size) {
    return Refused(absl::InvalidArgumentError(absl::StrCat(
        "byte_offset + byte_size must be at most ", size,
        ", the size of the allocation; got ", byte_offset, " + ", byte_size)));
  }
  return region;
}

absl::StatusOr<CudaRuntime::SharedMemory> CudaHandles::Acquire(const Key& key) {
  absl::MutexLock lock(&mutex_);
  auto it = opened_.find(key);
  if (it == opened_.end()) {
    if (absl::Status s = cuda_.SetDevice(key.first); !s.ok()) return s;
    const auto memory = cuda_.OpenShared(key.second);
    if (!memory.ok()) return memory.status();
    it = opened_.emplace(key, Opened{*memory}).first;
  }
  ++it->second.users;
  return it->second.memory;
}

void CudaHandles::Release(const Key& key) {
  absl::MutexLock lock(&mutex_);
  const auto it = opened_.find(key);
  if (--it->second.users > 0) return;
  if (cuda_.SetDevice(key.first).ok())
    cuda_.CloseShared(it->second.memory.data);
  opened_.erase(it);
}

CudaRegion::~CudaRegion() { handles_->Release(key_); }

std::string CudaRegion::identity() const {
  return absl::StrCat("cuda ", key_.first, " ", key_.second, " ", offset_, " ",
                      size_bytes());
}

absl::Status CudaRegion::Read(int64_t /*offset*/,
                              absl::Span<char> /*to*/) const {
  return absl::InternalError("a tensor in a GPU's memory came to a processor");
}

absl::Status CudaRegion::Write(int64_t offset,
                               absl::Span<const char> from) const {
  if (from.empty()) return absl::OkStatus();
  if (absl::Status s = handles_->cuda_.SetDevice(key_.first); !s.ok()) return s;
  return handles_->cuda_.WriteDevice(address_ + offset, from.data(),
                                     from.size());
}

DirectMemory CudaRegion::direct_memory() const {
  return {.kind = DirectMemory::Kind::kDevice,
          .address = address_,
          .device = key_.first};
}

}  // namespace attention
