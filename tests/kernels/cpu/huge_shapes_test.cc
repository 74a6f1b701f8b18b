// Shapes far larger than their tensors, which strides of 0 make possible: what
// a computation takes beside the tensors must not grow with them.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "absl/base/config.h"
#include "kernels/cpu/attention_cpu.h"
#include "kernels/cpu/thread_pool.h"

namespace attention::cpu {
namespace {

constexpr int64_t kMib = int64_t{1} << 20;
constexpr int kThreads = 2;

#if defined(ABSL_HAVE_THREAD_SANITIZER)
constexpr int64_t kMaxPeakBytes = 64 * kMib;  // shadow memory of the results
#else
constexpr int64_t kMaxPeakBytes = 16 * kMib;
#endif

int64_t StatusKib(const std::string& field) {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.rfind(field + ":", 0) == 0) {
      return std::atoll(line.c_str() + field.size() + 1);
    }
  }
  ADD_FAILURE() << field << " is not in /proc/self/status";
  return 0;
}

// Most memory that the process has held above what it held at the start.
class PeakMemory {
 public:
  PeakMemory() {
    std::ofstream("/proc/self/clear_refs") << "5";  // the peak becomes the rest
    start_kib_ = StatusKib("VmHWM");
    EXPECT_LE(start_kib_, StatusKib("VmRSS") + 1024)
        << "an earlier peak would hide a later one";
  }
  int64_t bytes() const { return (StatusKib("VmHWM") - start_kib_) * 1024; }

 private:
  int64_t start_kib_;
};

// One query, key and value element, whatever the lengths and heads.
constexpr float kQuery = 0.5f;
constexpr float kKey = 3.0f;
constexpr float kValue = 7.0f;

HeadConfig Config(Algorithm algorithm, int32_t heads = 1) {
  return {.head_dim_qk = 1,
          .head_dim_v = 1,
          .query_head_count = heads,
          .kv_head_count = heads,
          .algorithm = algorithm};
}

Sequence Repeated(int64_t queries, int64_t keys) {
  Sequence s;
  s.query = &kQuery;
  s.key = &kKey;
  s.value = &kValue;
  s.query_strides = s.key_strides = s.value_strides = {0, 0, 1};
  s.query_length = queries;
  s.key_length = keys;
  return s;
}

class HugeShapesTest : public testing::TestWithParam<Algorithm> {
 protected:
  ThreadPool pool_{kThreads};
};

TEST_P(HugeShapesTest, ManyKeys) {
  constexpr int64_t kKeys = 4'000'000;
  float output = 0;
  float log_sum_exp = 0;
  Sequence s = Repeated(1, kKeys);
  s.output = &output;
  s.log_sum_exp = &log_sum_exp;
  const PeakMemory peak;
  ASSERT_TRUE(ComputeAttention({Config(GetParam()), &s, 1}, pool_).ok());
  EXPECT_LT(peak.bytes(), kMaxPeakBytes);
  EXPECT_NEAR(output, kValue, 1e-5 * kValue);
  EXPECT_NEAR(log_sum_exp, kQuery * kKey + std::log(double{kKeys}), 2e-4);
}

TEST_P(HugeShapesTest, ManyHeads) {
  constexpr int32_t kHeads = 1 << 20;
  std::vector<float> output(kHeads, -1.0f);
  Sequence s = Repeated(1, 1);
  s.output = output.data();
  s.output_strides = {kHeads, 1, 1};
  const PeakMemory peak;
  ASSERT_TRUE(
      ComputeAttention({Config(GetParam(), kHeads), &s, 1}, pool_).ok());
  EXPECT_LT(peak.bytes(), kMaxPeakBytes);
  EXPECT_EQ(output, std::vector<float>(kHeads, kValue));
}

TEST_P(HugeShapesTest, ManyHeadsWithoutQueries) {
  Sequence s = Repeated(0, std::numeric_limits<int32_t>::max());
  const HeadConfig config =
      Config(GetParam(), std::numeric_limits<int32_t>::max());
  const PeakMemory peak;
  EXPECT_TRUE(ComputeAttention({config, &s, 1}, pool_).ok());
  EXPECT_LT(peak.bytes(), kMib);
}

TEST(HugeShapesWeightsTest, ManyKeysWithWeights) {
  constexpr int64_t kKeys = 1'000'000;
  std::vector<float> weights(kKeys, -1.0f);
  float output = 0;
  Sequence s = Repeated(1, kKeys);
  s.output = &output;
  s.weights = weights.data();
  s.window_left = kKeys - 10;  // hides the first keys
  ThreadPool pool(kThreads);
  const PeakMemory peak;
  ASSERT_TRUE(
      ComputeAttention({Config(Algorithm::kThreeStep), &s, 1}, pool).ok());
  EXPECT_LT(peak.bytes(), kMaxPeakBytes);
  constexpr double kWeight = 1.0 / (kKeys - 9);
  for (int64_t key = 0; key < kKeys; ++key) {
    if (key < 9) {
      ASSERT_EQ(weights[key], 0) << key;
    } else {
      ASSERT_NEAR(weights[key], kWeight, 1e-4 * kWeight) << key;
    }
  }
  EXPECT_NEAR(output, kValue, 1e-4 * kValue);
}

// More blocks than fit one list, with partial results to merge.
TEST(HugeShapesSequencesTest, ManySequencesGetTheSameBits) {
  constexpr int64_t kSequences = 9000;
  constexpr int64_t kKeys = 1025;
  std::vector<float> key(kKeys);
  for (int64_t i = 0; i < kKeys; ++i) {
    key[i] = std::sin(static_cast<float>(i));
  }
  Sequence s = Repeated(1, kKeys);
  s.key = s.value = key.data();
  s.key_strides = s.value_strides = {1, 0, 1};
  const HeadConfig config = Config(Algorithm::kStreaming);
  float alone = 0;
  s.output = &alone;
  ThreadPool one_thread(1);
  ASSERT_TRUE(ComputeAttention({config, &s, 1}, one_thread).ok());
  for (int threads : {1, 3}) {
    std::vector<float> output(kSequences, -1.0f);
    std::vector<Sequence> sequences(kSequences, s);
    for (int64_t i = 0; i < kSequences; ++i) sequences[i].output = &output[i];
    ThreadPool pool(threads);
    ASSERT_TRUE(
        ComputeAttention({config, sequences.data(), kSequences}, pool).ok());
    EXPECT_EQ(output, std::vector<float>(kSequences, alone)) << threads;
  }
}

// Sanitizers keep shadow memory in addresses, and end the process themselves.
#if GTEST_HAS_DEATH_TEST && !defined(ABSL_HAVE_ADDRESS_SANITIZER) && \
    !defined(ABSL_HAVE_THREAD_SANITIZER)
TEST_P(HugeShapesTest, MemoryRefusedByTheSystemIsAnError) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        ThreadPool pool(4);
        HeadConfig config = Config(GetParam());
        config.head_dim_qk = config.head_dim_v = kMaxHeadDim;
        const std::vector<float> input(kMaxHeadDim);
        std::vector<float> output(int64_t{1000} * kMaxHeadDim);
        Sequence s = Repeated(1000, 1);
        s.query = s.key = s.value = input.data();
        s.output = output.data();
        s.output_strides.token = kMaxHeadDim;
        rlimit limit;
        getrlimit(RLIMIT_AS, &limit);
        limit.rlim_cur = StatusKib("VmSize") * 1024;
        if (setrlimit(RLIMIT_AS, &limit) != 0) std::exit(2);
        const absl::Status refused = ComputeAttention({config, &s, 1}, pool);
        limit.rlim_cur = limit.rlim_max;
        if (setrlimit(RLIMIT_AS, &limit) != 0) std::exit(3);
        const absl::Status given = ComputeAttention({config, &s, 1}, pool);
        std::exit(absl::IsResourceExhausted(refused) && given.ok() ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}
#endif

INSTANTIATE_TEST_SUITE_P(Algorithms, HugeShapesTest,
                         testing::Values(Algorithm::kStreaming,
                                         Algorithm::kThreeStep),
                         [](const testing::TestParamInfo<Algorithm>& info) {
                           return info.param == Algorithm::kStreaming
                                      ? "Streaming"
                                      : "ThreeStep";
                         });

}  // namespace
}  // namespace attention::cpu
