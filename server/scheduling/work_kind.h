// What works must have in common to share a batch.
#ifndef ATTENTION_SERVER_SCHEDULING_WORK_KIND_H_
#define ATTENTION_SERVER_SCHEDULING_WORK_KIND_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/attention_params.h"
#include "kernels/paged_params.h"
#include "server/engine/attention_work.h"
#include "server/engine/direct_memory.h"
#include "server/scheduling/cost_model.h"

namespace attention {

struct WorkKind {
  HeadConfig config;
  int required_device = kAnyDevice;
  // Of resident works; else as they are here.
  KvDataType kv_data_type = KvDataType::kSame;
  int32_t page_tokens = 0;
  SplitPolicy split_policy = SplitPolicy::kFixed;

  bool is_resident() const { return page_tokens > 0; }
  size_t cost_class() const { return CostClassOf(config, is_resident()); }
  bool MayRunOn(size_t device) const {
    return required_device == kAnyDevice ||
           static_cast<size_t>(required_device) == device;
  }
  bool operator==(const WorkKind&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const WorkKind& kind) {
    return H::combine(std::move(h), kind.config, kind.required_device,
                      kind.kv_data_type, kind.page_tokens, kind.split_policy);
  }
};

inline WorkKind KindOf(const AttentionWork& work) {
  return {work.config, work.required_device, work.kv_data_type,
          work.page_tokens, work.split_policy};
}

}  // namespace attention

#endif  // ATTENTION_SERVER_SCHEDULING_WORK_KIND_H_
