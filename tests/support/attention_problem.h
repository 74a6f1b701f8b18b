// Random attention problems, laid out in poisoned memory.
//
// A problem owns its tensors. All memory that a kernel may read but has no
// business with (gaps between rows, space around tensors) holds NaN, and all
// that it may not write holds a canary, so that a leak or a stray write shows.
//
//   AttentionProblem problem({.config = config, .sequences = {{64, 128}}});
//   backend.Compute(problem.params(), problem.buffers());
//   EXPECT_TRUE(problem.OnlyOutputsWritten());
//   EXPECT_TRUE(MatchesReference(problem));   // comparison.h
#ifndef ATTENTION_TESTS_SUPPORT_ATTENTION_PROBLEM_H_
#define ATTENTION_TESTS_SUPPORT_ATTENTION_PROBLEM_H_

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/attention_params.h"
#include "tests/support/layout.h"

namespace attention::test {

// What unused input memory holds.
enum class Poison { kNan, kInfinity, kZero };

// Scales of the heads of fp8 tensors.
enum class HeadScales {
  kNone,
  kDrawn,    // other ones for each tensor, head and sequence
  kExtreme,  // the same, far from 1; those of query and key make up for it
};

struct SequenceSpec {
  int64_t query_length = 0;
  int64_t key_length = 0;
  std::optional<double> scale = std::nullopt;  // 1 / sqrt(head_dim_qk) if unset
  int64_t window_left = kUnlimitedWindow;
  int64_t window_right = kUnlimitedWindow;
};

struct ProblemSpec {
  HeadConfig config;
  std::vector<SequenceSpec> sequences;
  Layout layout = Layout::kTokenMajor;
  Poison poison = Poison::kNan;
  bool log_sum_exp = true;
  bool weights = false;
  HeadScales scales = HeadScales::kDrawn;
  // Elements by which tensors miss a 256-byte boundary.
  int64_t misalignment = 0;
  // One allocation per tensor, as small as can be, for memory checkers;
  // otherwise all tensors are neighbours, with poisoned space between them.
  bool exact_allocations = false;
  uint64_t seed = 1;
};

std::string ToString(const ProblemSpec& spec);

enum class TensorRole { kQuery, kKey, kValue, kOutput, kLogSumExp, kWeights };

// Memory that tensors live in; backends copy it to their device and, if
// writable, back.
struct Buffer {
  std::vector<std::byte> bytes;
  bool writable = false;
};

class AttentionProblem {
 public:
  // Draws standard normal values for query, key and value, and scales if they
  // are fp8. Those of a sequence depend on the seed and its index only, not on
  // layout or poison.
  explicit AttentionProblem(ProblemSpec spec);

  AttentionProblem(const AttentionProblem&) = delete;
  AttentionProblem& operator=(const AttentionProblem&) = delete;

  const ProblemSpec& spec() const { return spec_; }
  std::span<Buffer> buffers() { return buffers_; }

  // All sequences, or `count` of them from `first` on.
  AttentionParams params() const;
  AttentionParams params(int64_t first, int64_t count) const;
  const Sequence& sequence(int64_t index) const { return sequences_[index]; }

  // One element of query, key, value or output: its value, not what is stored
  // of it where its head has a scale.
  float Get(TensorRole role, int64_t sequence, int64_t token, int64_t head,
            int64_t dim) const;
  void Set(TensorRole role, int64_t sequence, int64_t token, int64_t head,
           int64_t dim, float value);
  // Every element of one tensor.
  void Fill(TensorRole role, int64_t sequence, float value);

  // Fills all output memory with the canary.
  void ResetOutputs();

  // That every output element was written since ResetOutputs(), nothing else
  // was, and inputs are as this object left them.
  testing::AssertionResult OnlyOutputsWritten() const;

  // Output, log-sum-exp and weights of a sequence without gaps, to compare
  // bit by bit.
  std::vector<std::byte> OutputBits(int64_t sequence) const;

 private:
  struct Tensor {
    TensorRole role;
    int64_t sequence;
    int64_t tokens, heads, dims;  // weights: tokens = M, heads = Hq, dims = N
    TensorStrides strides;
    int64_t origin;  // elements from the start of its memory to element (0,0,0)
    int64_t extent;  // elements of its memory
    DataType type;
    size_t buffer = 0;
    size_t offset = 0;  // bytes
  };

  void PlanSequence(int64_t index);
  void Plan(TensorRole role, int64_t sequence, int64_t tokens, int64_t heads,
            int64_t dims, Layout layout);
  void PlanPacked(int64_t sequence);
  void Allocate();
  void Bind();
  void DrawScales(int64_t sequence);
  void Draw();
  const Tensor& Find(TensorRole role, int64_t sequence) const;
  std::byte* Element(const Tensor& tensor, int64_t token, int64_t head,
                     int64_t dim) const;
  float Scale(const Tensor& tensor, int64_t head) const;
  template <typename Visitor>
  void VisitElements(const Tensor& tensor, Visitor visit) const;

  ProblemSpec spec_;
  std::vector<Tensor> tensors_;
  std::vector<size_t> first_tensor_;  // of each sequence, in tensors_
  std::vector<Sequence> sequences_;
  // Of each sequence: query, key and value.
  std::vector<std::array<std::vector<float>, 3>> scales_;
  std::vector<Buffer> buffers_;
  std::vector<std::vector<std::byte>> input_copies_;  // parallel to buffers_
};

}  // namespace attention::test

#endif  // ATTENTION_TESTS_SUPPORT_ATTENTION_PROBLEM_H_
