#include "client/cpp/append_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace attention {
namespace {

// Large enough that messages cost nothing beside their bytes, small enough that
// sending, receiving and copying to the device overlap.
constexpr size_t kChunkBytes = size_t{2} << 20;

int64_t CountOf(absl::Span<const int64_t> token_counts, int32_t layer) {
  return layer >= 0 && static_cast<size_t>(layer) < token_counts.size()
             ? token_counts[layer]
             : 0;
}

AppendPlan::Chunk Advanced(AppendPlan::Chunk chunk, int64_t token_count,
                           const TokenBytes& bytes) {
  const auto tokens = static_cast<size_t>(token_count);
  chunk.tokens.token_count -= token_count;
  chunk.tokens.key =
      static_cast<const char*>(chunk.tokens.key) + tokens * bytes.key;
  chunk.tokens.value =
      static_cast<const char*>(chunk.tokens.value) + tokens * bytes.value;
  chunk.position += token_count;
  return chunk;
}

}  // namespace

AppendPlan::AppendPlan(absl::Span<const LayerTokens> parts,
                       absl::Span<const int64_t> token_counts,
                       const TokenBytes& bytes)
    : bytes_(bytes),
      chunk_tokens_(
          std::max<int64_t>(1, kChunkBytes / (bytes.key + bytes.value))) {
  std::vector<int64_t> counts(token_counts.begin(), token_counts.end());
  for (const LayerTokens& part : parts) {
    parts_.push_back({part, CountOf(counts, part.layer)});
    if (part.layer >= 0 && static_cast<size_t>(part.layer) < counts.size()) {
      counts[part.layer] += part.token_count;
    }
  }
}

absl::Status AppendPlan::Skip(absl::Span<const int64_t> token_counts) {
  // The last part of each layer says how many tokens it is to have.
  std::vector<int64_t> ends(token_counts.size(), -1);
  for (Chunk& part : parts_) {
    const int32_t layer = part.tokens.layer;
    const int64_t end = part.position + part.tokens.token_count;
    if (layer >= 0 && static_cast<size_t>(layer) < ends.size()) {
      ends[layer] = end;
    }
    const int64_t have = CountOf(token_counts, layer);
    if (have > part.position) {
      part = Advanced(part, std::min(have, end) - part.position, bytes_);
    }
  }
  for (size_t layer = 0; layer < ends.size(); ++layer) {
    if (ends[layer] >= 0 && token_counts[layer] > ends[layer]) {
      return absl::FailedPreconditionError(absl::StrCat(
          "layer ", layer, " has ", token_counts[layer],
          " tokens, more than the ", ends[layer], " that it was to have"));
    }
  }
  next_ = 0;
  return absl::OkStatus();
}

std::optional<AppendPlan::Chunk> AppendPlan::Next() {
  while (next_ < parts_.size() && parts_[next_].tokens.token_count == 0) {
    ++next_;
  }
  if (next_ == parts_.size()) return std::nullopt;
  Chunk& part = parts_[next_];
  Chunk chunk = part;
  // A count below 0 goes as it is, for the server to refuse.
  chunk.tokens.token_count = std::min(part.tokens.token_count, chunk_tokens_);
  part = Advanced(part, chunk.tokens.token_count, bytes_);
  return chunk;
}

int64_t AppendPlan::remaining_token_count() const {
  int64_t count = 0;
  for (const Chunk& part : parts_) count += part.tokens.token_count;
  return count;
}

}  // namespace attention
