#include "server/engine/cuda/batch_memory.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"

namespace attention {
namespace {

constexpr size_t kTensorAlignment = 256;

constexpr size_t kMaxInputBytesToShare = size_t{2} << 20;
constexpr size_t kMaxResultBytesToShare = size_t{256} << 10;
constexpr size_t kMaxSharedInputBytes = size_t{16} << 20;
// What the answer that is sent last may keep of the others'.
constexpr size_t kMaxSharedResultBytes = size_t{2} << 20;
constexpr size_t kMinSharedBlockBytes = size_t{64} << 10;

size_t Align(size_t bytes) {
  return (bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
}

absl::StatusOr<std::shared_ptr<const Block>> AllocateShared(MemoryPool& pool,
                                                            size_t bytes) {
  absl::StatusOr<Block> block = pool.Allocate(bytes);
  if (!block.ok()) return block.status();
  return std::make_shared<const Block>(*std::move(block));
}

void SetResult(const WorkLayout& layout,
               const std::shared_ptr<const Block>& block, size_t at,
               PreparedWork& prepared) {
  const AttentionWork& work = *prepared.work;
  prepared.result = WorkResult{
      .output = Block::Part(block, at + layout.output, work.output_bytes),
      .log_sum_exp =
          Block::Part(block, at + layout.log_sum_exp, work.log_sum_exp_bytes),
      .weights = Block::Part(block, at + layout.weights, work.weights_bytes)};
}

void SetAddresses(const WorkLayout& layout, PreparedWork& prepared) {
  auto address = [](const Block& block, size_t offset, size_t bytes) {
    return bytes == 0 ? nullptr : static_cast<char*>(block.data()) + offset;
  };
  const AttentionWork& work = *prepared.work;
  const Block& inputs = prepared.device_inputs;
  const Block& results = prepared.device_results;
  prepared.addresses = {
      .query = address(inputs, layout.query, work.query.size_bytes()),
      .key = address(inputs, layout.key, work.key.size_bytes()),
      .value = address(inputs, layout.value, work.value.size_bytes()),
      .output = address(results, layout.output, work.output_bytes),
      .log_sum_exp = reinterpret_cast<float*>(
          address(results, layout.log_sum_exp, work.log_sum_exp_bytes)),
      .weights = address(results, layout.weights, work.weights_bytes)};
}

}  // namespace

WorkLayout::WorkLayout(const AttentionWork& work) {
  query = 0;
  key = query + Align(work.query.size_bytes());
  value = key + Align(work.key.size_bytes());
  input_bytes = value + Align(work.value.size_bytes());
  output = 0;
  log_sum_exp = output + Align(work.output_bytes);
  weights = log_sum_exp + Align(work.log_sum_exp_bytes);
  result_bytes = weights + Align(work.weights_bytes);
}

size_t CountToPlaceTogether(absl::Span<const PreparedWork> works) {
  size_t count = 0, input_bytes = 0, result_bytes = 0;
  for (const PreparedWork& prepared : works) {
    const WorkLayout layout(*prepared.work);
    input_bytes += layout.input_bytes;
    result_bytes += layout.result_bytes;
    if (layout.input_bytes > kMaxInputBytesToShare ||
        layout.result_bytes > kMaxResultBytesToShare ||
        input_bytes > kMaxSharedInputBytes ||
        result_bytes > kMaxSharedResultBytes) {
      break;
    }
    ++count;
  }
  return count;
}

absl::Status PlaceTogether(absl::Span<PreparedWork> works, MemoryPool& pinned,
                           MemoryPool& device) {
  size_t input_bytes = 0, result_bytes = 0;
  for (const PreparedWork& prepared : works) {
    const WorkLayout layout(*prepared.work);
    input_bytes += layout.input_bytes;
    result_bytes += layout.result_bytes;
  }
  // Batches differ in size all the time, and a cached block serves one class of
  // sizes only.
  auto rounded = [&](size_t bytes) {
    if (bytes == 0 || works.size() == 1) return bytes;
    return std::bit_ceil(std::max(bytes, kMinSharedBlockBytes));
  };
  auto results = AllocateShared(pinned, rounded(result_bytes));
  if (!results.ok()) return results.status();
  auto staging = AllocateShared(pinned, rounded(input_bytes));
  if (!staging.ok()) return staging.status();
  auto memory = AllocateShared(device, rounded(input_bytes + result_bytes));
  if (!memory.ok()) return memory.status();

  size_t input = 0, result = 0;
  for (PreparedWork& prepared : works) {
    const WorkLayout layout(*prepared.work);
    prepared.staging = Block::Part(*staging, input, layout.input_bytes);
    prepared.host_results = Block::Part(*results, result, layout.result_bytes);
    prepared.device_inputs = Block::Part(*memory, input, layout.input_bytes);
    prepared.device_results =
        Block::Part(*memory, input_bytes + result, layout.result_bytes);
    SetResult(layout, *results, result, prepared);
    SetAddresses(layout, prepared);
    input += layout.input_bytes;
    result += layout.result_bytes;
  }
  return absl::OkStatus();
}

bool Follows(const Block& next, const Block& block) {
  return next.SharesMemoryWith(block) &&
         next.data() == static_cast<char*>(block.data()) + block.size();
}

}  // namespace attention
