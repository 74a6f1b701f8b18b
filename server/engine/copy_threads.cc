#include "server/engine/copy_threads.h"

#include <algorithm>

namespace attention {

CopyThreads::CopyThreads(int helper_count) {
  for (int i = 0; i < helper_count; ++i) {
    helpers_.emplace_back([this] { Help(); });
  }
}

CopyThreads::~CopyThreads() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  for (std::thread& helper : helpers_) helper.join();
}

void CopyThreads::Run(int count, absl::FunctionRef<void(int piece)> copy,
                      absl::FunctionRef<void(int finished)> progress) {
  if (count == 0) return;
  Job job = {.count = count, .copy = copy, .done = std::vector<bool>(count)};
  absl::ReleasableMutexLock start(&mutex_);
  jobs_.push_back(&job);
  start.Release();
  while (job.reported < count) {
    int piece = -1;
    int finished = 0;
    {
      absl::MutexLock lock(&mutex_);
      if (job.next < count) {
        piece = Begin(job);
      } else {
        mutex_.Await(absl::Condition(&job, &Job::HasProgress));
      }
      finished = job.finished;
    }
    if (finished > job.reported) {
      job.reported = finished;
      progress(finished);
    }
    if (piece < 0) continue;
    copy(piece);
    absl::MutexLock lock(&mutex_);
    Finish(job, piece);
  }
}

void CopyThreads::Help() {
  while (true) {
    Job* job = nullptr;
    int piece = 0;
    {
      absl::MutexLock lock(&mutex_,
                           absl::Condition(this, &CopyThreads::HasJobOrStops));
      if (jobs_.empty()) return;
      job = jobs_.front();
      piece = Begin(*job);
      if (jobs_.size() > 1 && jobs_.front() == job) {
        jobs_.pop_front();
        jobs_.push_back(job);
      }
    }
    job->copy(piece);
    absl::MutexLock lock(&mutex_);
    Finish(*job, piece);  // the job may end as soon as the lock is released
  }
}

int CopyThreads::Begin(Job& job) {
  const int piece = job.next++;
  if (job.next == job.count) {
    jobs_.erase(std::find(jobs_.begin(), jobs_.end(), &job));
  }
  return piece;
}

void CopyThreads::Finish(Job& job, int piece) {
  job.done[piece] = true;
  while (job.finished < job.count && job.done[job.finished]) ++job.finished;
}

}  // namespace attention
