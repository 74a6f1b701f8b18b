#include "kernels/cuda/decode/table.h"

#include <algorithm>
#include <cstring>

#include "kernels/cuda/decode/kernels.h"
#include "kernels/cuda/upload.h"

namespace attention::cuda::decode {
namespace {

constexpr int64_t kAlignment = 256;
constexpr int64_t kEntryBytes = sizeof(AttendEntry);

int64_t AlignUp(int64_t value, int64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
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
  const Splits splits(params);
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
  }
  for (const Splits::Entry& entry : splits.entries()) {
    if (entry.chunks.splits == 1) continue;
    sizes.counters += ArrivalBytes(heads, entry.rows);
    sizes.partials += entry.chunks.splits * entry.rows * heads.kv_head_count *
                      PartialColumns(heads.head_dim_v) *
                      static_cast<int64_t>(sizeof(float));
  }
  return sizes;
}

AttendEntry MakeAttendEntry(const PagedConfig& config, const PagedSequence& s,
                            const Splits::Entry& split) {
  const int64_t rows = split.rows;
  const Chunks& chunks = split.chunks;
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
  // back. What they point to lies behind, in the order in which it is read.
  int64_t next[kTableCount] = {0, params.sequence_count};
  int64_t counter_bytes = kNextBlockBytes;
  FirstPart first = {.data_begin = image.size()};
  // What the kernels know of a sequence besides, once its rows are appended.
  struct Data {
    void* const* pages;
    const float* scales[2];  // of keys and of values
  };
  const auto place = [&](const PagedSequence& s) {
    const int64_t page_count = PagesFor(params.config, s.key_length);
    const auto pages = image.Take<void*>(page_count);
    std::copy_n(s.pages, page_count, pages.host);
    Data data = {pages.device, {nullptr, nullptr}};
    if (params.config.kv_data_type != KvDataType::kSame) {
      const float* from[2] = {s.key_scales, s.value_scales};
      for (int k = 0; k < 2; ++k) {
        const auto part = image.Take<float>(heads.kv_head_count);
        std::copy_n(from[k], heads.kv_head_count, part.host);
        data.scales[k] = part.device;
      }
    }
    if (s.append_length > 0) {
      appends.host[tables->append_count++] = {
          .key = s.new_key,
          .value = s.new_value,
          .key_strides = s.new_key_strides,
          .value_strides = s.new_value_strides,
          .pages = data.pages,
          .key_scales = data.scales[0],
          .value_scales = data.scales[1],
          .first_position = s.key_length - s.append_length,
          .first_row = tables->append_rows};
      tables->append_rows += s.append_length * heads.kv_head_count;
    }
    return data;
  };
  const Splits splits(params);
  for (const Splits::Entry& split : splits.entries()) {
    const PagedSequence& s = params.sequences[split.sequence];
    const Data data = place(s);
    AttendEntry entry = MakeAttendEntry(params.config, s, split);
    entry.pages = data.pages;
    entry.key_scales = data.scales[0];
    entry.value_scales = data.scales[1];
    if (entry.splits > 1) counter_bytes += ArrivalBytes(heads, entry.rows);
    if (split.table == 1) {
      attends.host[--next[1]] = entry;
    } else {
      attends.host[next[0]++] = entry;
      first.Extend(next[0], image.size());
    }
  }
  for (int64_t i = 0; i < params.sequence_count; ++i) {
    const PagedSequence& s = params.sequences[i];
    if (!Attends(heads, s) && s.append_length > 0) place(s);
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
