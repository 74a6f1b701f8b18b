// Random requests, and the check of their answers against the reference.
//
// Tensors are laid out by code of its own, so that a mistake in the server's
// reading of layouts and strides shows. Memory between elements is NaN.
#ifndef ATTENTION_TESTS_SERVER_RPC_REQUEST_MAKER_H_
#define ATTENTION_TESTS_SERVER_RPC_REQUEST_MAKER_H_

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "attention/v1/attention.pb.h"
#include "kernels/attention_params.h"

namespace attention::test {

// How a tensor's elements lie in its payload.
enum class Placement {
  kContiguous,  // no strides given
  kGaps,        // room for one more slice in every dimension
  kTransposed,  // the first dimension is the innermost
  kExpanded,    // all heads are the same memory: stride 0
};

struct RequestSpec {
  DataType data_type = DataType::kFloat32;
  v1::Layout layout = v1::LAYOUT_BSHD;
  int64_t batch = 1;  // LAYOUT_THD: number of sequences
  int64_t query_tokens = 5;  // ignored for LAYOUT_THD
  int64_t key_tokens = 7;
  int64_t query_heads = 4;
  int64_t kv_heads = 2;
  int64_t head_dim_qk = 8;
  int64_t head_dim_v = 8;
  std::vector<int64_t> query_lengths;  // required for LAYOUT_THD
  std::vector<int64_t> key_lengths;
  Placement placement = Placement::kContiguous;
  v1::MaskType mask = v1::MASK_TYPE_UNSPECIFIED;
  std::optional<int64_t> window_left;
  std::optional<int64_t> window_right;
  std::optional<double> scale;
  v1::Algorithm algorithm = v1::ALGORITHM_UNSPECIFIED;
  bool return_log_sum_exp = false;
  bool return_weights = false;
  bool has_scales = false;  // of each head; kFloat8E4M3 only
};

std::string ToString(const RequestSpec& spec);

// Asks for all results that there are with the data type, and gives the scales
// that it takes.
void AskForEverything(RequestSpec& spec);

// Small, of any kind that the API allows, empty dimensions included.
RequestSpec RandomSpec(std::mt19937_64& random);

class RequestMaker {
 public:
  RequestMaker(const RequestSpec& spec, std::mt19937_64& random);

  const v1::ComputeAttentionRequest& request() const { return request_; }

  // Shapes, sizes, and every element: within the contract of comparison.h, 0 and
  // -infinity where there is padding.
  testing::AssertionResult Check(const v1::ComputeAttentionResponse& response) const;

 private:
  struct Tensor {
    std::vector<int64_t> sizes;
    std::vector<int64_t> strides;
    // Strides by meaning: batch, token, head, dim.
    std::array<int64_t, 4> by_meaning;
  };

  Tensor Place(int64_t tokens, int64_t heads, int64_t dim) const;
  std::string Fill(const Tensor& tensor, std::mt19937_64& random) const;
  DataType output_type() const { return OutputType(spec_.data_type); }
  HeadConfig config() const;
  int64_t QueryLength(int64_t b) const;
  int64_t KeyLength(int64_t b) const;
  testing::AssertionResult CheckShapes(
      const v1::ComputeAttentionResponse& response) const;
  testing::AssertionResult CheckPadding(
      const v1::ComputeAttentionResponse& response, int64_t b) const;

  RequestSpec spec_;
  int64_t query_tokens_ = 0;  // T for LAYOUT_THD
  int64_t key_tokens_ = 0;
  Tensor query_;
  Tensor key_;
  Tensor value_;
  v1::ComputeAttentionRequest request_;
};

}  // namespace attention::test

#endif  // ATTENTION_TESTS_SERVER_RPC_REQUEST_MAKER_H_
