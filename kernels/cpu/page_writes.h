// What a launch writes to pages before anything is attended.
#ifndef ATTENTION_KERNELS_CPU_PAGE_WRITES_H_
#define ATTENTION_KERNELS_CPU_PAGE_WRITES_H_

#include "kernels/cpu/thread_pool.h"
#include "kernels/paged_params.h"

namespace attention::cpu {

// Copies the pages of params.copies.
void CopyPages(const PagedParams& params, ThreadPool& pool);

// Writes the new keys and values of all sequences to their pages. Throws
// std::bad_alloc.
void AppendToPages(const PagedParams& params, ThreadPool& pool);

}  // namespace attention::cpu

#endif  // ATTENTION_KERNELS_CPU_PAGE_WRITES_H_
