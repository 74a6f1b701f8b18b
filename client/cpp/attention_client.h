// Client library of the Attention Server.
//
//   auto client = attention::Client::Create({.target = "localhost:50051"});
//   if (!client.ok()) return client.status();
//   attention::AttentionRequest request;
//   request.query = attention::TensorView::Contiguous(q.data(), {1, 512, 16,
//   128}, 4); request.key = ...; request.value = ...; request.mask =
//   attention::MaskKind::kCausalBottomRight;
//   absl::StatusOr<attention::AttentionResult> result =
//   (*client)->Compute(request);
//
// Tensors are views: the caller keeps them alive until the call has returned
// (or the callback was called). Messages are limited to 2 GiB, gRPC's own
// bound, instead of gRPC's default 4 MiB; what is larger is streamed. Calls go
// over a pool of channels, and are sent again, within their timeout, when the
// server cannot be reached or its full queue asks for a later attempt.
//
// Thread-safe. Destroying a Client cancels its calls and waits until each
// callback has returned.
#ifndef ATTENTION_CLIENT_CPP_ATTENTION_CLIENT_H_
#define ATTENTION_CLIENT_CPP_ATTENTION_CLIENT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "attention/v1/attention.pb.h"
#include "client/cpp/cuda_memory_region.h"
#include "client/cpp/shared_memory_region.h"
#include "kernels/attention_params.h"

namespace grpc {
class ChannelCredentials;
}

namespace attention {

class ComputeStream;
class Sessions;

// Order of a tensor's dimensions; see Layout in attention.proto.
enum class Layout { kBshd, kBhsd, kThd };

// A tensor in the caller's memory.
struct TensorView {
  const void* data = nullptr;
  size_t size_bytes = 0;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // in elements; empty: contiguous

  // `element_bytes` is 4, 2 or 1. The caller answers for `data` having as many
  // elements as the shape says.
  static TensorView Contiguous(const void* data, std::vector<int64_t> shape,
                               int64_t element_bytes);
};

// Memory of the caller for a result, of exactly the result's size. Unless the
// call is streamed, it lies in a SharedMemoryRegion or a CudaMemoryRegion of the
// client.
struct ResultBuffer {
  void* data = nullptr;  // null: the result comes in the AttentionResult
  size_t size_bytes = 0;
};

// What to compute; see ComputeAttentionRequest in attention.proto.
struct AttentionRequest {
  DataType data_type = DataType::kFloat32;
  Layout layout = Layout::kBshd;
  TensorView query;
  TensorView key;
  TensorView value;
  std::vector<int64_t> query_lengths;  // kThd, or padded batches
  std::vector<int64_t> key_lengths;
  std::optional<double> scale;  // default 1 / sqrt(head dimension)
  // kFloat8E4M3 only: what elements of each head are multiplied by; empty: 1
  // for all. See client/cpp/float8.h.
  std::vector<float> query_scales;  // [query heads]
  std::vector<float> key_scales;    // [K/V heads]
  std::vector<float> value_scales;  // [K/V heads]
  MaskKind mask = MaskKind::kNone;
  std::optional<int64_t> window_left;
  std::optional<int64_t> window_right;
  Precision precision = Precision::kIeee;
  std::optional<Algorithm> algorithm;
  bool return_log_sum_exp = false;
  bool return_weights = false;
  // Undefined after an error.
  ResultBuffer output_buffer;
  ResultBuffer log_sum_exp_buffer;
  ResultBuffer weights_buffer;
};

// Results that have a ResultBuffer are there, and empty here.
struct AttentionResult {
  DataType data_type = DataType::kFloat32;  // OutputType of the request's
  std::vector<int64_t> output_shape;
  std::string output;  // raw little-endian elements of data_type
  std::vector<int64_t> log_sum_exp_shape;
  std::string log_sum_exp;  // raw fp32; empty unless asked for
  std::vector<int64_t> weights_shape;
  std::string weights;  // raw elements of data_type; empty unless asked for
  v1::ComputeAttentionTimings timings;
};

// How a request travels; see ComputeAttention and StreamAttention in
// attention.proto.
enum class Transport {
  // In one message, of at most 2 GiB. Small requests are fastest so.
  kMessage,
  // In chunks, which the server copies to its device while others arrive. Sends
  // from the caller's memory and receives into it, without copies in between,
  // and goes on where it was when a connection breaks. Tensors in shared memory
  // are sent like others, those in a GPU's cannot be. In turn the call may return
  // later than its timeout says, by up to 50 s, which is what a connection takes
  // to notice that the server has fallen silent: gRPC still refers to the
  // caller's memory until then.
  kStream,
};

class Client {
 public:
  struct Options {
    // "host:port", "dns:///name:port", "unix:/path" or any gRPC target.
    std::string target;
    // Connections, in [1, 64]; calls take turns. One connection carries about
    // one core's worth of bytes.
    int channel_count = 2;
    // Per call, all attempts together, unless CallOptions says otherwise. More
    // than 0; may be infinite.
    absl::Duration timeout = absl::Minutes(5);
    // Attempts per call, the first included, in [1, 100]; 1: never retry.
    int max_attempts = 4;
    // Requests and answers with more bytes of tensors are streamed. The server's
    // --max_message_bytes, of which this is the default, bounds the messages.
    size_t max_message_bytes = (size_t{1} << 30) - (size_t{1} << 20);
    // Memory of past requests that is kept for the next ones, which saves them
    // the page faults. 0: none.
    size_t max_cached_bytes = size_t{256} << 20;
    // How long a thread that has taken an answer looks for the next one before it
    // sleeps: a processor is busy meanwhile, and calls in quick succession are
    // spared the time to wake it. 0: not at all. Unset: 100 us on more than 4
    // processors, else 0.
    std::optional<absl::Duration> poll_time;
    // Whose calls these are, for the server's fairness, quotas and sessions: at
    // most 128 printable ASCII characters. Empty: nobody's in particular.
    std::string tenant;
    // Null: plaintext.
    std::shared_ptr<grpc::ChannelCredentials> credentials;
  };

  struct CallOptions {
    std::optional<absl::Duration> timeout;
    // Unset: one message, or a stream when Options::max_message_bytes is
    // exceeded.
    std::optional<Transport> transport;
  };

  // InvalidArgument when an option is out of its range. Does not connect.
  static absl::StatusOr<std::unique_ptr<Client>> Create(Options options);

  virtual ~Client() = default;

  // Computes one request. Errors are the server's, with its message (see
  // AttentionService.ComputeAttention) and reason (see ErrorReason); and
  // InvalidArgument for a request of more than 2 GiB, or a ResultBuffer outside
  // the client's regions.
  virtual absl::StatusOr<AttentionResult> Compute(
      const AttentionRequest& request, const CallOptions& call = {}) = 0;

  // As Compute, without waiting: `done` is called exactly once, perhaps before
  // this returns, and mostly on a thread of the client's. It must neither block
  // (a waiting call such as Compute blocks) nor destroy the client.
  using Done = absl::AnyInvocable<void(absl::StatusOr<AttentionResult>)>;
  virtual void ComputeAsync(const AttentionRequest& request, Done done,
                            const CallOptions& call = {}) = 0;

  // A stream of requests over one connection; see client/cpp/compute_stream.h.
  // The timeout is of the whole stream, by default infinite; the transport does
  // not matter.
  virtual std::unique_ptr<ComputeStream> OpenComputeStream(
      const CallOptions& call = {}) = 0;

  // Needs a server on this machine with --allow_shared_memory. Errors are the
  // server's, ResourceExhausted when there is no memory, InvalidArgument when an
  // option is out of its range.
  virtual absl::StatusOr<std::unique_ptr<SharedMemoryRegion>>
  CreateSharedMemoryRegion(const SharedMemoryRegion::Options& options) = 0;

  // Needs a server on this machine with --allow_cuda_ipc that uses the GPU
  // which has the memory. Errors are the server's, InvalidArgument when an
  // option is out of its range.
  virtual absl::StatusOr<std::unique_ptr<CudaMemoryRegion>> RegisterCudaMemory(
      const CudaMemoryRegion::Options& options) = 0;

  // Keys and values that stay on the server; see client/cpp/sessions.h.
  virtual Sessions& sessions() = 0;

  virtual absl::StatusOr<v1::GetServerInfoResponse> GetServerInfo(
      const CallOptions& call = {}) = 0;

  // OK when the service (empty: the whole server) is SERVING. Otherwise
  // Unavailable, or NotFound for a service that the server does not know. Never
  // retried.
  virtual absl::Status CheckHealth(const std::string& service = "",
                                   const CallOptions& call = {}) = 0;
};

// The request as it goes over the wire; copies the tensors.
v1::ComputeAttentionRequest ToProto(const AttentionRequest& request);

// The reason that the server gave for an error, e.g. "QUEUE_FULL"; empty when
// it gave none. All details of an error are payloads of its status.
std::string ErrorReason(const absl::Status& status);

// A fact that the server gave with the reason, e.g. "replica" with
// "WRONG_REPLICA"; empty when it gave none.
std::string ErrorFact(const absl::Status& status, const std::string& key);

}  // namespace attention

#endif  // ATTENTION_CLIENT_CPP_ATTENTION_CLIENT_H_
