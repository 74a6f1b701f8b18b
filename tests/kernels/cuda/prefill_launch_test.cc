// Launches of the sm_90 prefill kernels: work lists in the parameters and in
// memory, many under way at the same time, launches that read what the one
// before wrote, and repetition.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/cuda/sm90/prefill.h"
#include "kernels/cuda/sm90/work_list.h"
#include "tests/kernels/cuda/prefill_fixture.h"
#include "tests/support/comparison.h"

namespace attention::test {
namespace {

using cuda::sm90::WorkList;

class Stream {
 public:
  Stream() {
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
              cudaSuccess);
  }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class PrefillLaunchTest : public PrefillTest {
 protected:
  std::vector<SequenceSpec> RandomSequences(int64_t count, int64_t shortest,
                                            int64_t longest) {
    std::vector<SequenceSpec> sequences;
    for (int64_t i = 0; i < count; ++i) {
      sequences.push_back({Draw(shortest, longest), Draw(shortest, longest)});
    }
    return sequences;
  }
  ProblemSpec Spec(const HeadConfig& config,
                   std::vector<SequenceSpec> sequences) {
    return {.config = config,
            .sequences = std::move(sequences),
            .seed = random()()};
  }
  HeadConfig RandomConfig() {
    const auto kv_heads = static_cast<int32_t>(Draw(1, 3));
    return Heads(Pick(kPrefillTypes), Pick(kKernelDims),
                 kv_heads * static_cast<int32_t>(Draw(1, 4)), kv_heads,
                 Pick(kMasks));
  }

  static bool IsUploaded(const AttentionProblem& problem) {
    return cuda::sm90::ScratchSize(problem.params()).host_bytes > 0;
  }
};

TEST_P(PrefillLaunchTest, AsManySequencesAsParametersHoldAndOneMore) {
  for (DataType type : kPrefillTypes) {
    for (int count : {WorkList::kMaxInlineSequences,
                      WorkList::kMaxInlineSequences + 1, 200}) {
      AttentionProblem problem(Spec(Heads(type, {64, 64}, 2, 1, Pick(kMasks)),
                                    // So that all have the same kernel.
                                    RandomSequences(count, 65, 120)));
      EXPECT_EQ(IsUploaded(problem), count > WorkList::kMaxInlineSequences);
      Check(problem);
    }
  }
}

TEST_P(PrefillLaunchTest, AsManyBlocksOfRowsAsParametersHoldAndOneMore) {
  for (DataType type : kPrefillTypes) {
    const HeadConfig config = Heads(type, {64, 64}, 1, 1);
    const int64_t most =
        int64_t{KernelFor(config).block_m} * WorkList::kMaxInlineRuns;
    for (int64_t m : {most, most + 1}) {
      AttentionProblem problem(Spec(config, {{m, 3}}));
      EXPECT_EQ(IsUploaded(problem), m > most);
      Check(problem);
    }
  }
}

// Their tensors are described from those of the one before, or anew.
TEST_P(PrefillLaunchTest, NeighboursOfOneShapeAndOfOthers) {
  for (DataType type : kPrefillTypes) {
    for (Layout layout : {Layout::kTokenMajor, Layout::kHeadMajor}) {
      std::vector<SequenceSpec> sequences;
      for (int run = 0; run < 5; ++run) {
        const SequenceSpec shape = {Draw(1, 300), Draw(1, 300)};
        sequences.insert(sequences.end(), Draw(1, 4), shape);
        // As many queries or as many keys, but not both.
        sequences.push_back({shape.query_length, shape.key_length + 1});
        sequences.push_back({shape.query_length + 1, shape.key_length + 1});
      }
      ProblemSpec spec = Spec(RandomConfig(), sequences);
      spec.config.data_type = type;
      spec.layout = layout;
      AttentionProblem problem(spec);
      Check(problem);
    }
  }
}

// Alone, in a list that the parameters hold, and in one that they do not.
TEST_P(PrefillLaunchTest, BatchMatesDoNotMatter) {
  for (int repeat = 0; repeat < 6; ++repeat) {
    AttentionProblem problem(
        Spec(RandomConfig(), RandomSequences(100, 1, 150)));
    ASSERT_TRUE(IsUploaded(problem));
    // A mate whose answer is NaN.
    problem.Fill(TensorRole::kValue, 20,
                 std::numeric_limits<float>::quiet_NaN());
    const std::vector<Bits> together = ComputeBits(problem);
    DeviceProblem device(problem);
    for (int64_t i : {0, 19, 21, 99}) {
      problem.ResetOutputs();
      ASSERT_NO_FATAL_FAILURE(device.CopyIn());
      const AttentionParams params = device.params();
      const AttentionParams alone = {params.config, params.sequences + i, 1};
      DeviceScratch scratch;
      ASSERT_EQ(scratch.Allocate(cuda::sm90::ScratchSize(alone)),
                absl::OkStatus());
      ASSERT_EQ(cuda::sm90::Launch(alone, scratch.get(), nullptr), cudaSuccess);
      ASSERT_NO_FATAL_FAILURE(device.CopyOut());
      EXPECT_TRUE(problem.OutputBits(i) == together[i])
          << "sequence " << i << " of " << ToString(problem.spec());
    }
  }
}

TEST_P(PrefillLaunchTest, AThousandRepetitionsGiveTheSameBits) {
  ForEachKernelAndFloat8([&](DataType type, HeadDims dims) {
    // More tiles than a device has multiprocessors.
    AttentionProblem problem(
        Spec(Heads(type, dims, 8, 4, Pick(kMasks)),
             {{300, 300}, {500, 700}, {900, 400}, {1, 2000}, {33, 900}}));
    const std::vector<Bits> want = ComputeBits(problem);
    DeviceProblem device(problem);
    Bits first;  // all memory of the results
    for (int repeat = 0; repeat < 1000; ++repeat) {
      ASSERT_NO_FATAL_FAILURE(device.ClearOutputs());
      ASSERT_NO_FATAL_FAILURE(device.Launch(kPrefill));
      ASSERT_NO_FATAL_FAILURE(device.CopyOut());
      const Bits& got = problem.buffers()[1].bytes;
      if (repeat == 0) {
        first = got;
        ASSERT_TRUE(AllBits(problem) == want) << ToString(problem.spec());
      }
      ASSERT_TRUE(got == first)
          << "repetition " << repeat << " of " << ToString(problem.spec());
    }
  });
}

// Two threads with a stream each keep several launches under way.
TEST_P(PrefillLaunchTest, LaunchesUnderWayTogetherDoNotMatterToEachOther) {
  constexpr int kThreads = 2;
  constexpr int kProblems = 6;  // of each thread
  constexpr int kRounds = 40;
  struct Work {
    std::unique_ptr<AttentionProblem> problem;
    std::unique_ptr<DeviceProblem> device;
    Bits want;  // all memory of the results
  };
  std::vector<Work> works(kThreads * kProblems);
  for (size_t i = 0; i < works.size(); ++i) {
    // Every third with its list in memory, all with tiles for many blocks.
    const auto sequences =
        i % 3 == 0 ? RandomSequences(100, 1, 200) : RandomSequences(9, 1, 700);
    works[i].problem =
        std::make_unique<AttentionProblem>(Spec(RandomConfig(), sequences));
    works[i].device = std::make_unique<DeviceProblem>(*works[i].problem);
    ASSERT_NO_FATAL_FAILURE(works[i].device->ClearOutputs());
    ASSERT_NO_FATAL_FAILURE(works[i].device->Launch(kPrefill));
    ASSERT_NO_FATAL_FAILURE(works[i].device->CopyOut());
    works[i].want = works[i].problem->buffers()[1].bytes;
  }
  const Stream streams[kThreads];
  for (int round = 0; round < kRounds; ++round) {
    for (Work& work : works) {
      ASSERT_NO_FATAL_FAILURE(work.device->ClearOutputs());
    }
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kProblems; ++i) {
          works[t * kProblems + i].device->Launch(kPrefill, streams[t].get());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (Work& work : works) {
      ASSERT_NO_FATAL_FAILURE(work.device->CopyOut());
      ASSERT_TRUE(work.problem->buffers()[1].bytes == work.want)
          << "round " << round << " of " << ToString(work.problem->spec());
    }
  }
}

// The lists of several launches take turns in the same memory, while another
// kernel runs that they may overtake.
TEST_P(PrefillLaunchTest, MemoryOfListsIsUsedAgain) {
  constexpr int kProblems = 3;
  constexpr int kRounds = 60;
  const HeadConfig config = RandomConfig();
  std::vector<std::unique_ptr<AttentionProblem>> problems;
  std::vector<std::unique_ptr<DeviceProblem>> devices;
  std::vector<Bits> want;  // all memory of the results
  cuda::ScratchBytes largest;
  for (int i = 0; i < kProblems; ++i) {
    problems.push_back(std::make_unique<AttentionProblem>(
        Spec(config, RandomSequences(100, 1, 150))));
    ASSERT_TRUE(IsUploaded(*problems[i]));
    devices.push_back(std::make_unique<DeviceProblem>(*problems[i]));
    ASSERT_NO_FATAL_FAILURE(devices[i]->ClearOutputs());
    ASSERT_NO_FATAL_FAILURE(devices[i]->Launch(kPrefill));
    ASSERT_NO_FATAL_FAILURE(devices[i]->CopyOut());
    want.push_back(problems[i]->buffers()[1].bytes);
    const auto size = cuda::sm90::ScratchSize(devices[i]->params());
    largest.host_bytes = std::max(largest.host_bytes, size.host_bytes);
    largest.device_bytes = std::max(largest.device_bytes, size.device_bytes);
  }
  DeviceScratch scratch;
  ASSERT_EQ(scratch.Allocate(largest), absl::OkStatus());
  AttentionProblem ahead(Spec(config, {{1000, 1000}}));
  DeviceProblem device_ahead(ahead);
  const Stream stream;
  for (int round = 0; round < kRounds; ++round) {
    const int i = round % kProblems;
    ASSERT_NO_FATAL_FAILURE(devices[i]->ClearOutputs());
    ASSERT_NO_FATAL_FAILURE(device_ahead.Launch(kPrefill, stream.get()));
    ASSERT_EQ(
        cuda::sm90::Launch(devices[i]->params(), scratch.get(), stream.get()),
        cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
    ASSERT_NO_FATAL_FAILURE(devices[i]->CopyOut());
    ASSERT_TRUE(problems[i]->buffers()[1].bytes == want[i])
        << "round " << round << " of " << ToString(problems[i]->spec());
  }
}

// A launch may begin before the one before it on the stream ends. Here each
// reads what that wrote, and writes what it read; and the kernels alternate.
TEST_P(PrefillLaunchTest, ALaunchSeesWhatTheOneBeforeWrote) {
  constexpr int64_t kTokens = 3100;
  constexpr int32_t kWidth = 512;  // elements of a token
  constexpr int kLaunches = 40;
  for (DataType type : kPrefillTypes) {
    // Its query and output are the two tensors. With this scale a row is about
    // one row of the values, so that results do not tend to their mean.
    const HeadDims dims = {64, 64};
    AttentionProblem problem(Spec(Heads(type, dims, kWidth / 64, kWidth / 64),
                                  {{kTokens, kTokens, 1.0}}));
    DeviceProblem device(problem);
    const Sequence original = device.params().sequences[0];
    const size_t bytes = kTokens * kWidth * ElementBytes(type);

    // The tensor that the last launch writes; waits behind each if asked.
    const auto run = [&](bool waits, Bits* result) {
      problem.ResetOutputs();
      ASSERT_NO_FATAL_FAILURE(device.CopyIn());
      const Stream stream;
      void* tensors[] = {const_cast<void*>(original.query), original.output};
      for (int i = 0; i < kLaunches; ++i) {
        const int32_t dim = i % 3 == 2 ? 128 : 64;
        Sequence s = original;
        s.query = tensors[i % 2];
        if (i % 4 == 1) s.value = tensors[i % 2];
        if (i % 4 == 3) s.key = tensors[i % 2];
        s.output = tensors[1 - i % 2];
        s.log_sum_exp = nullptr;
        s.query_strides = s.key_strides = s.value_strides =
            s.output_strides = {.token = kWidth, .head = dim};
        const HeadConfig config =
            Heads(type, {dim, dim}, kWidth / dim, kWidth / dim);
        ASSERT_TRUE(cuda::sm90::CanCompute(config, s));
        ASSERT_EQ(cuda::sm90::Launch({config, &s, 1}, {}, stream.get()),
                  cudaSuccess);
        if (waits) {
          ASSERT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
        }
      }
      ASSERT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
      result->resize(bytes);
      ASSERT_EQ(cudaMemcpy(result->data(), tensors[kLaunches % 2], bytes,
                           cudaMemcpyDeviceToHost),
                cudaSuccess);
    };
    Bits want;
    ASSERT_NO_FATAL_FAILURE(run(true, &want));
    for (int repeat = 0; repeat < 20; ++repeat) {
      Bits got;
      ASSERT_NO_FATAL_FAILURE(run(false, &got));
      ASSERT_TRUE(got == want) << "repetition " << repeat;
    }
  }
}

INSTANTIATE_FOR_CUDA(PrefillLaunchTest);

}  // namespace
}  // namespace attention::test
