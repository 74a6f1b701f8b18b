// Sequences with resident keys and values, in poisoned pages, and what is to
// come of them: a script of launches, each compared with the reference.
//
//   PagedProblem problem({.config = config}, backend);
//   const int64_t s = problem.Create();
//   ASSERT_TRUE(problem.Launch({{.sequence = s, .append = 300}}));
//   ASSERT_TRUE(problem.Launch({{.sequence = s, .append = 1, .queries = 1}}));
//
// Pages are taken in random order from memory that holds NaN wherever nothing
// has been appended; freed ones hold NaN again. Page table entries that a
// launch has no business with are null.
#ifndef ATTENTION_TESTS_SUPPORT_PAGED_PROBLEM_H_
#define ATTENTION_TESTS_SUPPORT_PAGED_PROBLEM_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/mask.h"
#include "kernels/paged_params.h"
#include "tests/support/attention_problem.h"
#include "tests/support/kernel_backend.h"

namespace attention::test {

struct PagedSpec {
  PagedConfig config;
  int64_t page_count = 64;  // of all sequences
  // Of queries, new keys and values, and results.
  Layout layout = Layout::kTokenMajor;
  Poison poison = Poison::kNan;
  bool log_sum_exp = true;
  int64_t misalignment = 0;
  bool exact_allocations = false;
  uint64_t seed = 1;
  // What does not change results: the order of pages, and what each byte of
  // them is where nothing has been written. 0xff makes every element NaN.
  uint64_t page_seed = 1;
  std::byte page_fill{0xff};
};

std::string ToString(const PagedSpec& spec);

// What one sequence does in a launch.
struct PagedStep {
  int64_t sequence = 0;
  int64_t append = 0;
  int64_t queries = 0;
  std::optional<double> scale = std::nullopt;  // 1 / sqrt(head_dim_qk) if unset
  int64_t window_left = kUnlimitedWindow;
  int64_t window_right = kUnlimitedWindow;
  int64_t sink_tokens = 0;
  std::optional<KeyRange> keys = std::nullopt;  // all if unset
};

class PagedProblem {
 public:
  PagedProblem(PagedSpec spec, KernelBackend& backend);

  PagedProblem(const PagedProblem&) = delete;
  PagedProblem& operator=(const PagedProblem&) = delete;

  // A new sequence: empty, or with the first `length` tokens of another, whose
  // pages it shares. A page that is shared and not full is copied when one of
  // its sequences appends.
  int64_t Create();
  int64_t Fork(int64_t sequence, int64_t length);
  void Truncate(int64_t sequence, int64_t length);
  // Frees the pages that have only tokens of [begin, end).
  void FreeTokens(int64_t sequence, KeyRange tokens);

  int64_t length(int64_t sequence) const { return sequences_[sequence].length; }
  // kFloat8E4M3 only.
  float value_scale(int64_t sequence, int64_t kv_head) const {
    return sequences_[sequence].value_scales[kv_head];
  }
  int64_t free_page_count() const {
    return static_cast<int64_t>(free_pages_.size());
  }

  // Appends and attends; steps of one sequence build upon each other. Fails if
  // the backend does, if results differ from the reference, or if anything but
  // results, pages that are appended to and copies was written.
  testing::AssertionResult Launch(std::vector<PagedStep> steps);

  // Steps of the last launch once more, alone and with the same tensors: tokens
  // are written again where they are already.
  testing::AssertionResult Repeat(int64_t first, int64_t count);

  // Of steps of the last launch. Results since the last ResetOutputs().
  std::vector<std::byte> OutputBits(int64_t step) const {
    return tensors_->OutputBits(step);
  }
  AttentionProblem& tensors() { return *tensors_; }
  const PagedSequence& paged(int64_t step) const { return paged_[step]; }

  // Changes the tensors of the next launch before it begins.
  using Change = std::function<void(AttentionProblem& tensors)>;
  void ChangeTensors(Change change) { change_ = std::move(change); }

 private:
  // Keys and values as pages give them back.
  struct History {
    int64_t length = 0;
    std::vector<int64_t> pages;  // kNoPage where freed
    std::vector<double> key;     // [length, kv_head_count, head_dim_qk]
    std::vector<double> value;   // [length, kv_head_count, head_dim_v]
    std::vector<float> key_scales;
    std::vector<float> value_scales;
  };
  static constexpr int64_t kNoPage = -1;

  int64_t TakePage();
  void ReleasePage(int64_t page);
  void* Address(int64_t page) const;
  void Prepare(const std::vector<PagedStep>& steps);
  void MakeRoom(History& history, int64_t append);
  void Remember(int64_t step);
  void BindStep(const PagedStep& step, int64_t index);
  testing::AssertionResult RunSteps(int64_t first, int64_t count);
  testing::AssertionResult StepMatchesReference(int64_t step) const;
  testing::AssertionResult OnlyThesePagesWritten(
      const std::vector<std::byte>& before) const;

  const PagedSpec spec_;
  KernelBackend& backend_;
  const int64_t page_bytes_;
  std::mt19937_64 random_;
  std::mt19937_64 page_random_;
  std::unique_ptr<PageMemory> memory_;
  std::vector<int64_t> free_pages_;
  std::vector<int64_t> references_;  // of each page
  std::vector<History> sequences_;
  Change change_;

  // The last launch.
  std::vector<PagedStep> steps_;
  std::unique_ptr<AttentionProblem> tensors_;
  std::vector<PagedSequence> paged_;
  std::vector<std::vector<void*>> tables_;  // of each step
  std::vector<PageCopy> copies_;
  std::vector<bool> written_;  // of each page
};

}  // namespace attention::test

#endif  // ATTENTION_TESTS_SUPPORT_PAGED_PROBLEM_H_
