// Through which calls come in until the server goes away.
#ifndef ATTENTION_SERVER_RPC_CALL_GATE_H_
#define ATTENTION_SERVER_RPC_CALL_GATE_H_

#include <atomic>
#include <cstdint>
#include <memory>

namespace attention {

// Thread-safe.
class CallGate {
 public:
  // Of one call, until its answer is with the operating system. May outlive the
  // gate.
  using Pass = std::shared_ptr<void>;

  // Null once the gate is closed.
  Pass Enter() const {
    Pass pass = passes_;
    return is_closed() ? nullptr : pass;
  }

  // Those inside go on.
  void Close() { closed_.store(true); }
  bool is_closed() const { return closed_.load(); }

  // May miss one that enters right now.
  int64_t inside_count() const { return passes_.use_count() - 1; }

 private:
  std::atomic<bool> closed_{false};
  const Pass passes_ = std::make_shared<char>();
};

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_CALL_GATE_H_
