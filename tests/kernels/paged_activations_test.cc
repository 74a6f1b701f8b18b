// A real language model's queries, keys and values, token by token: the outputs
// of decoding must be those that NumPy computed for the whole prompt.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "kernels/float_convert.h"
#include "tests/support/activations.h"
#include "tests/support/comparison.h"
#include "tests/support/kernel_backend.h"
#include "tests/support/paged_problem.h"

namespace attention::test {
namespace {

class PagedActivationsTest : public KernelTest {
 protected:
  void SetUp() override {
    KernelTest::SetUp();
    if (IsSkipped()) return;
    auto activations = LoadActivations(kActivationsSample);
    ASSERT_TRUE(activations.ok()) << activations.status();
    activations_ = *std::move(activations);
  }

  // Tokens [begin, end) in one launch, compared with the known answer.
  void Step(PagedProblem& problem, int64_t sequence, int64_t begin,
            int64_t end) {
    const HeadConfig& c = activations_->config;
    const Sequence& s = activations_->sequence;
    const auto copy = [&](AttentionProblem& tensors, TensorRole role,
                          const void* from, const TensorStrides& strides,
                          int32_t heads, int32_t dims) {
      for (int64_t i = begin; i < end; ++i) {
        for (int32_t h = 0; h < heads; ++h) {
          for (int32_t d = 0; d < dims; ++d) {
            tensors.Set(role, 0, i - begin, h, d,
                        LoadAsFloat(c.data_type, from,
                                    i * strides.token + h * strides.head +
                                        d * strides.dim));
          }
        }
      }
    };
    problem.ChangeTensors([&](AttentionProblem& tensors) {
      copy(tensors, TensorRole::kQuery, s.query, s.query_strides,
           c.query_head_count, c.head_dim_qk);
      copy(tensors, TensorRole::kKey, s.key, s.key_strides, c.kv_head_count,
           c.head_dim_qk);
      copy(tensors, TensorRole::kValue, s.value, s.value_strides,
           c.kv_head_count, c.head_dim_v);
    });
    ASSERT_TRUE(problem.Launch({{.sequence = sequence,
                                 .append = end - begin,
                                 .queries = end - begin,
                                 .scale = s.scale}}));
    const Tolerance tolerance = ContractTolerance(c, s, activations_->want);
    for (int64_t i = begin; i < end; ++i) {
      for (int32_t h = 0; h < c.query_head_count; ++h) {
        for (int32_t d = 0; d < c.head_dim_v; ++d) {
          const int64_t row = i * c.query_head_count + h;
          ASSERT_NEAR(
              problem.tensors().Get(TensorRole::kOutput, 0, i - begin, h, d),
              activations_->want.output[row * c.head_dim_v + d],
              tolerance.output)
              << "token " << i << " head " << h << " dim " << d;
        }
      }
    }
  }

  PagedSpec Spec(int32_t page_tokens) const {
    PagedSpec spec;
    spec.config.heads = activations_->config;
    spec.config.heads.mask = MaskKind::kCausalBottomRight;
    spec.config.page_tokens = page_tokens;
    spec.page_count =
        PagesFor(spec.config, activations_->sequence.key_length) + 1;
    spec.seed = RunSeed();
    return spec;
  }

  std::unique_ptr<Activations> activations_;
};

TEST_P(PagedActivationsTest, PrefillThenDecode) {
  const int64_t tokens = activations_->sequence.key_length;
  for (int32_t page_tokens : {16, 64}) {
    PagedProblem problem(Spec(page_tokens), backend());
    const int64_t s = problem.Create();
    const int64_t decoded = std::min<int64_t>(tokens / 2, 12);
    ASSERT_NO_FATAL_FAILURE(Step(problem, s, 0, tokens - decoded));
    for (int64_t token = tokens - decoded; token < tokens; ++token) {
      ASSERT_NO_FATAL_FAILURE(Step(problem, s, token, token + 1));
    }
  }
}

TEST_P(PagedActivationsTest, PrefillInChunks) {
  const int64_t tokens = activations_->sequence.key_length;
  PagedProblem problem(Spec(16), backend());
  const int64_t s = problem.Create();
  for (int64_t begin = 0; begin < tokens; begin += 23) {
    ASSERT_NO_FATAL_FAILURE(
        Step(problem, s, begin, std::min(begin + 23, tokens)));
  }
}

INSTANTIATE_FOR_BACKENDS(PagedActivationsTest);

}  // namespace
}  // namespace attention::test
