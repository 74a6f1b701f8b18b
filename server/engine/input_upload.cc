#include "server/engine/input_upload.h"

#include <cstring>
#include <utility>

namespace attention {
namespace {

class HostUpload : public InputUpload {
 public:
  explicit HostUpload(InputBlocks blocks) : blocks_(std::move(blocks)) {}

  absl::Status Write(InputTensor tensor, size_t offset,
                     absl::Span<const absl::string_view> fragments) override {
    char* to = static_cast<char*>(blocks_[static_cast<size_t>(tensor)].data()) +
               offset;
    for (absl::string_view fragment : fragments) {
      std::memcpy(to, fragment.data(), fragment.size());
      to += fragment.size();
    }
    return absl::OkStatus();
  }

  absl::Status Provide(AttentionWork& work) override {
    Payload* const payloads[] = {&work.query, &work.key, &work.value};
    for (size_t i = 0; i < blocks_.size(); ++i) {
      *payloads[i] = Payload();
      if (blocks_[i].size() == 0) continue;
      payloads[i]->fragments.emplace_back(
          static_cast<const char*>(blocks_[i].data()), blocks_[i].size());
    }
    return absl::OkStatus();
  }

 private:
  const InputBlocks blocks_;
};

}  // namespace

absl::StatusOr<InputBlocks> AllocateInputs(const InputSizes& sizes,
                                           MemoryPool& pool) {
  InputBlocks blocks;
  for (InputTensor tensor :
       {InputTensor::kQuery, InputTensor::kKey, InputTensor::kValue}) {
    absl::StatusOr<Block> block = pool.Allocate(sizes.of(tensor));
    if (!block.ok()) return block.status();
    blocks[static_cast<size_t>(tensor)] = *std::move(block);
  }
  return blocks;
}

absl::StatusOr<std::unique_ptr<InputUpload>> ReserveHostInputs(
    const InputSizes& sizes, MemoryPool& pool) {
  absl::StatusOr<InputBlocks> blocks = AllocateInputs(sizes, pool);
  if (!blocks.ok()) return blocks.status();
  return std::make_unique<HostUpload>(*std::move(blocks));
}

}  // namespace attention
