// How the keys of a launch's sequences are cut into chunks.
#ifndef ATTENTION_KERNELS_CUDA_DECODE_SPLITS_H_
#define ATTENTION_KERNELS_CUDA_DECODE_SPLITS_H_

#include <cstdint>
#include <vector>

#include "kernels/paged_params.h"

namespace attention::cuda::decode {

// Sequences with few rows, whose warps share keys, and those with many.
inline constexpr int kTableCount = 2;
inline constexpr int kFewRowsTile = 16;
inline constexpr int kManyRowsTile = 64;

// Whether the sequence has queries.
bool Attends(const HeadConfig& heads, const PagedSequence& sequence);
// The (query, query head) pairs that share a K/V head.
int64_t Rows(const HeadConfig& heads, const PagedSequence& sequence);
// The table of a sequence with so many, and how many tiles they are there.
int TableOf(int64_t rows);
int64_t RowTiles(int64_t rows);

// The chunks of one sequence, cut at multiples of `tokens`: those that some
// query sees.
struct Chunks {
  int64_t tokens;
  int64_t first_sink;
  int64_t sinks;
  int64_t first_window;
  int64_t splits;  // all of them, at least 1
};

// The sequences of a launch with queries, and how they are cut; see
// SplitPolicy.
class Splits {
 public:
  struct Entry {
    int64_t sequence;
    int64_t rows;
    int table;
    Chunks chunks;
  };

  explicit Splits(const PagedParams& params);

  // In the order in which they are computed.
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  void CutBalanced(const PagedParams& params);

  std::vector<Entry> entries_;
};

}  // namespace attention::cuda::decode

#endif  // ATTENTION_KERNELS_CUDA_DECODE_SPLITS_H_
