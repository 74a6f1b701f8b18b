#include "client/cpp/cuda_memory_region.h"

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/cpp/region_registration.h"
#include "client/cpp/region_table.h"

namespace attention {
namespace {

constexpr char kRegisterMethod[] =
    "/attention.v1.AttentionService/RegisterCudaMemoryRegion";

class RegionImpl : public CudaMemoryRegion {
 public:
  RegionImpl(Options options, absl::Duration timeout, RegionTable* table,
             CallRunner* runner)
      : options_(std::move(options)),
        registration_(
            absl::StrCat("cuda-", absl::BytesToHexString(RandomToken())),
            timeout, table, runner) {}

  void Use() {
    registration_.Use(options_.data, options_.size_bytes,
                      /*in_gpu_memory=*/true);
  }

  void* data() const override { return options_.data; }
  size_t size_bytes() const override { return options_.size_bytes; }

  absl::Status Renew() override {
    v1::RegisterCudaMemoryRegionRequest request;
    request.set_memory_handle(options_.memory_handle);
    request.set_device_uuid(options_.device_uuid);
    request.set_byte_size(static_cast<int64_t>(options_.size_bytes));
    return registration_.Register(kRegisterMethod, std::move(request),
                                  options_.lease);
  }

 private:
  const Options options_;
  RegionRegistration registration_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CudaMemoryRegion>> RegisterCudaRegion(
    const CudaMemoryRegion::Options& options, absl::Duration timeout,
    RegionTable* table, CallRunner* runner) {
  absl::Status status = CheckRegionOptions(options.size_bytes, options.lease);
  if (!status.ok()) return status;
  if (options.data == nullptr) {
    return absl::InvalidArgumentError("data must not be null");
  }
  auto region = std::make_unique<RegionImpl>(options, timeout, table, runner);
  if (status = region->Renew(); !status.ok()) return status;
  region->Use();
  return region;
}

}  // namespace attention
