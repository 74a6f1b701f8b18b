#include "client/loadtest/decode_client.h"

#include <algorithm>
#include <utility>

#include "client/loadtest/answer_check.h"

namespace attention::loadtest {

DecodeRunner::DecodeClient::DecodeClient(DecodeRunner& runner, int index)
    : runner_(runner),
      index_(index),
      target_(runner.targets_[index % runner.targets_.size()]->sessions()) {
  request_.return_log_sum_exp = runner.tape_shape_.log_sum_exp;
}

const Input& DecodeRunner::DecodeClient::Tape(int session, int layer) const {
  const auto& tapes = runner_.tapes_.inputs(0);
  const DecodePlan& plan = runner_.plan_;
  const size_t number =
      (static_cast<size_t>(index_) * plan.sessions_per_client + session) *
          plan.layer_count +
      layer;
  return *tapes[number % tapes.size()];
}

absl::Status DecodeRunner::DecodeClient::Prepare() {
  const DecodePlan& plan = runner_.plan_;
  const RequestShape& shape = runner_.tape_shape_;
  SessionOptions options = {
      .data_type = shape.data_type,
      .query_head_count = static_cast<int32_t>(shape.heads),
      .kv_head_count = static_cast<int32_t>(shape.kv_heads),
      .head_dim_qk = static_cast<int32_t>(shape.head_dim),
      .head_dim_v = static_cast<int32_t>(shape.head_dim_v),
      .layer_count = plan.layer_count,
      .precision = shape.precision,
      .kv_data_type = plan.kv_data_type,
      .split_policy = plan.split_policy,
      .reserved_token_count =
          plan.reserves ? plan.context + plan.turn_tokens : 0};
  if (shape.window_left >= 0) options.window_left = shape.window_left;
  for (int s = 0; s < plan.sessions_per_client; ++s) {
    auto session = target_.Create(options);
    if (!session.ok()) return session.status();
    sessions_.push_back(*std::move(session));
    absl::Status status = sessions_.back()->Append(Prefix(s));
    if (!status.ok()) return status;
  }
  if (plan.streamed) stream_ = target_.OpenDecodeStream();
  return absl::OkStatus();
}

std::vector<LayerTokens> DecodeRunner::DecodeClient::Prefix(int session) const {
  std::vector<LayerTokens> prefix;
  if (runner_.plan_.context == 0) return prefix;
  for (int layer = 0; layer < runner_.plan_.layer_count; ++layer) {
    const Input& tape = Tape(session, layer);
    prefix.push_back({.layer = layer,
                      .token_count = runner_.plan_.context,
                      .key = tape.key.data(),
                      .value = tape.value.data()});
  }
  return prefix;
}

void DecodeRunner::DecodeClient::Decode() {
  while (runner_.Begin(call_)) {
    {
      absl::MutexLock lock(&mutex_);
      turn_ended_ = false;
    }
    layer_ = 0;
    position_ = 0;
    step_begin_ = call_.sent;
    SendNext();
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&turn_ended_));
    }
    while (true) {
      const absl::Status status = GoBack();
      if (status.ok()) break;
      // In place of the step that cannot be.
      if (!runner_.Begin(call_)) return;
      runner_.End(call_, runner_.clock_.Now(), status, false, absl::OkStatus());
    }
  }
}

bool DecodeRunner::DecodeClient::HasPrefix(const Session& session) const {
  for (int layer = 0; layer < runner_.plan_.layer_count; ++layer) {
    if (session.token_count(layer) != runner_.plan_.context) return false;
  }
  return true;
}

absl::Status DecodeRunner::DecodeClient::GoBack() {
  if (failed_ && stream_ != nullptr) stream_ = target_.OpenDecodeStream();
  for (int s = 0; s < runner_.plan_.sessions_per_client; ++s) {
    Session& session = *sessions_[s];
    if (session.Truncate(runner_.plan_.context).ok() && HasPrefix(session)) {
      continue;
    }
    // It is gone, was made anew in part, or its window has passed what the
    // prefix ends with.
    absl::Status status = session.Rebuild(Prefix(s));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

void DecodeRunner::DecodeClient::DeleteSessions() {
  stream_ = nullptr;
  for (const auto& session : sessions_) session->Delete().IgnoreError();
  sessions_.clear();
}

void DecodeRunner::DecodeClient::Fill() {
  const DecodePlan& plan = runner_.plan_;
  const RequestShape& shape = runner_.tape_shape_;
  const int64_t element_bytes = ElementBytes(shape.data_type);
  query_.clear();
  key_.clear();
  value_.clear();
  request_.items.clear();
  const auto append = [&](std::string& to, const std::string& tape,
                          int64_t token, int64_t heads, int64_t head_dim) {
    const int64_t token_bytes = heads * head_dim * element_bytes;
    to.append(tape, token * token_bytes, plan.step_tokens * token_bytes);
  };
  for (int s = 0; s < plan.sessions_per_client; ++s) {
    for (int l = layer_; l < layer_ + plan.layers_per_call; ++l) {
      const Input& tape = Tape(s, l);
      append(query_, tape.query, position_, shape.heads, shape.head_dim);
      const int64_t token = plan.context + position_;
      append(key_, tape.key, token, shape.kv_heads, shape.head_dim);
      append(value_, tape.value, token, shape.kv_heads, shape.head_dim_v);
      request_.items.push_back({sessions_[s].get(), l, plan.step_tokens});
    }
  }
  request_.query = query_.data();
  request_.key = key_.data();
  request_.value = value_.data();
}

void DecodeRunner::DecodeClient::SendNext() {
  Fill();
  auto done = [this](absl::StatusOr<DecodeResult> result) {
    OnAnswer(std::move(result));
  };
  if (stream_ != nullptr) {
    stream_->Send(request_, std::move(done));
  } else {
    target_.DecodeAsync(request_, std::move(done));
  }
}

void DecodeRunner::DecodeClient::OnAnswer(absl::StatusOr<DecodeResult> result) {
  const absl::Duration end = runner_.clock_.Now();
  if (result.ok()) {
    const auto failed =
        std::find_if(result->statuses.begin(), result->statuses.end(),
                     [](const absl::Status& status) { return !status.ok(); });
    if (failed != result->statuses.end()) result = absl::Status(*failed);
  }
  int64_t compared = 0;
  absl::Status check;
  if (result.ok() && call_.verified) check = Check(*result, compared);
  runner_.End(call_, end, result, compared > 0, check);
  failed_ = !result.ok();
  if (failed_) return EndTurn();
  layer_ += runner_.plan_.layers_per_call;
  const bool new_step = layer_ == runner_.plan_.layer_count;
  if (new_step) {
    runner_.RecordStep(step_begin_, end);
    layer_ = 0;
    position_ += runner_.plan_.step_tokens;
    if (position_ == runner_.plan_.turn_tokens) return EndTurn();
  }
  if (!runner_.Begin(call_)) return EndTurn();
  if (new_step) step_begin_ = call_.sent;
  SendNext();
}

absl::Status DecodeRunner::DecodeClient::Check(const DecodeResult& result,
                                               int64_t& compared) const {
  const DecodePlan& plan = runner_.plan_;
  const RequestShape& shape = runner_.tape_shape_;
  const int64_t rows = plan.step_tokens * shape.heads;
  const int64_t item_bytes =
      rows * shape.head_dim_v * ElementBytes(shape.data_type);
  size_t item = 0;
  for (int s = 0; s < plan.sessions_per_client; ++s) {
    for (int l = layer_; l < layer_ + plan.layers_per_call; ++l, ++item) {
      absl::Status status = CheckQueries(
          shape, Tape(s, l).expectation, position_, plan.step_tokens,
          result.output.data() + item * item_bytes,
          shape.log_sum_exp
              ? result.log_sum_exp.data() + item * rows * sizeof(float)
              : nullptr,
          compared);
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

void DecodeRunner::DecodeClient::EndTurn() {
  absl::MutexLock lock(&mutex_);
  turn_ended_ = true;
}

}  // namespace attention::loadtest
