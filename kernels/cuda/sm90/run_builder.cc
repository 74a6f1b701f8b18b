#include "kernels/cuda/sm90/run_builder.h"

#include <algorithm>

#include "kernels/mask.h"

namespace attention::cuda::sm90 {

int64_t RunBuilder::Build(int multiprocessors, TileRun* runs) {
  AddSections();
  MergeTail(multiprocessors);
  int64_t tiles = 0;
  for (size_t section = 0; section + 1 < begins_.size(); ++section) {
    std::stable_sort(
        blocks_.begin() + begins_[section],
        blocks_.begin() + begins_[section + 1],
        [](const Block& a, const Block& b) { return a.steps > b.steps; });
  }
  for (const Block& block : blocks_) {
    *runs++ = {.first_tile = static_cast<int32_t>(tiles),
               .sequence = block.sequence,
               .first_row = block.first_row,
               .first_head = block.first_head,
               .chunk = block.chunk};
    tiles += block.heads;
  }
  return tiles;
}

void RunBuilder::AddSections() {
  std::vector<int32_t> order(params_.sequence_count);
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  // Long ones first: they have the longest tiles.
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return params_.sequences[a].key_length > params_.sequences[b].key_length;
  });
  begins_.push_back(0);
  int64_t bytes = 0;
  for (int32_t index : order) {
    const Sequence& s = params_.sequences[index];
    bytes += shape_.KeyBytes(s) * shape_.config.kv_head_count;
    if (bytes > Shape::kSectionBytes) {
      EndSection();
      bytes = shape_.KeyBytes(s) * shape_.config.kv_head_count;
    }
    const int64_t heads = shape_.SectionHeads(s);
    for (int64_t head = 0; head < shape_.Heads(); head += heads) {
      if (head > 0) EndSection();
      const int64_t count = std::min(heads, shape_.Heads() - head);
      const auto chunks = static_cast<int32_t>(shape_.ChunkCount(s));
      if (chunks == 0) AddBlocks(index, head, count, -1);
      for (int32_t chunk = 0; chunk < chunks; ++chunk) {
        AddBlocks(index, head, count, chunk);
      }
    }
  }
  EndSection();
}

void RunBuilder::EndSection() {
  if (begins_.back() < blocks_.size()) begins_.push_back(blocks_.size());
}

void RunBuilder::AddBlocks(int32_t index, int64_t first_head, int64_t heads,
                           int32_t chunk) {
  const Sequence& s = params_.sequences[index];
  const MaskBand band = MakeMaskBand(shape_.config.mask, s);
  const int64_t rows = shape_.Rows(s);
  const int64_t n = shape_.kernel.block_n;
  for (int64_t first = 0; first < rows; first += shape_.kernel.block_m) {
    const int64_t last =
        std::min<int64_t>(first + shape_.kernel.block_m, rows) - 1;
    const KeyRange keys =
        band.VisibleKeys(first >> shape_.shift, last >> shape_.shift);
    int64_t steps =
        keys.begin < keys.end ? (keys.end + n - 1) / n - keys.begin / n : 0;
    if (chunk >= 0) steps = std::min(steps, shape_.ChunkSteps(s));
    blocks_.push_back({.steps = static_cast<int32_t>(steps),
                       .sequence = index,
                       .first_row = static_cast<int32_t>(first),
                       .first_head = static_cast<int32_t>(first_head),
                       .heads = static_cast<int32_t>(heads),
                       .chunk = chunk});
  }
}

// Makes one section of the last ones: enough work that blocks which begin their
// last long tile late find short ones to share among the others.
void RunBuilder::MergeTail(int multiprocessors) {
  constexpr int64_t kLongTiles = 2;  // per multiprocessor
  int64_t longest = 0;
  for (const Block& block : blocks_) {
    longest = std::max<int64_t>(longest, block.steps);
  }
  int64_t work = 0;
  size_t begin = blocks_.size();
  while (begin > 0 && work < kLongTiles * multiprocessors * longest) {
    --begin;
    work += int64_t{blocks_[begin].steps} * blocks_[begin].heads;
  }
  while (begins_.size() > 1 && begins_.back() > begin) begins_.pop_back();
  begins_.push_back(blocks_.size());
}

}  // namespace attention::cuda::sm90
