// What the kernels of a paged launch read: one image of host memory that is
// copied to the device in one piece, with counters that are cleared and room
// for partial results behind it.
//
// A sequence's keys are cut into chunks at multiples of chunk_tokens; one
// thread block takes some query rows of one K/V head through one chunk. Rows
// are the (query, head) pairs that share a K/V head, numbered query *
// group_size + head_in_group. How sequences are cut is the business of splits.h.
#ifndef ATTENTION_KERNELS_CUDA_DECODE_TABLE_H_
#define ATTENTION_KERNELS_CUDA_DECODE_TABLE_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/decode/decode.h"
#include "kernels/cuda/decode/splits.h"
#include "kernels/host_device.h"
#include "kernels/mask.h"
#include "kernels/paged_params.h"

namespace attention::cuda::decode {

// New tokens of a sequence, on their way into its pages.
struct AppendEntry {
  const void* key;
  const void* value;
  TensorStrides key_strides;
  TensorStrides value_strides;
  void* const* pages;
  const float* key_scales;
  const float* value_scales;
  int64_t first_position;  // of the first token
  int64_t first_row;       // (token, head) pairs of all earlier entries
};

// Keeps rows of partial results aligned to 16 bytes.
ATTENTION_HOST_DEVICE constexpr int PartialColumns(int head_dim_v) {
  return (head_dim_v + 2 + 3) / 4 * 4;
}

// A sequence's queries.
struct AttendEntry {
  const void* query;
  void* output;
  float* log_sum_exp;
  TensorStrides query_strides;
  TensorStrides output_strides;
  int64_t log_sum_exp_token_stride;
  int64_t log_sum_exp_head_stride;
  void* const* pages;
  const float* key_scales;
  const float* value_scales;
  SinkMask mask;
  double scale;
  int64_t rows;  // query_length * group_size
  int64_t row_tiles;

  // Chunks of keys that some query sees: `sink_chunks` from first_sink_chunk
  // on, and the others from first_window_chunk on.
  int64_t chunk_tokens;
  int64_t first_sink_chunk;
  int64_t sink_chunks;
  int64_t first_window_chunk;
  int64_t splits;  // all of them, at least 1

  int64_t first_block;  // thread blocks of all earlier entries
  // Where unnormalised results go if splits > 1, [kv_head, split, row,
  // PartialColumns], in floats: accumulator, then maximum and sum.
  float* partials;
  int64_t first_merged_row;  // rows of all earlier entries with splits > 1
  // Splits that are done, [kv_head, row_tile]; 0 when the launch begins.
  unsigned* arrivals;

  ATTENTION_HOST_DEVICE int64_t Chunk(int64_t split) const {
    return split < sink_chunks ? first_sink_chunk + split
                               : first_window_chunk + split - sink_chunks;
  }
};

// Entries that one kernel takes.
struct AttendTable {
  const AttendEntry* entries = nullptr;  // [count], device
  int64_t count = 0;
  int64_t block_count = 0;
  // Device; 0 when the launch begins: for blocks that take turns.
  unsigned long long* next_block = nullptr;
  int32_t row_tile = 0;     // rows of a block
  int64_t merged_rows = 0;  // rows * kv_head_count of entries with splits > 1
};

// The first entries of a table, in the parameters of a kernel: its blocks can
// begin with them before the image is on the device. Behind the entries is a
// copy of the part of the image that they point to.
struct FirstEntries {
  static constexpr int kBytes = 7680;

  int64_t block_count = 0;     // of these entries
  const char* data = nullptr;  // that part of the image, device
  int32_t count = 0;
  alignas(16) char bytes[kBytes];

  ATTENTION_HOST_DEVICE const AttendEntry* entries() const {
    return reinterpret_cast<const AttendEntry*>(bytes);
  }
  // Where the copy has what `pointer` will point to.
  template <typename T>
  ATTENTION_HOST_DEVICE const T* Here(const T* pointer) const {
    return reinterpret_cast<const T*>(
        bytes + count * sizeof(AttendEntry) +
        (reinterpret_cast<const char*>(pointer) - data));
  }
};

struct LaunchTables {
  const AppendEntry* appends = nullptr;  // [append_count], device
  int64_t append_count = 0;
  int64_t append_rows = 0;
  const PageCopy* copies = nullptr;  // [copy_count], device
  int64_t copy_count = 0;
  AttendTable attend[kTableCount];
  FirstEntries first;  // of the first table
};

// Both parts of scratch. Reads counts and lengths of `params` only.
ScratchBytes TableBytes(const PagedParams& params);

// Writes the image to scratch.host, enqueues its copy and fills *tables.
cudaError_t UploadTables(const PagedParams& params, const Scratch& scratch,
                         cudaStream_t stream, LaunchTables* tables);

}  // namespace attention::cuda::decode

#endif  // ATTENTION_KERNELS_CUDA_DECODE_TABLE_H_
