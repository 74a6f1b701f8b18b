// What comes before the attention: copies of pages, rows of new tokens.
#include "kernels/cuda/decode/block_problem.cuh"
#include "kernels/cuda/decode/kernels.h"
#include "kernels/cuda/find_entry.h"
#include "kernels/cuda/float8.cuh"
#include "kernels/cuda/overlapping_launch.h"

namespace attention::cuda::decode {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxGrid = (int64_t{1} << 31) - 1;

// Kernels that may come when this one ends read pages without waiting for the
// memory of those before them.
__device__ void PublishPages() { __threadfence(); }

__global__ void __launch_bounds__(kThreads)
    CopyPagesKernel(const PageCopy* copies, int64_t count, int64_t vectors) {
  for (int64_t c = blockIdx.y; c < count; c += gridDim.y) {
    const auto* from = static_cast<const uint4*>(copies[c].from);
    auto* to = static_cast<uint4*>(copies[c].to);
    for (int64_t i = blockIdx.x * kThreads + threadIdx.x; i < vectors;
         i += int64_t{gridDim.x} * kThreads) {
      to[i] = from[i];
    }
  }
  PublishPages();
}

// One row, by one warp, with zeros in the padding.
template <typename T, bool kFloat8>
__device__ void WriteRow(const void* source, int64_t offset, int64_t dim_stride,
                         int dims, float scale, int64_t position, uint8_t* row,
                         int row_bytes) {
  using Bits = typename portable::Element<T>::Bits;
  const Bits* from = static_cast<const Bits*>(source) + offset;
  const int lane = threadIdx.x % 32;
  if constexpr (!kFloat8) {
    if (dim_stride == 1 && dims * sizeof(T) % kPieceBytes == 0 &&
        reinterpret_cast<uintptr_t>(from) % kPieceBytes == 0) {
      for (int i = lane; i < row_bytes / kPieceBytes; i += 32) {
        reinterpret_cast<uint4*>(row)[StoredPiece(row_bytes, position, i)] =
            reinterpret_cast<const uint4*>(from)[i];
      }
      return;
    }
  }
  constexpr int kBytes = kFloat8 ? 1 : sizeof(T);
  for (int i = lane; i < row_bytes / kBytes; i += 32) {
    const Bits bits = i < dims ? from[i * dim_stride] : Bits{0};
    const int byte = i * kBytes;
    uint8_t* const to =
        row +
        StoredPiece(row_bytes, position, byte / kPieceBytes) * kPieceBytes +
        byte % kPieceBytes;
    if constexpr (kFloat8) {
      *to = FloatToFloat8(portable::Element<T>::ToFloat(bits) / scale);
    } else {
      *reinterpret_cast<Bits*>(to) = bits;
    }
  }
}

template <typename T, bool kFloat8>
__global__ void __launch_bounds__(kThreads, 2)
    AppendKernel(const AppendEntry* entries, int64_t count, int64_t rows,
                 int kv_heads, int head_dim_qk, int head_dim_v,
                 PageGeometry geometry) {
  constexpr int kWarps = kThreads / 32;
  WaitForPreviousKernel();
  for (int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
       row < rows; row += int64_t{gridDim.x} * kWarps) {
    const AppendEntry& e =
        FindEntry(entries, count, row, &AppendEntry::first_row);
    const int64_t token = (row - e.first_row) / kv_heads;
    const int head = static_cast<int>((row - e.first_row) % kv_heads);
    const int64_t position = e.first_position + token;
    auto* page =
        static_cast<uint8_t*>(e.pages[position / geometry.page_tokens]);
    const int slot = static_cast<int>(position % geometry.page_tokens);
    WriteRow<T, kFloat8>(
        e.key, token * e.key_strides.token + head * e.key_strides.head,
        e.key_strides.dim, head_dim_qk, kFloat8 ? e.key_scales[head] : 1.0f,
        position, page + geometry.KeyOffset(head, slot),
        geometry.key_row_bytes);
    WriteRow<T, kFloat8>(
        e.value, token * e.value_strides.token + head * e.value_strides.head,
        e.value_strides.dim, head_dim_v, kFloat8 ? e.value_scales[head] : 1.0f,
        position, page + geometry.ValueOffset(head, slot),
        geometry.value_row_bytes);
  }
  PublishPages();
}

template <typename T, bool kFloat8>
cudaError_t LaunchAppend(const PagedConfig& config, const LaunchTables& tables,
                         cudaStream_t stream) {
  constexpr int64_t kMaxBlocks = 4096;
  constexpr int kWarps = kThreads / 32;
  const int64_t blocks = (tables.append_rows + kWarps - 1) / kWarps;
  const AppendEntry* entries = tables.appends;
  int64_t count = tables.append_count;
  int64_t rows = tables.append_rows;
  HeadConfig heads = config.heads;
  PageGeometry geometry(config);
  void* arguments[] = {&entries,
                       &count,
                       &rows,
                       &heads.kv_head_count,
                       &heads.head_dim_qk,
                       &heads.head_dim_v,
                       &geometry};
  return LaunchOverlapping(
      reinterpret_cast<const void*>(AppendKernel<T, kFloat8>),
      blocks < kMaxBlocks ? blocks : kMaxBlocks, kThreads, 0, stream,
      arguments);
}

}  // namespace

cudaError_t CopyPages(const PagedConfig& config, const LaunchTables& tables,
                      cudaStream_t stream) {
  if (tables.copy_count == 0) return cudaSuccess;
  constexpr int64_t kMaxRows = 65535;
  const int64_t vectors = PageBytes(config) / kPieceBytes;
  const int64_t blocks = (vectors + 4 * kThreads - 1) / (4 * kThreads);
  const dim3 grid(
      static_cast<unsigned>(blocks < kMaxGrid ? blocks : kMaxGrid),
      static_cast<unsigned>(tables.copy_count < kMaxRows ? tables.copy_count
                                                         : kMaxRows));
  if (vectors == 0) return cudaSuccess;
  CopyPagesKernel<<<grid, kThreads, 0, stream>>>(tables.copies,
                                                 tables.copy_count, vectors);
  return cudaGetLastError();
}

cudaError_t AppendRows(const PagedConfig& config, const LaunchTables& tables,
                       cudaStream_t stream) {
  if (tables.append_rows == 0) return cudaSuccess;
  const bool float8 = config.kv_data_type == KvDataType::kFloat8E4M3;
  switch (config.heads.data_type) {
    case DataType::kFloat32:
      return float8 ? LaunchAppend<float, true>(config, tables, stream)
                    : LaunchAppend<float, false>(config, tables, stream);
    case DataType::kFloat16:
      return float8 ? LaunchAppend<__half, true>(config, tables, stream)
                    : LaunchAppend<__half, false>(config, tables, stream);
    case DataType::kFloat8E4M3:  // never of a paged config
    case DataType::kBFloat16:
      break;
  }
  return float8 ? LaunchAppend<__nv_bfloat16, true>(config, tables, stream)
                : LaunchAppend<__nv_bfloat16, false>(config, tables, stream);
}

}  // namespace attention::cuda::decode
