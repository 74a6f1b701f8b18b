// Steps, and the order of the batches that they belong to.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/sessions/kv_errors.h"
#include "server/sessions/kv_store.h"

namespace attention {
namespace {

// Of `length` tokens, append included.
absl::Status CheckRange(const KeyRange& keys, int64_t length) {
  if (keys.begin < 0 || keys.begin > keys.end) {
    return InvalidRequest(
        absl::StrCat("a range of keys must begin at 0 or later, and not behind "
                     "its end; got ",
                     keys.begin, " to ", keys.end));
  }
  return keys.end <= length
             ? absl::OkStatus()
             : PositionGap("the end of the keys", keys.end, length);
}

absl::Status CheckPosition(const KvStep& step, int64_t length) {
  if (step.append_length < 0 || step.query_length < 0) {
    return InvalidRequest(
        absl::StrCat("lengths must be at least 0; got ", step.append_length,
                     " tokens to append and ", step.query_length, " queries"));
  }
  if (step.append_length > kMaxLayerTokens - length) {
    return WithReason(
        absl::ResourceExhaustedError(absl::StrCat(
            "a layer has at most ", kMaxLayerTokens, " tokens; got ",
            step.append_length, " on top of ", length)),
        error_reason::kRequestTooLarge);
  }
  if (step.append_length == 0 || !step.expected_position.has_value()) {
    return absl::OkStatus();
  }
  const int64_t position = *step.expected_position;
  // Also when only some of the tokens are there already: then it is no retry of
  // what was appended, and the caller has to look.
  if (position < length) return PositionTaken(position, length);
  if (position > length) {
    return PositionGap("expected_position", position, length);
  }
  return absl::OkStatus();
}

}  // namespace

void KvStore::BeginBatch(uint64_t number) {
  absl::MutexLock lock(&mutex_);
  const auto is_next = [this, number] {
    mutex_.AssertHeld();
    return next_batch_ == number && !beginning_ && waiting_changes_ == 0;
  };
  mutex_.Await(absl::Condition(&is_next));
  beginning_ = true;
  batches_.try_emplace(number);
}

absl::Status KvStore::Begin(uint64_t number, const KvStep& step, KvView& view) {
  view.pages.clear();
  view.copies.clear();
  absl::MutexLock lock(&mutex_);
  lacks_idle_pages_ = false;
  absl::Status status = BeginStep(number, step, view);
  launch_has_steps_ |= status.ok();
  view.waits_for_launch =
      !status.ok() && lacks_idle_pages_ && launch_has_steps_;
  if (!status.ok() && !view.waits_for_launch) {
    metrics_.Refused(ReasonOf(status));
  }
  return status;
}

absl::Status KvStore::BeginStep(uint64_t number, const KvStep& step,
                                KvView& view) {
  StoredLayer& layer = static_cast<StoredLayer&>(*step.layer);
  StoredSession& session = *layer.session;
  if (session.is_closed) return SessionGone();
  if (session.is_lost) return SessionLost();
  const int64_t old_length = layer.pages.length();
  absl::Status status = CheckPosition(step, old_length);
  if (!status.ok()) return status;
  const int64_t length = old_length + step.append_length;
  const KeyRange keys = step.key_range.value_or(KeyRange{0, length});
  status = CheckRange(keys, length);
  if (!status.ok()) return status;
  const int64_t first_query = length - step.query_length;
  if (step.query_length > 0) {
    const int64_t seen = session.shape.SeenAt(first_query).begin;
    if (!layer.pages.Has({std::max(keys.begin, seen), keys.end})) {
      return KeysFreed(old_length);
    }
  }
  const int64_t found = layer.pages.resident_tokens();
  if (step.append_length > 0) {
    status = Append(layer, step.append_length, first_query, view.copies);
    if (!status.ok()) return status;
    metrics_.Appended(step.append_length, view.copies.size());
    AppendedTo& appended_to = batches_[number];
    // A batch has many steps of few sessions, one after the other.
    if (appended_to.empty() || appended_to.back().get() != &session) {
      appended_to.push_back(session.shared_from_this());
    }
  } else if (status = Wake(layer, 0); !status.ok()) {
    return status;
  }
  if (step.query_length > 0) metrics_.Found(found);
  const absl::Span<void* const> pages = layer.pages.page_data();
  view.pages.assign(pages.begin(), pages.end());
  view.key_length = length;
  view.key_begin = keys.begin;
  view.key_end = keys.end;
  view.window_left = session.shape.window_left;
  view.sink_tokens = session.shape.sink_tokens;
  const SessionConfig& config = *session.config;
  const bool is_scaled = !config.key_scales.empty();
  view.key_scales = is_scaled ? config.key_scales.data() : nullptr;
  view.value_scales = is_scaled ? config.value_scales.data() : nullptr;
  return absl::OkStatus();
}

void KvStore::AllBegun(uint64_t /*number*/) {
  absl::MutexLock lock(&mutex_);
  EndBeginning();
}

void KvStore::EndBeginning() {
  beginning_ = false;
  ++next_batch_;
  for (PagePool* pool : std::exchange(holding_, {})) {
    pool->DropHeld();
    ReturnMemory(*pool);
  }
}

void KvStore::EndBatch(uint64_t number, bool ok) {
  absl::MutexLock lock(&mutex_);
  const AppendedTo appended_to = std::move(batches_.extract(number).mapped());
  if (!ok) {
    for (const std::shared_ptr<StoredSession>& session : appended_to) {
      Lose(*session);
    }
  }
  if (beginning_ && next_batch_ == number) EndBeginning();
  ReleaseSpare();
}

void KvStore::Lose(StoredSession& session) {
  if (session.is_closed || session.is_lost) return;
  session.is_lost = true;
  ClearPages(session);
  ReturnMemory(*session.pool);
  metrics_.Happened(SessionEvent::kLost);
}

void KvStore::AwaitBegun() {
  const auto has_begun = [this] {
    mutex_.AssertHeld();
    return !beginning_;
  };
  ++waiting_changes_;
  mutex_.Await(absl::Condition(&has_begun));
  --waiting_changes_;
}

}  // namespace attention
