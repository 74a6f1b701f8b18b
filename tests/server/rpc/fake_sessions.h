// Sessions as the decoder of steps finds them, without a registry.
#ifndef ATTENTION_TESTS_SERVER_RPC_FAKE_SESSIONS_H_
#define ATTENTION_TESTS_SERVER_RPC_FAKE_SESSIONS_H_

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/engine/error_reason.h"
#include "server/sessions/session.h"

namespace attention::test {

class FakeSessions {
 public:
  // 4 query heads, 2 K/V heads, fp32, head dimensions 8 and 4: of one token the
  // query has 128 bytes, the key 64, the value 32 and the output 64.
  static SessionConfig Config() {
    SessionConfig config;
    config.paged = {.heads = {.data_type = DataType::kFloat32,
                              .head_dim_qk = 8,
                              .head_dim_v = 4,
                              .query_head_count = 4,
                              .kv_head_count = 2,
                              .mask = MaskKind::kCausalBottomRight}};
    config.layer_count = 2;
    return config;
  }

  void Add(absl::string_view name, int device = 0,
           const SessionConfig& config = Config(), int64_t length = 100) {
    SessionUse use;
    use.config = std::make_shared<const SessionConfig>(config);
    use.layer = std::make_shared<KvLayer>();
    use.layer_length = length;
    use.device = device;
    sessions_[std::string(name)] = std::move(use);
  }

  absl::StatusOr<SessionUse> Find(absl::string_view name, int64_t layer) const {
    const auto found = sessions_.find(std::string(name));
    if (found == sessions_.end()) {
      return WithReason(absl::NotFoundError(absl::StrCat("no ", name)),
                        error_reason::kSessionNotFound);
    }
    if (layer < 0 || layer >= found->second.config->layer_count) {
      return InvalidRequest(absl::StrCat("layer must be less; got ", layer));
    }
    return found->second;
  }

 private:
  std::map<std::string, SessionUse> sessions_;
};

}  // namespace attention::test

#endif  // ATTENTION_TESTS_SERVER_RPC_FAKE_SESSIONS_H_
