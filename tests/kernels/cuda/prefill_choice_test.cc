// Which sequences the sm_90 prefill kernels take, and that the portable kernels
// compute the others of the same batch.
#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/cuda/sm90/prefill.h"
#include "tests/kernels/cuda/prefill_fixture.h"
#include "tests/support/comparison.h"

namespace attention::test {
namespace {

using cuda::sm90::CanCompute;

// Needs no device.
class PrefillChoiceTest : public testing::TestWithParam<DataType> {
 protected:
  PrefillChoiceTest() : config_(Heads(GetParam(), {64, 32}, 4, 2)) {
    if (cuda::sm90::KernelFor(config_, s_) == nullptr) is_missing_ = true;
    static constexpr TensorStrides kWide = {.token = 1024, .head = 64};
    s_.query = s_.key = s_.value = memory_;
    s_.output = memory_;
    s_.query_strides = s_.key_strides = s_.value_strides = s_.output_strides =
        kWide;
    s_.query_length = 10;
    s_.key_length = 20;
    s_.scale = 0.1;
  }
  void SetUp() override {
    if (is_missing_) GTEST_SKIP() << "built without code for sm_90a";
  }

  HeadConfig config_;
  Sequence s_;
  alignas(256) char memory_[512];
  bool is_missing_ = false;
};

TEST_P(PrefillChoiceTest, MappableSequences) {
  EXPECT_TRUE(CanCompute(config_, s_));
  s_.query_strides = {.token = 64, .head = 640};  // head-major
  EXPECT_TRUE(CanCompute(config_, s_));
  s_.query = memory_ + 16;
  s_.query_strides.token = 72;
  EXPECT_TRUE(CanCompute(config_, s_));
  // A single token's, or a single head's, has nothing to be a stride to.
  s_.query_length = 1;
  s_.query_strides.token = 3;
  EXPECT_TRUE(CanCompute(config_, s_));
  config_.query_head_count = config_.kv_head_count = 1;
  s_.key_strides.head = 0;
  EXPECT_TRUE(CanCompute(config_, s_));
}

TEST_P(PrefillChoiceTest, HeadDimensionsOfWholeUnits) {
  for (int32_t dim : {1, 7, 36, 63, 100, 255}) {
    HeadConfig config = config_;
    config.head_dim_qk = dim;
    EXPECT_FALSE(CanCompute(config, s_)) << dim;
    config = config_;
    config.head_dim_v = dim;
    EXPECT_FALSE(CanCompute(config, s_)) << dim;
  }
}

TEST_P(PrefillChoiceTest, Addresses) {
  for (const void* Sequence::*tensor :
       {&Sequence::query, &Sequence::key, &Sequence::value}) {
    for (int offset : {2, 4, 8, 14}) {
      Sequence s = s_;
      s.*tensor = memory_ + offset;
      EXPECT_FALSE(CanCompute(config_, s)) << offset;
    }
  }
  s_.output = memory_ + 8;
  EXPECT_FALSE(CanCompute(config_, s_));
}

TEST_P(PrefillChoiceTest, Strides) {
  for (TensorStrides Sequence::*strides :
       {&Sequence::query_strides, &Sequence::key_strides,
        &Sequence::value_strides, &Sequence::output_strides}) {
    for (int64_t stride : {int64_t{0}, int64_t{-64}, int64_t{65}, int64_t{68},
                           int64_t{1} << 40}) {
      Sequence s = s_;
      (s.*strides).token = stride;
      EXPECT_FALSE(CanCompute(config_, s)) << stride;
      s = s_;
      (s.*strides).head = stride;
      EXPECT_FALSE(CanCompute(config_, s)) << stride;
    }
    for (int64_t stride : {0, 2, -1}) {
      Sequence s = s_;
      (s.*strides).dim = stride;
      EXPECT_FALSE(CanCompute(config_, s)) << stride;
    }
  }
}

TEST_P(PrefillChoiceTest, Scales) {
  for (double scale : {0.0, -0.1, -1e-40, 1e-40, 1e31}) {
    s_.scale = scale;
    EXPECT_FALSE(CanCompute(config_, s_)) << scale;
  }
}

TEST_P(PrefillChoiceTest, Lengths) {
  for (int64_t length : {int64_t{0}, int64_t{1} << 29, int64_t{1} << 40}) {
    Sequence s = s_;
    s.key_length = length;
    EXPECT_FALSE(CanCompute(config_, s)) << length;
    s = s_;
    s.query_length = length;
    EXPECT_FALSE(CanCompute(config_, s)) << length;
  }
}

TEST_P(PrefillChoiceTest, SmallTilesForShortCausalSequences) {
  const auto block_m = [&] {
    return cuda::sm90::KernelFor(config_, s_)->block_m;
  };
  config_.mask = MaskKind::kCausalBottomRight;
  s_.query_length = 512;  // rows of two heads each
  s_.key_length = 1024;
  EXPECT_EQ(block_m(), 128);
  s_.query_length = 513;
  EXPECT_EQ(block_m(), 192);
  s_.query_length = 512;
  s_.key_length = 1025;
  EXPECT_EQ(block_m(), 192);
  s_.key_length = 1024;
  config_.mask = MaskKind::kNone;
  EXPECT_EQ(block_m(), 192);
}

INSTANTIATE_TEST_SUITE_P(Types, PrefillChoiceTest,
                         testing::ValuesIn(kPrefillTypes));

class MixedBatchTest : public PrefillTest {
 protected:
  // Computes and waits.
  static void Launch(const Implementation& implementation,
                     const AttentionParams& params) {
    DeviceScratch scratch;
    ASSERT_EQ(scratch.Allocate(implementation.scratch_size(params)),
              absl::OkStatus());
    ASSERT_EQ(implementation.launch(params, scratch.get(), nullptr),
              cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
};

TEST_P(MixedBatchTest, EachSequenceByTheKernelsThatSuitIt) {
  for (DataType type : kPrefillTypes) {
    for (HeadDims dims : kKernelDims) {
      const HeadConfig config = Heads(type, dims, 2, 1, Pick(kMasks));
      std::vector<SequenceSpec> sequences = {
          {150, 170}, {0, 40},  {40, 0},       {90, 90, -0.2}, {0, 0},
          {1, 70},    {70, 90}, {33, 90, 0.0}, {20, 1500},     {70, 3100}};
      ProblemSpec spec{
          .config = config, .sequences = sequences, .seed = random()()};
      AttentionProblem aligned(spec);
      spec.misalignment = 3;
      spec.seed = random()();
      AttentionProblem misaligned(spec);
      AttentionProblem* const problems[] = {&aligned, &misaligned};
      DeviceProblem devices[] = {DeviceProblem(aligned),
                                 DeviceProblem(misaligned)};

      // All in one batch, in turns.
      std::vector<Sequence> all;
      for (size_t i = 0; i < sequences.size(); ++i) {
        for (const DeviceProblem& device : devices) {
          all.push_back(device.params().sequences[i]);
        }
      }
      ASSERT_NO_FATAL_FAILURE(
          Launch(kAny, {config, all.data(), static_cast<int64_t>(all.size())}));
      std::vector<Bits> together[2];
      for (int p : {0, 1}) {
        ASSERT_NO_FATAL_FAILURE(devices[p].CopyOut());
        EXPECT_TRUE(problems[p]->OnlyOutputsWritten());
        EXPECT_TRUE(MatchesReference(*problems[p]));
        together[p] = AllBits(*problems[p]);
      }

      // Each alone, by the kernels that it should have had.
      int prefill_count = 0;
      int different_count = 0;
      for (int p : {0, 1}) {
        for (size_t i = 0; i < sequences.size(); ++i) {
          const Sequence& s = devices[p].params().sequences[i];
          const bool suits = CanCompute(config, s);
          EXPECT_EQ(suits, p == 0 && s.query_length > 0 && s.key_length > 0 &&
                               s.scale > 0);
          prefill_count += suits;
          const auto bits_by = [&](const Implementation& implementation) {
            problems[p]->ResetOutputs();
            devices[p].CopyIn();
            Launch(implementation, {config, &s, 1});
            devices[p].CopyOut();
            return problems[p]->OutputBits(static_cast<int64_t>(i));
          };
          EXPECT_TRUE(bits_by(suits ? kPrefill : kPortable) == together[p][i])
              << "sequence " << i << " of " << ToString(problems[p]->spec());
          if (suits && bits_by(kPortable) != together[p][i]) ++different_count;
        }
      }
      EXPECT_EQ(prefill_count, 5);
      // Or the comparison says nothing of who computed.
      EXPECT_GT(different_count, 0);
    }
  }
}

INSTANTIATE_FOR_CUDA(MixedBatchTest);

}  // namespace
}  // namespace attention::test
