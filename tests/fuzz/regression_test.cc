// The fuzz targets without a fuzzer: the seeds are what they say, and no random
// change of one breaks a property.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/support/kernel_backend.h"

namespace attention::test {
namespace {

class FuzzRegressionTest : public ::testing::TestWithParam<FuzzTarget> {
 protected:
  FuzzRegressionTest()
      : random_(RunSeed()),
        trace_(__FILE__, __LINE__,
               absl::StrCat("repeat with --gtest_random_seed=", RunSeed())) {}

  size_t Draw(size_t low, size_t high) {
    return std::uniform_int_distribution<size_t>(low, high)(random_);
  }

  // One change of the kinds that libFuzzer makes.
  void Mutate(std::string& input, const std::string& other) {
    const size_t at = input.empty() ? 0 : Draw(0, input.size() - 1);
    switch (Draw(0, input.empty() ? 1 : 6)) {
      case 0: input.insert(at, 1, static_cast<char>(Draw(0, 255))); break;
      case 1: {  // a piece of another input
        const size_t from = Draw(0, other.size());
        input.insert(at, other, from, Draw(0, other.size() - from));
        break;
      }
      case 2: input[at] ^= static_cast<char>(1 << Draw(0, 7)); break;
      case 3: input[at] = static_cast<char>(Draw(0, 255)); break;
      case 4: input.erase(at, Draw(1, 8)); break;
      case 5: input.resize(at); break;
      default: input.insert(at, input.substr(at, Draw(1, 16)));
    }
  }

  std::mt19937_64 random_;
  testing::ScopedTrace trace_;
};

TEST_P(FuzzRegressionTest, SeedsAreWhatTheySay) {
  for (const Seed& seed : GetParam().seeds()) {
    const absl::StatusOr<bool> accepted = GetParam().run(seed.input);
    ASSERT_TRUE(accepted.ok()) << seed.name << ": " << accepted.status();
    EXPECT_EQ(*accepted, seed.accepted) << seed.name;
  }
}

TEST_P(FuzzRegressionTest, ChangedSeedsBreakNoProperty) {
  const std::vector<Seed> seeds = GetParam().seeds();
  int accepted_count = 0;
  constexpr int kRounds = 40'000;
  for (int i = 0; i < kRounds; ++i) {
    std::string input = seeds[Draw(0, seeds.size() - 1)].input;
    const std::string& other = seeds[Draw(0, seeds.size() - 1)].input;
    for (size_t count = Draw(1, 4); count > 0; --count) Mutate(input, other);
    const absl::StatusOr<bool> accepted = GetParam().run(input);
    ASSERT_TRUE(accepted.ok())
        << accepted.status() << "\ninput: " << absl::CHexEscape(input);
    accepted_count += *accepted;
  }
  // Both happen, or the test tests nothing.
  EXPECT_GT(accepted_count, 20);
  EXPECT_LT(accepted_count, kRounds - 20);
}

INSTANTIATE_TEST_SUITE_P(
    Targets, FuzzRegressionTest,
    ::testing::Values(kRequestTarget, kSafetensorsTarget, kSessionTarget,
                      kStreamTarget),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace attention::test
