#include "tests/support/paged_problem.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/validation.h"
#include "tests/support/comparison.h"

namespace attention::test {
namespace {

bool IsFloat8(const PagedConfig& config) {
  return config.kv_data_type == KvDataType::kFloat8E4M3;
}

}  // namespace

std::string ToString(const PagedSpec& spec) {
  return absl::StrCat(attention::ToString(spec.config), " ",
                      ToString(spec.layout), " misalignment ",
                      spec.misalignment, " seed ", spec.seed);
}

PagedProblem::PagedProblem(PagedSpec spec, KernelBackend& backend)
    : spec_(std::move(spec)),
      backend_(backend),
      page_bytes_((PageBytes(spec_.config) + 255) / 256 * 256),
      random_(spec_.seed),
      page_random_(spec_.page_seed),
      memory_(*backend_.AllocatePages(spec_.page_count * page_bytes_)),
      free_pages_(spec_.page_count),
      references_(spec_.page_count, 0) {
  std::iota(free_pages_.begin(), free_pages_.end(), 0);
  std::shuffle(free_pages_.begin(), free_pages_.end(), page_random_);
  const absl::Status status =
      memory_->Fill(0, spec_.page_count * page_bytes_, spec_.page_fill);
  if (!status.ok()) ADD_FAILURE() << status;
}

int64_t PagedProblem::Create() {
  History history;
  if (IsFloat8(spec_.config)) {
    // Standard normal values reach the largest fp8 number now and then.
    std::uniform_real_distribution<float> scale(0.005f, 0.05f);
    for (int32_t i = 0; i < spec_.config.heads.kv_head_count; ++i) {
      history.key_scales.push_back(scale(random_));
      history.value_scales.push_back(scale(random_));
    }
  }
  sequences_.push_back(std::move(history));
  return static_cast<int64_t>(sequences_.size()) - 1;
}

int64_t PagedProblem::Fork(int64_t sequence, int64_t length) {
  sequences_.push_back(sequences_[sequence]);
  for (int64_t page : sequences_.back().pages) {
    if (page != kNoPage) ++references_[page];
  }
  const int64_t fork = static_cast<int64_t>(sequences_.size()) - 1;
  Truncate(fork, length);
  return fork;
}

void PagedProblem::Truncate(int64_t sequence, int64_t length) {
  const HeadConfig& c = spec_.config.heads;
  History& history = sequences_[sequence];
  history.length = length;
  history.key.resize(length * c.kv_head_count * c.head_dim_qk);
  history.value.resize(length * c.kv_head_count * c.head_dim_v);
  while (std::ssize(history.pages) > PagesFor(spec_.config, length)) {
    ReleasePage(history.pages.back());
    history.pages.pop_back();
  }
}

void PagedProblem::FreeTokens(int64_t sequence, KeyRange tokens) {
  const int64_t page_tokens = spec_.config.page_tokens;
  History& history = sequences_[sequence];
  for (int64_t p = PagesFor(spec_.config, tokens.begin);
       p < tokens.end / page_tokens; ++p) {
    ReleasePage(history.pages[p]);
    history.pages[p] = kNoPage;
  }
}

int64_t PagedProblem::TakePage() {
  const int64_t page = free_pages_.back();
  free_pages_.pop_back();
  references_[page] = 1;
  return page;
}

void PagedProblem::ReleasePage(int64_t page) {
  if (page == kNoPage || --references_[page] > 0) return;
  const absl::Status status =
      memory_->Fill(page * page_bytes_, page_bytes_, spec_.page_fill);
  if (!status.ok()) ADD_FAILURE() << status;
  free_pages_.insert(
      free_pages_.begin() + std::uniform_int_distribution<size_t>(
                                0, free_pages_.size())(page_random_),
      page);
}

void* PagedProblem::Address(int64_t page) const {
  return page == kNoPage ? nullptr : memory_->data() + page * page_bytes_;
}

// Pages for tokens after the last; those of a shared page go to a copy of it.
void PagedProblem::MakeRoom(History& history, int64_t append) {
  if (append == 0) return;
  const int64_t page_tokens = spec_.config.page_tokens;
  if (history.length % page_tokens != 0) {
    int64_t& last = history.pages.back();
    if (references_[last] > 1) {
      const int64_t copy = TakePage();
      copies_.push_back({Address(last), Address(copy)});
      written_[copy] = true;
      ReleasePage(last);
      last = copy;
    }
    written_[last] = true;
  }
  while (std::ssize(history.pages) <
         PagesFor(spec_.config, history.length + append)) {
    history.pages.push_back(TakePage());
    written_[history.pages.back()] = true;
  }
}

// The step's new keys and values become a part of the history.
void PagedProblem::Remember(int64_t step) {
  const HeadConfig& c = spec_.config.heads;
  History& history = sequences_[steps_[step].sequence];
  const auto remember = [&](TensorRole role, int64_t dims,
                            const std::vector<float>& scales,
                            std::vector<double>& to) {
    for (int64_t token = 0; token < steps_[step].append; ++token) {
      for (int64_t head = 0; head < c.kv_head_count; ++head) {
        const float scale = scales.empty() ? 1.0f : scales[head];
        for (int64_t d = 0; d < dims; ++d) {
          to.push_back(reference::StoredElement(
              spec_.config, tensors_->Get(role, step, token, head, d), scale));
        }
      }
    }
  };
  remember(TensorRole::kKey, c.head_dim_qk, history.key_scales, history.key);
  remember(TensorRole::kValue, c.head_dim_v, history.value_scales,
           history.value);
  history.length += steps_[step].append;
}

void PagedProblem::BindStep(const PagedStep& step, int64_t index) {
  const History& history = sequences_[step.sequence];
  const Sequence& tensors = tensors_->sequence(index);
  PagedSequence s;
  s.query = tensors.query;
  s.output = tensors.output;
  s.log_sum_exp = tensors.log_sum_exp;
  s.query_strides = tensors.query_strides;
  s.output_strides = tensors.output_strides;
  s.log_sum_exp_token_stride = tensors.log_sum_exp_token_stride;
  s.log_sum_exp_head_stride = tensors.log_sum_exp_head_stride;
  s.query_length = step.queries;
  s.new_key = tensors.key;
  s.new_value = tensors.value;
  s.new_key_strides = tensors.key_strides;
  s.new_value_strides = tensors.value_strides;
  s.append_length = step.append;
  s.key_length = history.length;
  const KeyRange keys = step.keys.value_or(KeyRange{0, s.key_length});
  s.key_begin = keys.begin;
  s.key_end = keys.end;
  s.scale = tensors.scale;
  s.window_left = step.window_left;
  s.window_right = step.window_right;
  s.sink_tokens = step.sink_tokens;
  if (IsFloat8(spec_.config)) {
    s.key_scales = history.key_scales.data();
    s.value_scales = history.value_scales.data();
  }

  std::vector<void*>& table = tables_[index];
  table.assign(PagesFor(spec_.config, s.key_length), nullptr);
  const auto fill = [&](KeyRange tokens) {
    for (int64_t token = tokens.begin; token < tokens.end;) {
      const int64_t page = token / spec_.config.page_tokens;
      table[page] = Address(history.pages[page]);
      token = (page + 1) * spec_.config.page_tokens;
    }
  };
  fill({s.key_length - s.append_length, s.key_length});
  if (s.query_length > 0) {
    const SinkMask mask = MakeSinkMask(spec_.config.heads.mask, s);
    fill(mask.sinks.VisibleKeys(0, s.query_length - 1));
    fill(mask.window.VisibleKeys(0, s.query_length - 1));
  }
  s.pages = table.data();
  paged_.push_back(s);
}

void PagedProblem::Prepare(const std::vector<PagedStep>& steps) {
  steps_ = steps;
  ProblemSpec spec = {.config = spec_.config.heads,
                      .layout = spec_.layout,
                      .poison = spec_.poison,
                      .log_sum_exp = spec_.log_sum_exp,
                      .misalignment = spec_.misalignment,
                      .exact_allocations = spec_.exact_allocations,
                      .seed = random_()};
  for (const PagedStep& step : steps) {
    spec.sequences.push_back({step.queries, step.append, step.scale});
  }
  tensors_ = std::make_unique<AttentionProblem>(std::move(spec));
  if (change_) std::exchange(change_, nullptr)(*tensors_);

  paged_.clear();
  copies_.clear();
  tables_.assign(steps.size(), {});
  written_.assign(spec_.page_count, false);
  // All pages before any table: a copy would leave the ones before it behind.
  std::vector<int64_t> appended(sequences_.size(), 0);
  for (const PagedStep& step : steps) appended[step.sequence] += step.append;
  for (size_t i = 0; i < sequences_.size(); ++i) {
    MakeRoom(sequences_[i], appended[i]);
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    Remember(static_cast<int64_t>(i));
    BindStep(steps[i], static_cast<int64_t>(i));
  }
}

testing::AssertionResult PagedProblem::Launch(std::vector<PagedStep> steps) {
  Prepare(steps);
  auto before = memory_->Read();
  if (!before.ok()) return testing::AssertionFailure() << before.status();
  if (auto result = RunSteps(0, std::ssize(steps_)); !result) return result;
  if (auto result = OnlyThesePagesWritten(*before); !result) return result;
  copies_.clear();  // not again by Repeat()
  for (int64_t i = 0; i < std::ssize(steps_); ++i) {
    if (auto result = StepMatchesReference(i); !result) {
      const PagedSequence& s = paged_[i];
      return testing::AssertionFailure()
             << "step " << i << ", " << s.append_length << " appended, "
             << s.query_length << "x" << s.key_length << "[" << s.window_left
             << "," << s.window_right << "] sinks " << s.sink_tokens
             << " keys [" << s.key_begin << "," << s.key_end << ") scale "
             << s.scale << ": " << result.message() << "\n  in "
             << ToString(spec_);
    }
  }
  return testing::AssertionSuccess();
}

testing::AssertionResult PagedProblem::Repeat(int64_t first, int64_t count) {
  return RunSteps(first, count);
}

testing::AssertionResult PagedProblem::StepMatchesReference(
    int64_t step) const {
  if (steps_[step].queries == 0) return testing::AssertionSuccess();
  const HeadConfig& c = spec_.config.heads;
  const History& history = sequences_[steps_[step].sequence];
  const int64_t rows = paged_[step].key_length * c.kv_head_count;
  const auto dense = reference::MakeDense(
      spec_.config, paged_[step],
      {history.key.begin(), history.key.begin() + rows * c.head_dim_qk},
      {history.value.begin(), history.value.begin() + rows * c.head_dim_v});
  const auto want = reference::ComputeAttention(c, dense, true);
  return Matches(c, tensors_->sequence(step), want,
                 ContractTolerance(c, dense, want));
}

testing::AssertionResult PagedProblem::RunSteps(int64_t first, int64_t count) {
  tensors_->ResetOutputs();
  const absl::Status status =
      backend_.ComputePaged({.config = spec_.config,
                             .sequences = paged_.data() + first,
                             .sequence_count = count,
                             .copies = copies_.data(),
                             .copy_count = std::ssize(copies_)},
                            tensors_->buffers());
  if (!status.ok()) {
    return testing::AssertionFailure()
           << status << "\n  in " << ToString(spec_);
  }
  if (count == std::ssize(steps_)) {
    if (auto result = tensors_->OnlyOutputsWritten(); !result) {
      return result << "\n  in " << ToString(spec_);
    }
  }
  return testing::AssertionSuccess();
}

testing::AssertionResult PagedProblem::OnlyThesePagesWritten(
    const std::vector<std::byte>& before) const {
  auto after = memory_->Read();
  if (!after.ok()) return testing::AssertionFailure() << after.status();
  for (int64_t page = 0; page < spec_.page_count; ++page) {
    if (written_[page]) continue;
    if (std::memcmp(before.data() + page * page_bytes_,
                    after->data() + page * page_bytes_, page_bytes_) != 0) {
      return testing::AssertionFailure()
             << "page " << page
             << ", which has no new tokens, was written\n  in "
             << ToString(spec_);
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace attention::test
