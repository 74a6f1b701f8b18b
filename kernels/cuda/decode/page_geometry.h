// Where kernels find keys and values within pages.
#ifndef ATTENTION_KERNELS_CUDA_DECODE_PAGE_GEOMETRY_H_
#define ATTENTION_KERNELS_CUDA_DECODE_PAGE_GEOMETRY_H_

#include <bit>
#include <cstdint>

#include "kernels/host_device.h"
#include "kernels/paged_params.h"

namespace attention::cuda::decode {

// Bytes of pages, as kernels address them.
struct PageGeometry {
  int32_t page_tokens;
  int32_t page_shift;  // of the largest power of two that divides page_tokens
  int32_t key_row_bytes;
  int32_t value_row_bytes;
  int64_t values_offset;  // from the start of a page

  explicit PageGeometry(const PagedConfig& config)
      : page_tokens(config.page_tokens),
        page_shift(std::countr_zero(static_cast<uint32_t>(config.page_tokens))),
        key_row_bytes(static_cast<int32_t>(
            PageRowBytes(config, config.heads.head_dim_qk))),
        value_row_bytes(static_cast<int32_t>(
            PageRowBytes(config, config.heads.head_dim_v))),
        values_offset(PageKeyBytes(config)) {}

  ATTENTION_HOST_DEVICE uint32_t PageOf(uint32_t position) const {
    return page_tokens == 1 << page_shift
               ? position >> page_shift
               : position / static_cast<uint32_t>(page_tokens);
  }
  ATTENTION_HOST_DEVICE int64_t KeyOffset(int head, int slot) const {
    return (static_cast<int64_t>(head) * page_tokens + slot) * key_row_bytes;
  }
  ATTENTION_HOST_DEVICE int64_t ValueOffset(int head, int slot) const {
    return values_offset +
           (static_cast<int64_t>(head) * page_tokens + slot) * value_row_bytes;
  }
};

inline constexpr int kPieceBytes = 16;

// Where a piece of a row is stored in it: as shared memory needs it to be
// without bank conflicts (attend_tile.cuh), so that many rows can be copied
// there as they are. Applied twice it changes nothing.
ATTENTION_HOST_DEVICE constexpr int StoredPiece(int row_bytes, int64_t position,
                                                int piece) {
  if (row_bytes % (8 * kPieceBytes) == 0) {
    return piece ^ static_cast<int>(position % 8);
  }
  if (row_bytes == 4 * kPieceBytes) {
    return piece ^ static_cast<int>(position / 2 % 4);
  }
  return piece;
}

}  // namespace attention::cuda::decode

#endif  // ATTENTION_KERNELS_CUDA_DECODE_PAGE_GEOMETRY_H_
