#include "kernels/cpu/block_loop.h"

#include <algorithm>

#include "kernels/cpu/scratch.h"

namespace attention::cpu {
namespace {

// Threads that loops over the dealer's lists, of which `first` is the first,
// may use.
int64_t ThreadsInUse(const ThreadPool& pool, const BlockDealer& dealer,
                     const BlockList& first) {
  const int64_t threads = pool.thread_count();
  return dealer.done()
             ? std::min(threads, static_cast<int64_t>(first.blocks.size()))
             : threads;
}

}  // namespace

void RunBlockLoop(const AttentionParams& params, const BlockLoop& loop,
                  ThreadPool& pool) {
  BlockDealer dealer(params, loop.mask_of, loop.rows_per_block,
                     /*split_keys=*/loop.merge_row != nullptr);
  // Keeps its memory, bounded by kMaxListBlocks, for this thread's next batch.
  thread_local BlockList list;
  if (!dealer.Deal(list)) return;
  // The loop's bodies run on other threads, which have lists of their own.
  const BlockList& blocks = list;
  const auto scratch =
      AllocateFloats(ThreadsInUse(pool, dealer, blocks) * loop.scratch_floats);
  do {
    const auto partials = blocks.partial_floats > 0
                              ? AllocateFloats(blocks.partial_floats)
                              : nullptr;
    pool.ParallelFor(blocks.blocks.size(), [&](int64_t i, int thread) {
      loop.compute(blocks.blocks[blocks.order[i]],
                   scratch.get() + thread * loop.scratch_floats,
                   partials.get());
    });
    pool.ParallelFor(blocks.splits.size(), [&](int64_t i, int) {
      const Block* begin = blocks.blocks.data() + blocks.splits[i].begin;
      const Block* end = blocks.blocks.data() + blocks.splits[i].end;
      for (int64_t r = 0; r < begin->row_end - begin->row_begin; ++r) {
        loop.merge_row(params.config, begin, end, r, partials.get());
      }
    });
  } while (dealer.Deal(list));
}

}  // namespace attention::cpu
