// The vocabulary shared by every attention implementation in this library.
//
// All implementations compute, per sequence and query head h,
//
//   output = softmax(scale * query * key^T + mask) * value
//
// with key and value taken from K/V head  h / (query_head_count / kv_head_count).
// They take the same plain structs, whether they run on the CPU or on a GPU;
// only the address space of the tensor pointers differs.
//
// Everything here is a POD without ownership: the caller keeps tensors and the
// sequence array alive until the computation has finished. Thread-compatible.
#ifndef ATTENTION_KERNELS_ATTENTION_PARAMS_H_
#define ATTENTION_KERNELS_ATTENTION_PARAMS_H_

#include <cstddef>
#include <cstdint>
#include <utility>

namespace attention {

// Element type of query, key and value, and of output and weights too, but for
// e4m3 (4 bits of exponent, 3 of mantissa, no infinities; OCP "FP8"), whose
// output is bf16. fp16, bf16 and e4m3 accumulate in fp32. The log-sum-exp is
// always fp32.
enum class DataType : int32_t {
  kFloat32 = 0,
  kFloat16 = 1,
  kBFloat16 = 2,
  kFloat8E4M3 = 3,  // kStreaming only
};

// Which keys a query may see; see kernels/mask.h for the exact rule.
enum class MaskKind : int32_t {
  kNone = 0,
  kCausalTopLeft = 1,      // key j visible to query i iff j <= i
  kCausalBottomRight = 2,  // key j visible to query i iff j <= i + N - M
};

// How fp32 products are formed. Ignored for other types.
enum class Precision : int32_t { kIeee = 0, kTf32 = 1 };

enum class Algorithm : int32_t {
  kStreaming = 0,  // online softmax; nothing of size M x N is ever written
  kThreeStep = 1,  // QK^T, row softmax, PV; materialises the weights
};

inline constexpr int32_t kMaxHeadDim = 256;

// A sliding window is unlimited on a side when its bound has this value.
inline constexpr int64_t kUnlimitedWindow = -1;

// Everything that must be equal for two requests to share one launch.
struct HeadConfig {
  DataType data_type = DataType::kFloat32;
  int32_t head_dim_qk = 0;       // 1...kMaxHeadDim
  int32_t head_dim_v = 0;        // 1...kMaxHeadDim
  int32_t query_head_count = 0;  // a multiple of kv_head_count
  int32_t kv_head_count = 0;
  MaskKind mask = MaskKind::kNone;
  Precision precision = Precision::kIeee;
  Algorithm algorithm = Algorithm::kStreaming;

  friend bool operator==(const HeadConfig&, const HeadConfig&) = default;

  template <typename H>
  friend H AbslHashValue(H h, const HeadConfig& c) {
    return H::combine(std::move(h), c.data_type, c.head_dim_qk, c.head_dim_v,
                      c.query_head_count, c.kv_head_count, c.mask, c.precision,
                      c.algorithm);
  }
};

// Distances in elements (not bytes). Any value is legal, 0 and a `dim` other
// than 1 too, as long as every element addressed lies inside the allocation.
struct TensorStrides {
  int64_t token = 0;
  int64_t head = 0;
  int64_t dim = 1;

  friend bool operator==(const TensorStrides&, const TensorStrides&) = default;
};

// One sequence of a ragged batch: M queries against N keys.
struct Sequence {
  const void* query = nullptr;  // [M, query_head_count, head_dim_qk]
  const void* key = nullptr;    // [N, kv_head_count, head_dim_qk]
  const void* value = nullptr;  // [N, kv_head_count, head_dim_v]
  void* output = nullptr;       // [M, query_head_count, head_dim_v], OutputType
  float* log_sum_exp = nullptr;  // [M, query_head_count], natural log; may be null
  void* weights = nullptr;  // [query_head_count, M, N] contiguous, in the data
                            // type; may be null; kThreeStep only

  TensorStrides query_strides;
  TensorStrides key_strides;
  TensorStrides value_strides;
  TensorStrides output_strides;
  int64_t log_sum_exp_token_stride = 0;  // elements
  int64_t log_sum_exp_head_stride = 0;   // elements

  int64_t query_length = 0;  // M; 0 is legal
  int64_t key_length = 0;    // N; 0 gives output 0 and log-sum-exp -inf

  double scale = 1.0;  // any finite value, 0 and negative too

  // kFloat8E4M3 only: what a stored element of each head is multiplied by to
  // get its value; finite and more than 0. In host memory; null: 1 for all.
  const float* query_scales = nullptr;  // [query_head_count]
  const float* key_scales = nullptr;    // [kv_head_count]
  const float* value_scales = nullptr;  // [kv_head_count]

  // Keys to the left and right of the diagonal that stay visible, or
  // kUnlimitedWindow. Causal masks act as if window_right were at most 0.
  int64_t window_left = kUnlimitedWindow;
  int64_t window_right = kUnlimitedWindow;
};

// One call: a ragged batch of sequences that share a head configuration.
struct AttentionParams {
  HeadConfig config;
  const Sequence* sequences = nullptr;  // [sequence_count], in host memory
  int64_t sequence_count = 0;           // 0 is legal
};

// Bytes of one element: 4, 2 or 1.
constexpr int64_t ElementBytes(DataType data_type) {
  switch (data_type) {
    case DataType::kFloat32: return 4;
    case DataType::kFloat16:
    case DataType::kBFloat16: return 2;
    case DataType::kFloat8E4M3: return 1;
  }
  return 0;
}

// That of a head, of scales as Sequence has them.
constexpr float HeadScale(const float* scales, int64_t head) {
  return scales == nullptr ? 1.0f : scales[head];
}

// The element type of output and weights.
constexpr DataType OutputType(DataType data_type) {
  return data_type == DataType::kFloat8E4M3 ? DataType::kBFloat16 : data_type;
}

}  // namespace attention

#endif  // ATTENTION_KERNELS_ATTENTION_PARAMS_H_
