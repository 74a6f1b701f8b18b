#include "server/engine/cuda/batch_memory.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <tuple>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace attention {
namespace {

constexpr size_t kMaxInputBytesToShare = size_t{2} << 20;
constexpr size_t kMaxResultBytesToShare = size_t{256} << 10;
constexpr size_t kMaxSharedInputBytes = size_t{16} << 20;
// What the answer that is sent last may keep of the others'.
constexpr size_t kMaxSharedResultBytes = size_t{2} << 20;
constexpr size_t kMinSharedBlockBytes = size_t{64} << 10;

absl::StatusOr<std::shared_ptr<const Block>> AllocateShared(MemoryPool& pool,
                                                            size_t bytes) {
  absl::StatusOr<Block> block = pool.Allocate(bytes);
  if (!block.ok()) return block.status();
  return std::make_shared<const Block>(*std::move(block));
}

TensorPlace MakePlace(size_t bytes, const DirectMemory& direct) {
  const bool is_pinned = direct.is_pinned() && bytes >= kMinDirectCopyBytes;
  const bool is_direct = bytes > 0 && (is_pinned || direct.is_on_device());
  TensorPlace place = {.bytes = bytes};
  if (is_direct) {
    place.route = is_pinned ? Route::kPinned : Route::kInPlace;
    place.direct = direct;
  }
  return place;
}

// Returns the bytes of the staged ones and of all that need memory.
std::pair<size_t, size_t> SetOffsets(std::array<TensorPlace*, 3> places) {
  size_t staged = 0, all = 0;
  for (Route route : {Route::kStaged, Route::kPinned}) {
    for (TensorPlace* place : places) {
      if (place->route != route) continue;
      place->offset = all;
      all += AlignTensor(place->bytes);
    }
    if (route == Route::kStaged) staged = all;
  }
  return {staged, all};
}

// On the device.
void* Address(const TensorPlace& place, const Block& block) {
  if (place.route == Route::kInPlace) return place.direct.address;
  if (place.bytes == 0) return nullptr;
  return static_cast<char*>(block.data()) + place.offset;
}

void Bind(const WorkLayout& layout, const std::shared_ptr<const Block>& results,
          size_t at, PreparedWork& prepared) {
  auto part = [&](const TensorPlace& place) {
    return place.route == Route::kStaged
               ? Block::Part(results, at + place.offset, place.bytes)
               : Block();
  };
  prepared.result = WorkResult{.output = part(layout.output),
                               .log_sum_exp = part(layout.log_sum_exp),
                               .weights = part(layout.weights)};
  const Block& in = prepared.device_inputs;
  const Block& out = prepared.device_results;
  prepared.addresses = {
      .query = Address(layout.query, in),
      .key = Address(layout.key, in),
      .value = Address(layout.value, in),
      .output = Address(layout.output, out),
      .log_sum_exp = static_cast<float*>(Address(layout.log_sum_exp, out)),
      .weights = Address(layout.weights, out)};
}

}  // namespace

WorkLayout::WorkLayout(const AttentionWork& work)
    : query(MakePlace(work.query.size_bytes(), work.query.direct_memory())),
      key(MakePlace(work.key.size_bytes(), work.key.direct_memory())),
      value(MakePlace(work.value.size_bytes(), work.value.direct_memory())),
      output(MakePlace(work.output_bytes, work.output_target)),
      log_sum_exp(MakePlace(work.log_sum_exp_bytes, work.log_sum_exp_target)),
      weights(MakePlace(work.weights_bytes, work.weights_target)) {
  std::tie(staged_input_bytes, input_bytes) =
      SetOffsets({&query, &key, &value});
  std::tie(staged_result_bytes, result_bytes) =
      SetOffsets({&output, &log_sum_exp, &weights});
}

absl::Status CheckDevice(const AttentionWork& work, int device) {
  for (const DirectMemory& memory :
       {work.query.direct_memory(), work.key.direct_memory(),
        work.value.direct_memory(), work.output_target, work.log_sum_exp_target,
        work.weights_target}) {
    if (memory.is_on_device() && memory.device != device) {
      return absl::InternalError(absl::StrCat("a tensor in the memory of GPU ",
                                              memory.device, " came to GPU ",
                                              device));
    }
  }
  return absl::OkStatus();
}

size_t CountToPlaceTogether(absl::Span<const PreparedWork> works) {
  size_t count = 0, input_bytes = 0, result_bytes = 0;
  for (const PreparedWork& prepared : works) {
    const WorkLayout layout(*prepared.work);
    input_bytes += layout.input_bytes;
    result_bytes += layout.result_bytes;
    if (!prepared.work->reserved_results.empty() ||
        layout.input_bytes > kMaxInputBytesToShare ||
        layout.result_bytes > kMaxResultBytesToShare ||
        input_bytes > kMaxSharedInputBytes ||
        result_bytes > kMaxSharedResultBytes) {
      break;
    }
    ++count;
  }
  return count;
}

absl::Status ReserveResultMemory(AttentionWork& work, MemoryPool& pinned,
                                 MemoryPool& device) {
  const WorkLayout layout(work);
  absl::StatusOr<Block> host = pinned.Allocate(layout.staged_result_bytes);
  if (!host.ok()) return host.status();
  absl::StatusOr<Block> on_device = device.Allocate(layout.result_bytes);
  if (!on_device.ok()) return on_device.status();
  work.reserved_results.clear();
  work.reserved_results.push_back(*std::move(host));
  work.reserved_results.push_back(*std::move(on_device));
  return absl::OkStatus();
}

absl::Status PlaceTogether(absl::Span<PreparedWork> works, MemoryPool& pinned,
                           MemoryPool& device) {
  size_t input_bytes = 0, staged_input_bytes = 0;
  size_t result_bytes = 0, staged_result_bytes = 0;
  for (const PreparedWork& prepared : works) {
    const WorkLayout layout(*prepared.work);
    input_bytes += layout.input_bytes;
    staged_input_bytes += layout.staged_input_bytes;
    result_bytes += layout.result_bytes;
    staged_result_bytes += layout.staged_result_bytes;
  }
  // Batches differ in size all the time, and a cached block serves one class of
  // sizes only.
  auto rounded = [&](size_t bytes) {
    if (bytes == 0 || works.size() == 1) return bytes;
    return std::bit_ceil(std::max(bytes, kMinSharedBlockBytes));
  };
  // A work that has reserved memory for its results comes alone.
  ReservedResults& reserved = works.front().work->reserved_results;
  const bool is_reserved = !reserved.empty();
  auto staging = AllocateShared(pinned, rounded(staged_input_bytes));
  if (!staging.ok()) return staging.status();
  auto memory = AllocateShared(
      device, is_reserved ? input_bytes : rounded(input_bytes + result_bytes));
  if (!memory.ok()) return memory.status();
  std::shared_ptr<const Block> results;
  if (is_reserved) {
    results = std::make_shared<const Block>(std::move(reserved[0]));
  } else {
    auto allocated = AllocateShared(pinned, rounded(staged_result_bytes));
    if (!allocated.ok()) return allocated.status();
    results = *std::move(allocated);
  }

  size_t input = 0, staged_input = 0, result = 0, staged_result = 0;
  for (PreparedWork& prepared : works) {
    const WorkLayout layout(*prepared.work);
    prepared.staging =
        Block::Part(*staging, staged_input, layout.staged_input_bytes);
    prepared.host_results =
        Block::Part(results, staged_result, layout.staged_result_bytes);
    prepared.device_inputs = Block::Part(*memory, input, layout.input_bytes);
    prepared.device_results =
        is_reserved
            ? std::move(reserved[1])
            : Block::Part(*memory, input_bytes + result, layout.result_bytes);
    Bind(layout, results, staged_result, prepared);
    staged_input += layout.staged_input_bytes;
    staged_result += layout.staged_result_bytes;
    input += layout.input_bytes;
    result += layout.result_bytes;
  }
  reserved.clear();
  return absl::OkStatus();
}

bool StagedResultsFollow(const PreparedWork& next,
                         const PreparedWork& previous) {
  const auto follows = [&](const Block& block, const Block& before) {
    const char* const end =
        static_cast<const char*>(before.data()) + previous.host_results.size();
    return block.SharesMemoryWith(before) && block.data() == end;
  };
  return follows(next.host_results, previous.host_results) &&
         follows(next.device_results, previous.device_results);
}

}  // namespace attention
