#include "client/cpp/decode_call.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "client/cpp/call_runner.h"
#include "client/cpp/session_impl.h"
#include "client/cpp/session_messages.h"

namespace attention {
namespace {

// The tokens of an item are there, their answer is not.
struct LostAnswer {
  size_t item;
  int64_t first_token;  // in the request's tensors
};

// Owns itself: it is deleted after `done` has returned.
class DecodeCall {
 public:
  DecodeCall(const SessionCaller& caller, const DecodeRequest& request,
             absl::Duration timeout, Sessions::DecodeDone done)
      : caller_(caller),
        request_(request),
        positions_(PositionsOf(request)),
        deadline_(caller.runner->clock().Now() + timeout),
        done_(std::move(done)) {}

  void Start() {
    absl::StatusOr<grpc::ByteBuffer> message =
        SerializeDecode(request_, positions_, *caller_.memory);
    if (!message.ok()) return Finish(message.status());
    Call("Decode", *std::move(message), &DecodeCall::OnAnswer);
  }

 private:
  const SessionOptions& options() const {
    return request_.items[0].session->options();
  }

  void Call(const char* method, grpc::ByteBuffer message,
            void (DecodeCall::*next)(absl::StatusOr<grpc::ByteBuffer>)) {
    caller_.runner->Start(
        {SessionCaller::Method(method), std::move(message),
         deadline_ - caller_.runner->clock().Now()},
        [this, next](absl::StatusOr<grpc::ByteBuffer> answer) {
          (this->*next)(std::move(answer));
        });
  }

  void OnAnswer(absl::StatusOr<grpc::ByteBuffer> answer) {
    auto response =
        SessionCaller::ParseAs<v1::DecodeResponse>(std::move(answer));
    if (!response.ok()) return Finish(response.status());
    absl::StatusOr<DecodeResult> result =
        ResultOf(*std::move(response), DecodeShape(request_));
    if (!result.ok()) return Finish(result.status());
    result_ = *std::move(result);
    int64_t first_token = 0;
    for (size_t i = 0; i < request_.items.size(); ++i) {
      const int64_t count = request_.items[i].token_count;
      if (IsAppendedAlready(result_.statuses[i], positions_[i], count)) {
        lost_.push_back({i, first_token});
      }
      first_token += count;
    }
    AttendNext();
  }

  // One after the other: this is rare.
  void AttendNext() {
    if (lost_.empty()) return Finish(std::move(result_));
    const DecodeItem& item = request_.items[lost_.back().item];
    queries_ = {.layer = item.layer,
                .token_count = item.token_count,
                .query = static_cast<const char*>(request_.query) +
                         static_cast<size_t>(lost_.back().first_token) *
                             TokenBytes(options()).query,
                .scale = request_.scale,
                .return_log_sum_exp = request_.return_log_sum_exp,
                .priority = request_.priority};
    absl::StatusOr<grpc::ByteBuffer> message = SerializeAttend(
        item.session->name(), options(), queries_, *caller_.memory);
    if (!message.ok()) return Finish(message.status());
    Call("AttendSession", *std::move(message), &DecodeCall::OnAttended);
  }

  void OnAttended(absl::StatusOr<grpc::ByteBuffer> answer) {
    const LostAnswer lost = lost_.back();
    lost_.pop_back();
    auto response =
        SessionCaller::ParseAs<v1::AttendSessionResponse>(std::move(answer));
    const absl::StatusOr<AttentionResult> state =
        response.ok() ? ResultOf(*std::move(response), options(), queries_)
                      : response.status();
    result_.statuses[lost.item] = state.status();
    if (state.ok()) {
      const TokenBytes bytes(options());
      const DecodeShape shape(request_);
      const auto first_token = static_cast<size_t>(lost.first_token);
      // Empty if no item had an answer.
      result_.output.resize(shape.output_bytes);
      result_.log_sum_exp.resize(shape.log_sum_exp_bytes);
      state->output.copy(&result_.output[first_token * bytes.output],
                         state->output.size());
      state->log_sum_exp.copy(
          &result_.log_sum_exp[first_token * bytes.log_sum_exp],
          state->log_sum_exp.size());
    }
    AttendNext();
  }

  void Finish(absl::StatusOr<DecodeResult> result) {
    if (result.ok()) {
      for (size_t i = 0; i < request_.items.size(); ++i) {
        const DecodeItem& item = request_.items[i];
        if (result->statuses[i].ok()) {
          static_cast<SessionImpl*>(item.session)
              ->Advance(item.layer, item.token_count);
        }
      }
    }
    std::move(done_)(std::move(result));
    delete this;
  }

  const SessionCaller caller_;
  const DecodeRequest request_;
  const std::vector<int64_t> positions_;
  const absl::Time deadline_;
  Sessions::DecodeDone done_;
  DecodeResult result_;
  std::vector<LostAnswer> lost_;
  LayerQueries queries_;  // under way
};

}  // namespace

std::vector<int64_t> PositionsOf(const DecodeRequest& request) {
  std::vector<int64_t> positions;
  positions.reserve(request.items.size());
  absl::flat_hash_map<std::pair<const Session*, int32_t>, int64_t> next;
  for (const DecodeItem& item : request.items) {
    if (item.session == nullptr) {
      positions.push_back(0);  // serialising refuses it
      continue;
    }
    int64_t& position = next.try_emplace({item.session, item.layer},
                                         item.session->token_count(item.layer))
                            .first->second;
    positions.push_back(position);
    position = SaturatedSum(position, item.token_count);
  }
  return positions;
}

void StartDecode(const SessionCaller& caller, const DecodeRequest& request,
                 absl::Duration timeout, Sessions::DecodeDone done) {
  (new DecodeCall(caller, request, timeout, std::move(done)))->Start();
}

}  // namespace attention
