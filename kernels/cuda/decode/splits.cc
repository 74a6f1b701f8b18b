#include "kernels/cuda/decode/splits.h"

#include <algorithm>
#include <limits>

#include "kernels/mask.h"

namespace attention::cuda::decode {
namespace {

// What a block reads at least, for the cost of its start not to show, at most,
// to share out the keys of one sequence, and into how many chunks it should cut
// them between the two. More rows mean larger partial results.
constexpr int64_t kMinChunkBytes = 256 << 10;
constexpr int64_t kMaxChunkBytes = 512 << 10;
constexpr int64_t kChunks = 16;
constexpr int64_t kMaxSplits = 128;
constexpr int64_t kTileTokens = 64;
// Blocks that balanced chunks are for: two on each multiprocessor of an H200.
constexpr int64_t kBlocks = 264;

int64_t AlignUp(int64_t value, int64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

int64_t TokenBytes(const PagedConfig& config) {
  return PageRowBytes(config, config.heads.head_dim_qk) +
         PageRowBytes(config, config.heads.head_dim_v);
}

int64_t MinChunkFactor(int64_t rows) {
  return rows <= 4 ? 1 : 2 * RowTiles(rows);
}

int64_t FixedChunkTokens(const PagedConfig& config, const PagedSequence& s,
                         int64_t rows) {
  const int64_t token_bytes = TokenBytes(config);
  const int64_t bytes =
      MinChunkFactor(rows) * std::clamp(s.key_length * token_bytes / kChunks,
                                        kMinChunkBytes, kMaxChunkBytes);
  return std::max(AlignUp(bytes / token_bytes, kTileTokens),
                  AlignUp(s.key_length / kMaxSplits, kTileTokens));
}

// The keys that some query sees.
struct VisibleKeys {
  KeyRange sinks;
  KeyRange window;

  VisibleKeys(const HeadConfig& heads, const PagedSequence& s) {
    const SinkMask mask = MakeSinkMask(heads.mask, s);
    sinks = mask.sinks.VisibleKeys(0, s.query_length - 1);
    window = mask.window.VisibleKeys(0, s.query_length - 1);
  }
  int64_t count() const {
    return std::max<int64_t>(sinks.end - sinks.begin, 0) +
           std::max<int64_t>(window.end - window.begin, 0);
  }
};

Chunks Cut(const VisibleKeys& visible, int64_t tokens) {
  const auto chunks = [tokens](KeyRange keys) -> KeyRange {
    if (keys.begin >= keys.end) return {0, 0};
    return {keys.begin / tokens, (keys.end + tokens - 1) / tokens};
  };
  const KeyRange sinks = chunks(visible.sinks);
  KeyRange window = chunks(visible.window);
  window.begin = std::max(window.begin, sinks.end);
  window.end = std::max(window.begin, window.end);
  const int64_t count = sinks.end - sinks.begin + window.end - window.begin;
  return {tokens, sinks.begin, sinks.end - sinks.begin, window.begin,
          std::max<int64_t>(count, 1)};
}

// What a sequence is to CutBalanced.
struct Work {
  int table;
  double bytes;  // that a tile of rows reads of its K/V head
  double min_chunk_bytes;
  int64_t count;  // of tiles of rows, of all heads

  int64_t Pieces(double chunk_bytes) const {
    const double chunk = std::max(chunk_bytes, min_chunk_bytes);
    return bytes <= chunk ? 1
                          : std::min(static_cast<int64_t>(bytes / chunk + 0.5),
                                     kMaxSplits);
  }
};

// Chunks of one length, as BestChunkBytes judges them.
struct Cost {
  // Blocks read at the same rate, always one chunk more; once there are too few
  // chunks, those left read kLoneRate times as fast; and each chunk costs as
  // much as reading kOverheadBytes. Measured on an H200.
  static constexpr double kLoneRate = 2.7;
  static constexpr double kOverheadBytes = 40 << 10;

  int64_t count = 0;
  double longest = 0;

  void Add(const Work& w, int64_t pieces) {
    count += w.count * pieces;
    longest = std::max(longest, w.bytes / static_cast<double>(pieces));
  }
  // Bytes that a block reads in the time that all take, if that is `share` when
  // they share the work evenly.
  double Bytes(double share) const {
    const double mean = share * kBlocks / static_cast<double>(count);
    const int64_t last = count % kBlocks;
    double bytes = mean * static_cast<double>(count / kBlocks);
    if (last > 0) {
      bytes +=
          mean * std::max(static_cast<double>(last) / kBlocks, 1 / kLoneRate);
    }
    return std::max(bytes, share + std::max(longest - share, 0.0) / kLoneRate) +
           kOverheadBytes * static_cast<double>(count) / kBlocks;
  }
};

// The length of chunks, in bytes of a K/V head, for which a table's blocks take
// the least time.
double BestChunkBytes(const std::vector<Work>& works, int table) {
  double total = 0;
  double longest = 0;
  for (const Work& w : works) {
    if (w.table != table) continue;
    total += w.bytes * static_cast<double>(w.count);
    longest = std::max(longest, w.bytes);
  }
  const double share = total / kBlocks;
  double least = std::numeric_limits<double>::infinity();
  double best = longest;
  bool is_whole = false;  // chunks so long have been judged
  for (const int rounds : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64}) {
    const double chunk = share / rounds;
    if (chunk < kMinChunkBytes && rounds > 1) break;
    if (longest <= std::max<double>(chunk, kMinChunkBytes)) {
      if (is_whole) continue;
      is_whole = true;
    }
    Cost cost;
    for (const Work& w : works) {
      if (w.table == table) cost.Add(w, w.Pieces(chunk));
    }
    if (cost.count == 0) break;
    if (const double bytes = cost.Bytes(share); bytes < least) {
      least = bytes;
      best = chunk;
    }
  }
  return best;
}

}  // namespace

bool Attends(const HeadConfig& heads, const PagedSequence& s) {
  return s.query_length > 0 && heads.query_head_count > 0;
}

int64_t Rows(const HeadConfig& heads, const PagedSequence& s) {
  return s.query_length * (heads.query_head_count / heads.kv_head_count);
}

int TableOf(int64_t rows) { return rows <= kFewRowsTile ? 0 : 1; }

int64_t RowTiles(int64_t rows) {
  const int64_t tile = TableOf(rows) == 0 ? kFewRowsTile : kManyRowsTile;
  return (rows + tile - 1) / tile;
}

Splits::Splits(const PagedParams& params) {
  const PagedConfig& config = params.config;
  const HeadConfig& heads = config.heads;
  entries_.reserve(params.sequence_count);
  for (int64_t i = 0; i < params.sequence_count; ++i) {
    const PagedSequence& s = params.sequences[i];
    if (!Attends(heads, s)) continue;
    const int64_t rows = Rows(heads, s);
    entries_.push_back({.sequence = i, .rows = rows, .table = TableOf(rows)});
  }
  if (config.split_policy == SplitPolicy::kBalanced) {
    CutBalanced(params);
    return;
  }
  for (Entry& entry : entries_) {
    const PagedSequence& s = params.sequences[entry.sequence];
    entry.chunks =
        Cut(VisibleKeys(heads, s), FixedChunkTokens(config, s, entry.rows));
  }
}

void Splits::CutBalanced(const PagedParams& params) {
  const HeadConfig& heads = params.config.heads;
  const auto token_bytes = static_cast<double>(TokenBytes(params.config));
  std::vector<VisibleKeys> visible;
  std::vector<Work> works;
  visible.reserve(entries_.size());
  works.reserve(entries_.size());
  for (const Entry& entry : entries_) {
    visible.emplace_back(heads, params.sequences[entry.sequence]);
    works.push_back(
        {.table = entry.table,
         .bytes = static_cast<double>(visible.back().count()) * token_bytes,
         .min_chunk_bytes =
             static_cast<double>(kMinChunkBytes * MinChunkFactor(entry.rows)),
         .count = heads.kv_head_count * RowTiles(entry.rows)});
  }
  double chunk_bytes[kTableCount];
  for (int table = 0; table < kTableCount; ++table) {
    chunk_bytes[table] = BestChunkBytes(works, table);
  }
  for (size_t i = 0; i < entries_.size(); ++i) {
    const int64_t pieces = works[i].Pieces(chunk_bytes[works[i].table]);
    const int64_t keys = pieces == 1
                             ? params.sequences[entries_[i].sequence].key_length
                             : (visible[i].count() + pieces - 1) / pieces;
    entries_[i].chunks =
        Cut(visible[i], AlignUp(std::max<int64_t>(keys, 1), kTileTokens));
  }
  // Long chunks first, so that blocks end at the same time.
  const auto is_longer = [](const Entry& a, const Entry& b) {
    return a.chunks.tokens > b.chunks.tokens;
  };
  if (!std::is_sorted(entries_.begin(), entries_.end(), is_longer)) {
    std::stable_sort(entries_.begin(), entries_.end(), is_longer);
  }
}

}  // namespace attention::cuda::decode
