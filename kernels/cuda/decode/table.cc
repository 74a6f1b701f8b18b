#include "kernels/cuda/decode/table.h"

#include <algorithm>
#include <cstring>

#include "kernels/cuda/decode/kernels.h"
#include "kernels/cuda/upload.h"

namespace attention::cuda::decode {
namespace {

constexpr int64_t kAlignment = 256;
// What a block reads at least, for the cost of its start not to show, at most,
// to share out the keys of one sequence, and into how many chunks it should cut
// them between the two. More rows mean larger partial results.
constexpr int64_t kMinChunkBytes = 256 << 10;
constexpr int64_t kMaxChunkBytes = 512 << 10;
constexpr int64_t kChunks = 16;
constexpr int64_t kMaxSplits = 128;
constexpr int64_t kTileTokens = 64;
constexpr int64_t kEntryBytes = sizeof(AttendEntry);

int64_t AlignUp(int64_t value, int64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

int64_t Rows(const HeadConfig& heads, const PagedSequence& s) {
  return s.query_length * (heads.query_head_count / heads.kv_head_count);
}

int TableOf(int64_t rows) { return rows <= kFewRowsTile ? 0 : 1; }

int64_t RowTiles(int64_t rows) {
  const int64_t tile = TableOf(rows) == 0 ? kFewRowsTile : kManyRowsTile;
  return (rows + tile - 1) / tile;
}

// How the keys of a sequence are cut.
struct Chunks {
  int64_t tokens;
  int64_t first_sink;
  int64_t sinks;
  int64_t first_window;
  int64_t splits;
};

int64_t ChunkTokens(const PagedConfig& config, const PagedSequence& s,
                    int64_t rows) {
  const int64_t token_bytes = PageRowBytes(config, config.heads.head_dim_qk) +
                              PageRowBytes(config, config.heads.head_dim_v);
  const int64_t scale = rows <= 4 ? 1 : 2 * RowTiles(rows);
  const int64_t bytes = scale * std::clamp(s.key_length * token_bytes / kChunks,
                                           kMinChunkBytes, kMaxChunkBytes);
  return std::max(AlignUp(bytes / token_bytes, kTileTokens),
                  AlignUp(s.key_length / kMaxSplits, kTileTokens));
}

Chunks Cut(const PagedConfig& config, const PagedSequence& s) {
  const SinkMask mask = MakeSinkMask(config.heads.mask, s);
  const int64_t tokens = ChunkTokens(config, s, Rows(config.heads, s));
  const auto chunks = [tokens](KeyRange keys) -> KeyRange {
    if (keys.begin >= keys.end) return {0, 0};
    return {keys.begin / tokens, (keys.end + tokens - 1) / tokens};
  };
  const int64_t last = s.query_length - 1;
  const KeyRange sinks = chunks(mask.sinks.VisibleKeys(0, last));
  KeyRange window = chunks(mask.window.VisibleKeys(0, last));
  window.begin = std::max(window.begin, sinks.end);
  window.end = std::max(window.begin, window.end);
  const int64_t count = sinks.end - sinks.begin + window.end - window.begin;
  return {tokens, sinks.begin, sinks.end - sinks.begin, window.begin,
          std::max<int64_t>(count, 1)};
}

// The host image, and where its parts will be on the device.
class Image {
 public:
  explicit Image(const Scratch& scratch)
      : host_(static_cast<char*>(scratch.host)),
        device_(static_cast<char*>(scratch.device)) {}

  template <typename T>
  struct Part {
    T* host;
    const T* device;
  };
  template <typename T>
  Part<T> Take(int64_t count) {
    const int64_t begin = size_;
    size_ += AlignUp(count * static_cast<int64_t>(sizeof(T)), 16);
    return {reinterpret_cast<T*>(host_ + begin),
            reinterpret_cast<const T*>(device_ + begin)};
  }
  int64_t size() const { return size_; }
  char* device_end() const { return device_ + AlignUp(size_, kAlignment); }

 private:
  char* host_;
  char* device_;
  int64_t size_ = 0;
};

struct Sizes {  // bytes
  int64_t image = 0;
  int64_t counters = 0;
  int64_t partials = 0;
};

// Of the counters of one sequence that is split.
int64_t ArrivalBytes(const HeadConfig& heads, int64_t rows) {
  return heads.kv_head_count * RowTiles(rows) *
         static_cast<int64_t>(sizeof(unsigned));
}
constexpr int64_t kNextBlockBytes = kTableCount * sizeof(unsigned long long);

Sizes SizesOf(const PagedParams& params) {
  const HeadConfig& heads = params.config.heads;
  Sizes sizes;
  sizes.image = AlignUp(params.sequence_count * sizeof(AppendEntry), 16) +
                AlignUp(params.sequence_count * sizeof(AttendEntry), 16) +
                AlignUp(params.copy_count * sizeof(PageCopy), 16);
  sizes.counters = kNextBlockBytes;
  for (int64_t i = 0; i < params.sequence_count; ++i) {
    const PagedSequence& s = params.sequences[i];
    sizes.image +=
        AlignUp(PagesFor(params.config, s.key_length) * sizeof(void*), 16) +
        2 * AlignUp(heads.kv_head_count * sizeof(float), 16);
    if (s.query_length == 0 || heads.query_head_count == 0) continue;
    const int64_t splits = Cut(params.config, s).splits;
    if (splits > 1) {
      const int64_t rows = Rows(heads, s);
      sizes.counters += ArrivalBytes(heads, rows);
      sizes.partials += splits * rows * heads.kv_head_count *
                        PartialColumns(heads.head_dim_v) *
                        static_cast<int64_t>(sizeof(float));
    }
  }
  return sizes;
}

AttendEntry MakeAttendEntry(const PagedConfig& config, const PagedSequence& s) {
  const Chunks chunks = Cut(config, s);
  const int64_t rows = Rows(config.heads, s);
  return {.query = s.query,
          .output = s.output,
          .log_sum_exp = s.log_sum_exp,
          .query_strides = s.query_strides,
          .output_strides = s.output_strides,
          .log_sum_exp_token_stride = s.log_sum_exp_token_stride,
          .log_sum_exp_head_stride = s.log_sum_exp_head_stride,
          .pages = nullptr,
          .key_scales = nullptr,
          .value_scales = nullptr,
          .mask = MakeSinkMask(config.heads.mask, s),
          .scale = s.scale,
          .rows = rows,
          .row_tiles = RowTiles(rows),
          .chunk_tokens = chunks.tokens,
          .first_sink_chunk = chunks.first_sink,
          .sink_chunks = chunks.sinks,
          .first_window_chunk = chunks.first_window,
          .splits = chunks.splits,
          .first_block = 0,
          .partials = nullptr,
          .first_merged_row = 0,
          .arrivals = nullptr};
}

// Counters and partial results, behind the image.
class Results {
 public:
  Results(const HeadConfig& heads, char* begin, int64_t counter_bytes)
      : kv_heads_(heads.kv_head_count),
        partial_columns_(PartialColumns(heads.head_dim_v)),
        next_block_(reinterpret_cast<unsigned long long*>(begin)),
        arrivals_(reinterpret_cast<unsigned*>(begin + kNextBlockBytes)),
        partials_(reinterpret_cast<float*>(
            begin + AlignUp(counter_bytes, kAlignment))) {}

  // Completes a table and its entries, here in host memory.
  void Place(AttendEntry* entries, AttendTable* table) {
    table->next_block = next_block_++;
    for (int64_t i = 0; i < table->count; ++i) {
      AttendEntry& entry = entries[i];
      table->row_tile = TableOf(entry.rows) == 0 ? kFewRowsTile : kManyRowsTile;
      entry.first_block = table->block_count;
      entry.first_merged_row = table->merged_rows;
      table->block_count += kv_heads_ * entry.row_tiles * entry.splits;
      if (entry.splits == 1) continue;
      entry.arrivals = arrivals_;
      arrivals_ += kv_heads_ * entry.row_tiles;
      entry.partials = partials_;
      partials_ += kv_heads_ * entry.splits * entry.rows * partial_columns_;
      table->merged_rows += entry.rows * kv_heads_;
    }
  }

 private:
  const int64_t kv_heads_;
  const int64_t partial_columns_;
  unsigned long long* next_block_;
  unsigned* arrivals_;
  float* partials_;
};

// How much of a table and of the image, from data_begin on, FirstEntries has.
struct FirstPart {
  int64_t data_begin;
  int64_t count = 0;
  int64_t data_bytes = 0;

  // To `entries` entries that point to what lies before `data_end`, if there is
  // room.
  void Extend(int64_t entries, int64_t data_end) {
    const int64_t bytes = data_end - data_begin;
    if (entries * kEntryBytes + bytes > FirstEntries::kBytes) return;
    count = entries;
    data_bytes = bytes;
  }
  void Copy(const AttendEntry* entries, const Scratch& scratch,
            int64_t kv_heads, FirstEntries* to) const {
    to->data = static_cast<const char*>(scratch.device) + data_begin;
    to->count = static_cast<int32_t>(count);
    std::memcpy(to->bytes, entries, count * kEntryBytes);
    std::memcpy(to->bytes + count * kEntryBytes,
                static_cast<const char*>(scratch.host) + data_begin,
                data_bytes);
    if (count == 0) return;
    const AttendEntry& last = entries[count - 1];
    to->block_count =
        last.first_block + kv_heads * last.row_tiles * last.splits;
  }
};

}  // namespace

ScratchBytes TableBytes(const PagedParams& params) {
  const Sizes sizes = SizesOf(params);
  return {
      .host_bytes = static_cast<size_t>(AlignUp(sizes.image, kAlignment)),
      .device_bytes = static_cast<size_t>(AlignUp(sizes.image, kAlignment) +
                                          AlignUp(sizes.counters, kAlignment) +
                                          AlignUp(sizes.partials, kAlignment))};
}

cudaError_t UploadTables(const PagedParams& params, const Scratch& scratch,
                         cudaStream_t stream, LaunchTables* tables) {
  const HeadConfig& heads = params.config.heads;
  Image image(scratch);
  const auto appends = image.Take<AppendEntry>(params.sequence_count);
  const auto attends = image.Take<AttendEntry>(params.sequence_count);
  const auto copies = image.Take<PageCopy>(params.copy_count);
  std::copy_n(params.copies, params.copy_count, copies.host);
  *tables = {};
  tables->appends = appends.device;
  tables->copies = copies.device;
  tables->copy_count = params.copy_count;

  // Entries of a table are neighbours: few rows from the front, many from the
  // back. What they point to lies behind, in the order of the sequences.
  int64_t next[kTableCount] = {0, params.sequence_count};
  int64_t counter_bytes = kNextBlockBytes;
  FirstPart first = {.data_begin = image.size()};
  for (int64_t i = 0; i < params.sequence_count; ++i) {
    const PagedSequence& s = params.sequences[i];
    const bool attends_keys = s.query_length > 0 && heads.query_head_count > 0;
    if (!attends_keys && s.append_length == 0) continue;
    const int64_t page_count = PagesFor(params.config, s.key_length);
    const auto pages = image.Take<void*>(page_count);
    std::copy_n(s.pages, page_count, pages.host);
    const float* scales[2] = {nullptr, nullptr};
    if (params.config.kv_data_type != KvDataType::kSame) {
      const float* from[2] = {s.key_scales, s.value_scales};
      for (int k = 0; k < 2; ++k) {
        const auto part = image.Take<float>(heads.kv_head_count);
        std::copy_n(from[k], heads.kv_head_count, part.host);
        scales[k] = part.device;
      }
    }
    if (s.append_length > 0) {
      appends.host[tables->append_count++] = {
          .key = s.new_key,
          .value = s.new_value,
          .key_strides = s.new_key_strides,
          .value_strides = s.new_value_strides,
          .pages = pages.device,
          .key_scales = scales[0],
          .value_scales = scales[1],
          .first_position = s.key_length - s.append_length,
          .first_row = tables->append_rows};
      tables->append_rows += s.append_length * heads.kv_head_count;
    }
    if (!attends_keys) continue;
    AttendEntry entry = MakeAttendEntry(params.config, s);
    entry.pages = pages.device;
    entry.key_scales = scales[0];
    entry.value_scales = scales[1];
    if (entry.splits > 1) counter_bytes += ArrivalBytes(heads, entry.rows);
    if (TableOf(entry.rows) == 1) {
      attends.host[--next[1]] = entry;
    } else {
      attends.host[next[0]++] = entry;
      first.Extend(next[0], image.size());
    }
  }
  AttendTable& few = tables->attend[0];
  AttendTable& many = tables->attend[1];
  few.entries = attends.device;
  few.count = next[0];
  few.row_tile = kFewRowsTile;
  many.entries = attends.device + next[1];
  many.count = params.sequence_count - next[1];
  many.row_tile = kManyRowsTile;

  Results results(heads, image.device_end(), counter_bytes);
  results.Place(attends.host, &few);
  results.Place(attends.host + next[1], &many);
  first.Copy(attends.host, scratch, heads.kv_head_count, &tables->first);
  return Upload(scratch.host, scratch.device, image.size(),
                {.data = image.device_end(),
                 .bytes = AlignUp(counter_bytes, kPieceBytes)},
                stream);
}

}  // namespace attention::cuda::decode
