#include "client/loadtest/region_sender.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

namespace attention::loadtest {
namespace {

// Tensors begin at cache lines, as those of a careful caller would.
int64_t AlignUp(int64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

class RegionSender::Server {
 public:
  static absl::StatusOr<std::unique_ptr<Server>> Create(
      ServerCaller* caller, const ShapeMix& mix, const InputSet& inputs,
      const Options& options, MakeTensorMemory make_memory) {
    auto server = std::make_unique<Server>();
    server->caller_ = caller;
    server->copy_results_ = options.copy_results;
    absl::Status status = server->PlaceInputs(mix, inputs, make_memory);
    if (status.ok()) status = server->MakeSlots(mix, options, make_memory);
    if (!status.ok()) return status;
    return server;
  }

  void Send(const AttentionRequest& original, Client::Done done) {
    AttentionRequest request = requests_.at(&original);
    char* const slot = TakeSlot();
    request.output_buffer.data = slot;
    if (request.return_log_sum_exp) {
      request.log_sum_exp_buffer.data =
          slot +
          AlignUp(static_cast<int64_t>(request.output_buffer.size_bytes));
    }
    caller_->Call(request, [this, slot, output = request.output_buffer,
                            log_sum_exp = request.log_sum_exp_buffer,
                            done = std::move(done)](
                               absl::StatusOr<AttentionResult> result) mutable {
      if (copy_results_ && result.ok()) {
        absl::Status copied = Fetch(output, result->output);
        copied.Update(Fetch(log_sum_exp, result->log_sum_exp));
        if (!copied.ok()) result = copied;
      }
      ReturnSlot(slot);
      std::move(done)(std::move(result));
    });
  }

 private:
  absl::Status Fetch(const ResultBuffer& buffer, std::string& to) {
    if (buffer.data == nullptr) return absl::OkStatus();
    to.resize(buffer.size_bytes);
    return results_->Read(to.data(), static_cast<const char*>(buffer.data),
                          buffer.size_bytes);
  }

  absl::Status PlaceInputs(const ShapeMix& mix, const InputSet& inputs,
                           MakeTensorMemory make_memory) {
    int64_t bytes = 0;
    ForEachTensor(mix, inputs, [&](TensorView& tensor) {
      bytes += AlignUp(static_cast<int64_t>(tensor.size_bytes));
    });
    auto memory = make_memory(caller_->client(),
                              static_cast<size_t>(std::max<int64_t>(bytes, 1)));
    if (!memory.ok()) return memory.status();
    inputs_ = *std::move(memory);
    char* next = inputs_->data();
    absl::Status status;
    ForEachTensor(mix, inputs, [&](TensorView& tensor) {
      if (tensor.size_bytes > 0) {
        status.Update(inputs_->Write(next, tensor.data, tensor.size_bytes));
      }
      tensor.data = next;
      next += AlignUp(static_cast<int64_t>(tensor.size_bytes));
    });
    return status;
  }

  // Of the requests, which are copies of the originals at first.
  template <typename Visit>
  void ForEachTensor(const ShapeMix& mix, const InputSet& inputs, Visit visit) {
    for (size_t shape = 0; shape < mix.size(); ++shape) {
      for (const auto& input : inputs.inputs(shape)) {
        const auto [it, added] =
            requests_.try_emplace(&input->request, input->request);
        AttentionRequest& request = it->second;
        if (added) {
          request.output_buffer.size_bytes =
              static_cast<size_t>(mix[shape].shape.OutputBytes());
          request.log_sum_exp_buffer.size_bytes =
              static_cast<size_t>(mix[shape].shape.LogSumExpBytes());
        }
        for (TensorView* tensor :
             {&request.query, &request.key, &request.value}) {
          visit(*tensor);
        }
      }
    }
  }

  absl::Status MakeSlots(const ShapeMix& mix, const Options& options,
                         MakeTensorMemory make_memory) {
    int64_t slot_bytes = 64;
    for (const WeightedShape& entry : mix) {
      slot_bytes =
          std::max(slot_bytes, AlignUp(entry.shape.OutputBytes()) +
                                   AlignUp(entry.shape.LogSumExpBytes()));
    }
    if (options.max_outstanding > options.max_bytes / slot_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("this --transport takes ", slot_bytes,
                       " bytes for the results of "
                       "each of --max_outstanding or --concurrency requests, ",
                       options.max_outstanding, "; --input_memory_mib allows ",
                       options.max_bytes));
    }
    auto memory =
        make_memory(caller_->client(),
                    static_cast<size_t>(slot_bytes * options.max_outstanding));
    if (!memory.ok()) return memory.status();
    results_ = *std::move(memory);
    absl::MutexLock lock(&mutex_);
    for (int64_t i = 0; i < options.max_outstanding; ++i) {
      free_slots_.push_back(results_->data() + i * slot_bytes);
    }
    return absl::OkStatus();
  }

  char* TakeSlot() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    char* const slot = free_slots_.back();  // as many as requests outstanding
    free_slots_.pop_back();
    return slot;
  }

  void ReturnSlot(char* slot) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    free_slots_.push_back(slot);
  }

  ServerCaller* caller_ = nullptr;
  bool copy_results_ = false;
  std::unique_ptr<TensorMemory> inputs_;
  std::unique_ptr<TensorMemory> results_;
  // The inputs' requests, with their tensors in the region.
  std::unordered_map<const AttentionRequest*, AttentionRequest> requests_;
  absl::Mutex mutex_;
  std::vector<char*> free_slots_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<std::unique_ptr<RegionSender>> RegionSender::Create(
    const std::vector<ServerCaller*>& callers, const ShapeMix& mix,
    const InputSet& inputs, const Options& options,
    MakeTensorMemory make_memory) {
  if (options.max_outstanding < 1) {
    return absl::InvalidArgumentError(
        "this --transport needs --max_outstanding to be at least 1; got 0");
  }
  std::unique_ptr<RegionSender> sender(new RegionSender());
  for (ServerCaller* caller : callers) {
    auto server = Server::Create(caller, mix, inputs, options, make_memory);
    if (!server.ok()) return server.status();
    sender->servers_.push_back(*std::move(server));
  }
  return sender;
}

RegionSender::~RegionSender() = default;

void RegionSender::Send(const AttentionRequest& request, Client::Done done) {
  const uint64_t turn = next_.fetch_add(1, std::memory_order_relaxed);
  servers_[turn % servers_.size()]->Send(request, std::move(done));
}

}  // namespace attention::loadtest
