#include "client/loadtest/shared_memory_sender.h"

#include <algorithm>
#include <cstring>
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

// Longer than any run: inputs that are rarely drawn must not be forgotten.
constexpr absl::Duration kLease = absl::Hours(1);

}  // namespace

class SharedMemorySender::Server {
 public:
  static absl::StatusOr<std::unique_ptr<Server>> Create(
      Client* client, const ShapeMix& mix, const InputSet& inputs,
      const Options& options) {
    auto server = std::make_unique<Server>();
    server->client_ = client;
    server->copy_results_ = options.copy_results;
    absl::Status status = server->PlaceInputs(mix, inputs);
    if (status.ok()) status = server->MakeSlots(mix, options);
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
    client_->ComputeAsync(
        request,
        [this, slot, output = request.output_buffer,
         log_sum_exp = request.log_sum_exp_buffer, done = std::move(done)](
            absl::StatusOr<AttentionResult> result) mutable {
          if (copy_results_ && result.ok()) {
            result->output.assign(static_cast<const char*>(output.data),
                                  output.size_bytes);
            if (log_sum_exp.data != nullptr) {
              result->log_sum_exp.assign(
                  static_cast<const char*>(log_sum_exp.data),
                  log_sum_exp.size_bytes);
            }
          }
          ReturnSlot(slot);
          std::move(done)(std::move(result));
        });
  }

 private:
  absl::Status PlaceInputs(const ShapeMix& mix, const InputSet& inputs) {
    int64_t bytes = 0;
    ForEachTensor(mix, inputs, [&](TensorView& tensor) {
      bytes += AlignUp(static_cast<int64_t>(tensor.size_bytes));
    });
    auto region = client_->CreateSharedMemoryRegion(
        {.size_bytes = static_cast<size_t>(std::max<int64_t>(bytes, 1)),
         .lease = kLease});
    if (!region.ok()) return region.status();
    inputs_ = *std::move(region);
    char* next = static_cast<char*>(inputs_->data());
    ForEachTensor(mix, inputs, [&](TensorView& tensor) {
      if (tensor.size_bytes > 0) {
        std::memcpy(next, tensor.data, tensor.size_bytes);
      }
      tensor.data = next;
      next += AlignUp(static_cast<int64_t>(tensor.size_bytes));
    });
    return absl::OkStatus();
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

  absl::Status MakeSlots(const ShapeMix& mix, const Options& options) {
    int64_t slot_bytes = 64;
    for (const WeightedShape& entry : mix) {
      slot_bytes =
          std::max(slot_bytes, AlignUp(entry.shape.OutputBytes()) +
                                   AlignUp(entry.shape.LogSumExpBytes()));
    }
    if (options.max_outstanding > options.max_bytes / slot_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("--transport=shm takes ", slot_bytes,
                       " bytes for the results of "
                       "each of --max_outstanding or --concurrency requests, ",
                       options.max_outstanding, "; --input_memory_mib allows ",
                       options.max_bytes));
    }
    auto region = client_->CreateSharedMemoryRegion(
        {.size_bytes =
             static_cast<size_t>(slot_bytes * options.max_outstanding),
         .lease = kLease});
    if (!region.ok()) return region.status();
    results_ = *std::move(region);
    absl::MutexLock lock(&mutex_);
    for (int64_t i = 0; i < options.max_outstanding; ++i) {
      free_slots_.push_back(static_cast<char*>(results_->data()) +
                            i * slot_bytes);
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

  Client* client_ = nullptr;
  bool copy_results_ = false;
  std::unique_ptr<SharedMemoryRegion> inputs_;
  std::unique_ptr<SharedMemoryRegion> results_;
  // The inputs' requests, with their tensors in the region.
  std::unordered_map<const AttentionRequest*, AttentionRequest> requests_;
  absl::Mutex mutex_;
  std::vector<char*> free_slots_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<std::unique_ptr<SharedMemorySender>> SharedMemorySender::Create(
    const std::vector<Client*>& clients, const ShapeMix& mix,
    const InputSet& inputs, const Options& options) {
  if (options.max_outstanding < 1) {
    return absl::InvalidArgumentError(
        "--transport=shm needs --max_outstanding to be at least 1; got 0");
  }
  std::unique_ptr<SharedMemorySender> sender(new SharedMemorySender());
  for (Client* client : clients) {
    auto server = Server::Create(client, mix, inputs, options);
    if (!server.ok()) return server.status();
    sender->servers_.push_back(*std::move(server));
  }
  return sender;
}

SharedMemorySender::~SharedMemorySender() = default;

void SharedMemorySender::Send(const AttentionRequest& request,
                              Client::Done done) {
  const uint64_t turn = next_.fetch_add(1, std::memory_order_relaxed);
  servers_[turn % servers_.size()]->Send(request, std::move(done));
}

}  // namespace attention::loadtest
