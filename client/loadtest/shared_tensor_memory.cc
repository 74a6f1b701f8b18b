#include <cstring>
#include <utility>

#include "client/loadtest/tensor_memory.h"

namespace attention::loadtest {
namespace {

// Longer than any run: inputs that are rarely drawn must not be forgotten.
constexpr absl::Duration kLease = absl::Hours(1);

class SharedTensorMemory : public TensorMemory {
 public:
  explicit SharedTensorMemory(std::unique_ptr<SharedMemoryRegion> region)
      : region_(std::move(region)) {}

  char* data() const override { return static_cast<char*>(region_->data()); }
  absl::Status Write(char* to, const void* from, size_t bytes) override {
    std::memcpy(to, from, bytes);
    return absl::OkStatus();
  }
  absl::Status Read(void* to, const char* from, size_t bytes) override {
    std::memcpy(to, from, bytes);
    return absl::OkStatus();
  }

 private:
  const std::unique_ptr<SharedMemoryRegion> region_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TensorMemory>> MakeSharedMemory(Client& client,
                                                               size_t bytes) {
  auto region =
      client.CreateSharedMemoryRegion({.size_bytes = bytes, .lease = kLease});
  if (!region.ok()) return region.status();
  return std::make_unique<SharedTensorMemory>(*std::move(region));
}

}  // namespace attention::loadtest
