#include "server/engine/batch_runner.h"

#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "server/engine/error_reason.h"

namespace attention {
namespace {

using WorkPtr = std::unique_ptr<AttentionWork>;

// To send an answer takes system calls, which cost more than the slot's own
// share of a small work. Fewer are not worth it to wake others.
constexpr size_t kManyAnswers = 4;

struct Answer {
  WorkPtr work;
  absl::StatusOr<WorkResult> result;
};

absl::Status Explained(absl::Status status) {
  if (!ReasonOf(status).empty()) return status;
  switch (status.code()) {
    case absl::StatusCode::kResourceExhausted:
      return WithReason(std::move(status), error_reason::kOutOfMemory);
    case absl::StatusCode::kInvalidArgument:
      return WithReason(std::move(status), error_reason::kInvalidRequest);
    case absl::StatusCode::kUnavailable:
      return WithReason(std::move(status), error_reason::kDeviceFailed);
    default:
      return WithReason(std::move(status), error_reason::kInternal);
  }
}

class Runner {
 public:
  Runner(const Batch& batch, BatchExecutor& executor,
         const std::string& device_name, KvCache* kv_cache, Metrics& metrics,
         absl::FunctionRef<void()> free_slot, CopyThreads* helpers)
      : start_time_(batch.start_time),
        is_counted_(!batch.is_measurement),
        executor_(executor),
        free_slot_(free_slot),
        helpers_(helpers),
        metrics_(metrics) {
    report_.config = batch.config;
    report_.flush_reason = batch.flush_reason;
    report_.device = device_name;
    if (batch.kv_batch_number.has_value()) {
      kv_batch_.emplace(*kv_cache, *batch.kv_batch_number);
    }
  }

  void Run(std::vector<WorkPtr> works) {
    if (is_counted_) metrics_.BatchStarted(report_.device);
    waiting_ = std::move(works);
    while (!waiting_.empty()) {
      RunPass(std::exchange(waiting_, {}));
      if (waiting_.empty()) {
        if (kv_batch_.has_value()) kv_batch_->End();
        if (is_counted_) Report();
      } else if (kv_batch_.has_value()) {
        continue;
      }
      const bool is_last = waiting_.empty();
      const bool are_many = answers_.size() >= kManyAnswers;
      if (is_last && are_many) free_slot_();
      GiveAnswers(std::exchange(answers_, {}));
      if (is_last && !are_many) free_slot_();
    }
  }

 private:
  void GiveAnswers(std::vector<Answer> answers) {
    const auto give = [&answers](int i) {
      answers[i].work->ReleaseInputs();
      answers[i].work->done(std::move(answers[i].result));
    };
    const int count = static_cast<int>(answers.size());
    if (helpers_ != nullptr && answers.size() >= kManyAnswers) {
      helpers_->Run(count, give, [](int) {});
    } else {
      for (int i = 0; i < count; ++i) give(i);
    }
  }

  // Every pass computes or fails at least one work, so passes come to an end.
  void RunPass(std::vector<WorkPtr> works) {
    std::vector<PreparedWork> prepared = PrepareWhatFits(std::move(works));
    if (prepared.empty()) return;
    if (!Reserve(prepared)) return;
    KvBatch* const kv_batch = kv_batch_.has_value() ? &*kv_batch_ : nullptr;
    if (kv_batch != nullptr) kv_batch->StartPass(/*is_last=*/waiting_.empty());
    absl::StatusOr<PassReport> pass =
        executor_.Compute(report_.config, absl::MakeSpan(prepared), kv_batch);
    if (kv_batch != nullptr) kv_batch->EndPass(pass.ok());
    if (!pass.ok()) {
      for (PreparedWork& failed : prepared) {
        Fail(std::move(failed.work), pass.status());
      }
      if (kv_batch != nullptr && kv_batch->has_failed()) {
        for (WorkPtr& work : std::exchange(waiting_, {})) {
          Fail(std::move(work), pass.status());
        }
      }
      return;
    }
    Finish(prepared, *pass);
  }

  std::vector<PreparedWork> PrepareWhatFits(std::vector<WorkPtr> works) {
    std::vector<PreparedWork> candidates(works.size());
    for (size_t i = 0; i < works.size(); ++i) {
      candidates[i].work = std::move(works[i]);
    }
    size_t prepared_count = 0;  // at the front of the candidates
    std::vector<std::pair<WorkPtr, absl::Status>> unfit;
    size_t have_memory = 0;  // candidates before this one
    for (size_t i = 0; i < candidates.size(); ++i) {
      PreparedWork& candidate = candidates[i];
      if (i == have_memory) {
        have_memory +=
            executor_.PrepareTogether(absl::MakeSpan(candidates).subspan(i));
      }
      absl::Status status;
      if (i == have_memory) {
        status = executor_.Prepare(candidate);
        ++have_memory;
      }
      if (status.ok()) status = ValidateWork(candidate, sequences_);
      if (status.ok()) {
        if (i != prepared_count) {
          candidates[prepared_count] = std::move(candidate);
        }
        ++prepared_count;
      } else if (!absl::IsResourceExhausted(status)) {
        Fail(std::move(candidate.work), std::move(status));
      } else if (!kv_batch_.has_value()) {
        unfit.emplace_back(std::move(candidate.work), std::move(status));
      } else if (prepared_count > 0) {
        // Nothing overtakes it.
        for (; i < candidates.size(); ++i) {
          waiting_.push_back(std::move(candidates[i].work));
        }
      } else {
        Fail(std::move(candidate.work), std::move(status));
      }
    }
    for (auto& [work, status] : unfit) {
      if (prepared_count == 0) {
        Fail(std::move(work), std::move(status));
      } else {
        waiting_.push_back(std::move(work));
      }
    }
    candidates.resize(prepared_count);
    return candidates;
  }

  // Sets half of the works aside until the rest fits. Returns false when all
  // have been answered.
  bool Reserve(std::vector<PreparedWork>& prepared) {
    while (true) {
      absl::Status status =
          executor_.Reserve(report_.config, absl::MakeSpan(prepared));
      if (status.ok()) return true;
      if (!absl::IsResourceExhausted(status) || prepared.size() == 1) {
        for (PreparedWork& failed : prepared) {
          Fail(std::move(failed.work), status);
        }
        return false;
      }
      std::vector<WorkPtr> aside;
      const size_t kept = prepared.size() / 2;
      for (size_t i = kept; i < prepared.size(); ++i) {
        aside.push_back(std::move(prepared[i].work));
      }
      prepared.erase(prepared.begin() + kept, prepared.end());
      waiting_.insert(waiting_.begin(), std::make_move_iterator(aside.begin()),
                      std::make_move_iterator(aside.end()));
    }
  }

  void Finish(std::vector<PreparedWork>& works, const PassReport& pass) {
    int64_t sequence_count = 0;
    for (const PreparedWork& prepared : works) {
      sequence_count += static_cast<int64_t>(prepared.work->sequences.size());
      report_.query_tokens += prepared.work->query_tokens();
      if (!kv_batch_.has_value()) report_.flops += TotalFlops(*prepared.work);
    }
    report_.flops += pass.flops;
    report_.resident_bytes += pass.resident_bytes;
    report_.request_count += static_cast<int>(works.size());
    report_.sequence_count += sequence_count;
    report_.copied_in_bytes += pass.copied_in_bytes;
    report_.copied_out_bytes += pass.copied_out_bytes;
    report_.copy_in += pass.copy_in;
    report_.compute += pass.compute;
    report_.copy_out += pass.copy_out;

    for (PreparedWork& prepared : works) {
      if (!prepared.status.ok()) {
        Fail(std::move(prepared.work), std::move(prepared.status));
        continue;
      }
      WorkResult result = std::move(prepared.result);
      if (start_time_ > prepared.work->arrival_time &&
          prepared.work->arrival_time != absl::InfinitePast()) {
        result.queue_duration = start_time_ - prepared.work->arrival_time;
      }
      result.copy_in_duration = pass.copy_in;
      result.compute_duration = pass.compute;
      result.copy_out_duration = pass.copy_out;
      result.batch_request_count = static_cast<int32_t>(works.size());
      result.batch_sequence_count = sequence_count;
      result.device_name = report_.device;
      answers_.push_back({std::move(prepared.work), std::move(result)});
    }
  }

  void Fail(WorkPtr work, absl::Status status) {
    if (first_failure_.ok()) first_failure_ = status;
    work->payload_owner.reset();
    answers_.push_back({std::move(work), Explained(std::move(status))});
  }

  void Report() {
    if (report_.request_count > 0) {
      metrics_.BatchFinished(report_);
    } else {
      metrics_.BatchFailed(report_.device, first_failure_.code());
    }
  }

  const absl::Time start_time_;
  const bool is_counted_;
  BatchExecutor& executor_;
  const absl::FunctionRef<void()> free_slot_;
  CopyThreads* const helpers_;
  Metrics& metrics_;
  Metrics::BatchReport report_;
  std::optional<KvBatch> kv_batch_;  // if the batch is resident
  absl::Status first_failure_;
  std::vector<Sequence> sequences_;  // memory to validate a work
  std::vector<WorkPtr> waiting_;
  std::vector<Answer> answers_;
};

}  // namespace

void RunBatch(std::unique_ptr<Batch> batch, BatchExecutor& executor,
              const std::string& device_name, KvCache* kv_cache,
              Metrics& metrics, absl::FunctionRef<void()> free_slot,
              CopyThreads* helpers) {
  Runner(*batch, executor, device_name, kv_cache, metrics, free_slot, helpers)
      .Run(std::move(batch->works));
}

}  // namespace attention
