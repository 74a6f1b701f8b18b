#include "client/loadtest/load_runner.h"

#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "client/loadtest/answer_check.h"
#include "gtest/gtest.h"
#include "tests/client/loadtest/reference_answer.h"
#include "tests/client/loadtest/simulation.h"

namespace attention::loadtest {
namespace {

constexpr absl::Duration kService = absl::Milliseconds(1);

RequestShape TinyShape() {
  RequestShape shape = {.data_type = DataType::kFloat32,
                        .query_length = 3,
                        .heads = 2,
                        .head_dim = 4,
                        .log_sum_exp = true};
  return *shape.Resolve();
}

absl::StatusOr<AttentionResult> AnswerEmpty(int64_t, const AttentionRequest&) {
  return AttentionResult();
}

// The runner and its world.
struct World {
  explicit World(SimulatedServer::Answer answer = AnswerEmpty,
                 absl::Duration service = kService, int workers = 1,
                 ShapeMix shapes = {{.shape = TinyShape()}}, int rows = 0)
      : mix(std::move(shapes)),
        inputs(*InputSet::Create(
            mix, {.inputs_per_shape = 4, .verified_rows = rows})),
        server(simulation, workers, service, std::move(answer)) {}

  LoadResult Run(const LoadPlan& plan) {
    runner.emplace(plan, mix, inputs, server, simulation);
    return runner->Run();
  }

  ShapeMix mix;
  InputSet inputs;
  Simulation simulation;
  SimulatedServer server;
  std::optional<LoadRunner> runner;
};

LoadPlan OpenLoop(double rate) {
  LoadPlan plan;
  plan.rate = rate;
  plan.arrival = Arrival::kConstant;
  plan.max_outstanding = 0;
  return plan;
}

void ExpectConservation(const LoadStats& stats) {
  EXPECT_EQ(stats.sent,
            stats.answered + stats.mismatched + stats.error_count());
  EXPECT_EQ(stats.latency.count(), stats.answers());
  EXPECT_EQ(stats.error_latency.count(), stats.error_count());
}

TEST(OpenLoopTest, SendsExactlyWhatTheScheduleSays) {
  World world;
  LoadPlan plan = OpenLoop(100);
  plan.warmup = absl::Seconds(2);
  plan.duration = absl::Seconds(10);
  const LoadResult result = world.Run(plan);
  const LoadStats total = result.Total();
  EXPECT_EQ(result.warmup_sent, 200);
  EXPECT_EQ(total.sent, 1000);
  EXPECT_EQ(total.answered, 1000);
  EXPECT_EQ(world.server.sent(), 1200);
  EXPECT_EQ(total.latency.max(), kService);
  EXPECT_EQ(total.send_delay.count(), 1000);
  EXPECT_EQ(total.send_delay.max(), absl::ZeroDuration());
  EXPECT_EQ(result.max_outstanding, 1);
  EXPECT_FALSE(result.stopped);
  // The last request is due 10 ms before the end.
  EXPECT_EQ(result.elapsed, absl::Seconds(10) - absl::Milliseconds(9));
}

TEST(OpenLoopTest, PoissonSendsTheRateOnAverage) {
  World world(AnswerEmpty, kService, 100);
  LoadPlan plan = OpenLoop(200);
  plan.arrival = Arrival::kPoisson;
  plan.duration = absl::Seconds(100);
  const LoadStats total = world.Run(plan).Total();
  EXPECT_NEAR(total.sent, 20'000, 4 * 142);  // four standard deviations
  EXPECT_EQ(total.latency.max(), kService);
}

TEST(OpenLoopTest, ServerStallShowsInThePercentiles) {
  World world;
  world.server.StallFrom(absl::Seconds(5), absl::Seconds(2));
  LoadPlan plan = OpenLoop(100);
  plan.duration = absl::Seconds(60);
  const LoadResult result = world.Run(plan);
  const LoadStats total = result.Total();
  EXPECT_EQ(total.answered, 6000);
  EXPECT_LE(total.latency.Percentile(50), kService * 1.001);
  // 200 of 6000 requests were due in the stall and waited 0...2 s; the 60th
  // slowest is p99.
  EXPECT_GT(total.latency.Percentile(99), absl::Milliseconds(1300));
  EXPECT_LT(total.latency.Percentile(99), absl::Milliseconds(1600));
  EXPECT_GT(total.latency.max(), absl::Milliseconds(1990));
  EXPECT_GE(result.max_outstanding, 200);
  EXPECT_EQ(total.send_delay.max(), absl::ZeroDuration());
}

TEST(OpenLoopTest, ServerStallShowsBehindTheBoundToo) {
  World world;
  world.server.StallFrom(absl::Seconds(5), absl::Seconds(2));
  LoadPlan plan = OpenLoop(100);
  plan.duration = absl::Seconds(60);
  plan.max_outstanding = 4;
  const LoadResult result = world.Run(plan);
  const LoadStats total = result.Total();
  EXPECT_EQ(total.answered, 6000);
  EXPECT_EQ(result.max_outstanding, 4);
  EXPECT_GT(total.latency.Percentile(99), absl::Milliseconds(1300));
  EXPECT_GT(total.latency.max(), absl::Milliseconds(1990));
  // All that were due in the stall, except the four on their way; and those due
  // while the backlog of about 200 ms is worked off.
  EXPECT_GE(result.bound_hits, 196);
  EXPECT_LE(result.bound_hits, 220);
  EXPECT_GT(total.send_delay.max(), absl::Milliseconds(1900));
}

TEST(OpenLoopTest, NothingIsLeftOutWhenTheServerCannotKeepUp) {
  World world(AnswerEmpty, absl::Milliseconds(20));  // 50 per second
  LoadPlan plan = OpenLoop(100);
  plan.duration = absl::Seconds(10);
  plan.max_outstanding = 8;
  const LoadResult result = world.Run(plan);
  EXPECT_EQ(result.Total().answered, 1000);
  EXPECT_EQ(result.elapsed, absl::Seconds(20));
  EXPECT_NEAR(absl::ToDoubleSeconds(result.Total().latency.max()), 10, 0.1);
}

TEST(ClosedLoopTest, KeepsTheConcurrencyAndHidesTheStall) {
  World world;
  world.server.StallFrom(absl::Seconds(5), absl::Seconds(2));
  LoadPlan plan;
  plan.max_outstanding = 1;
  plan.duration = absl::Seconds(12);
  const LoadResult result = world.Run(plan);
  const LoadStats total = result.Total();
  EXPECT_NEAR(total.sent, 10'000, 2);
  EXPECT_LE(total.latency.Percentile(99.9), kService * 1.001);
  EXPECT_GE(total.latency.max(), absl::Seconds(2));
  EXPECT_EQ(total.send_delay.count(), 0);
  EXPECT_EQ(result.bound_hits, 0);
}

TEST(ClosedLoopTest, ThroughputIsConcurrencyByLatency) {
  World world(AnswerEmpty, absl::Milliseconds(10), /*workers=*/16);
  LoadPlan plan;
  plan.max_outstanding = 8;
  plan.warmup = absl::Seconds(1);
  plan.duration = absl::Seconds(10);
  const LoadResult result = world.Run(plan);
  EXPECT_EQ(result.max_outstanding, 8);
  EXPECT_EQ(result.Total().sent, 8000);
  EXPECT_EQ(result.Total().latency.max(), absl::Milliseconds(10));
  EXPECT_EQ(result.warmup_sent, 800);
}

TEST(LoadRunnerTest, CountsRequestsInsteadOfTime) {
  World world;
  LoadPlan plan;
  plan.requests = 123;
  plan.warmup = absl::Milliseconds(50);
  const LoadResult result = world.Run(plan);
  EXPECT_EQ(result.Total().sent, 123);
  EXPECT_EQ(result.warmup_sent, 50);
}

TEST(LoadRunnerTest, CountsErrorsByCodeAndConserves) {
  World world([](int64_t index,
                 const AttentionRequest&) -> absl::StatusOr<AttentionResult> {
    if (index % 10 == 3) return absl::ResourceExhaustedError("queue is full");
    if (index % 50 == 7) return absl::UnavailableError("draining");
    return AttentionResult();
  });
  LoadPlan plan = OpenLoop(100);
  plan.duration = absl::Seconds(10);
  const LoadStats total = world.Run(plan).Total();
  ExpectConservation(total);
  ASSERT_EQ(total.errors.size(), 2u);
  EXPECT_EQ(total.errors.at(absl::StatusCode::kResourceExhausted).count, 100);
  EXPECT_EQ(total.errors.at(absl::StatusCode::kResourceExhausted).example,
            "queue is full");
  EXPECT_EQ(total.errors.at(absl::StatusCode::kUnavailable).count, 20);
  EXPECT_EQ(total.answered, 880);
  EXPECT_EQ(total.size.query_tokens, 880 * 3);
}

TEST(LoadRunnerTest, SumsWhatAnswersCarry) {
  const RequestShape shape = TinyShape();
  World world([&shape](int64_t, const AttentionRequest& request) {
    return ReferenceAnswer(shape, request);
  });
  LoadPlan plan;
  plan.requests = 10;
  const LoadStats total = world.Run(plan).Total();
  EXPECT_EQ(total.server_queue, absl::Milliseconds(10));
  EXPECT_EQ(total.server_copy_in, absl::Milliseconds(10));
  EXPECT_EQ(total.server_compute, absl::Milliseconds(10));
  EXPECT_EQ(total.server_copy_out, absl::Milliseconds(10));
  EXPECT_EQ(total.batch_requests, 20);
  EXPECT_EQ(total.batch_sequences, 20);
  // Three tensors [1, 3, 2, 4] out; one of them and [1, 3, 2] in, fp32.
  EXPECT_EQ(total.size.bytes_out, 10 * 3 * 24 * 4);
  EXPECT_EQ(total.size.bytes_in, 10 * (24 + 6) * 4);
  EXPECT_EQ(total.size.flops, 10 * shape.Flops());
}

TEST(LoadRunnerTest, VerifiesRightAnswers) {
  const RequestShape shape = TinyShape();
  World world(
      [&shape](int64_t, const AttentionRequest& request) {
        return ReferenceAnswer(shape, request);
      },
      kService, 1, {{.shape = shape}}, /*rows=*/6);
  LoadPlan plan;
  plan.requests = 40;
  plan.verified_fraction = 1;
  const LoadStats total = world.Run(plan).Total();
  EXPECT_EQ(total.verified, 40);
  EXPECT_EQ(total.answered, 40);
  EXPECT_EQ(total.mismatched, 0) << total.mismatch_example;
}

TEST(LoadRunnerTest, AnswersThatBelongToOtherRequestsAreMismatches) {
  const RequestShape shape = TinyShape();
  std::optional<AttentionResult> first;
  World world(
      [&](int64_t index, const AttentionRequest& request) {
        AttentionResult right = ReferenceAnswer(shape, request);
        if (!first.has_value()) first = right;
        return index % 4 == 1 ? *first : right;
      },
      kService, 1, {{.shape = shape}}, /*rows=*/6);
  LoadPlan plan;
  plan.requests = 40;
  plan.verified_fraction = 1;
  const LoadStats total = world.Run(plan).Total();
  ExpectConservation(total);
  EXPECT_EQ(total.mismatched, 10);
  EXPECT_EQ(total.answered, 30);
  EXPECT_NE(total.mismatch_example.find("output of sequence 0"),
            std::string::npos);
}

TEST(LoadRunnerTest, VerifiesAFraction) {
  const RequestShape shape = TinyShape();
  World world(
      [&shape](int64_t, const AttentionRequest& request) {
        return ReferenceAnswer(shape, request);
      },
      kService, 1, {{.shape = shape}}, /*rows=*/2);
  LoadPlan plan;
  plan.requests = 2000;
  plan.verified_fraction = 0.25;
  const LoadStats total = world.Run(plan).Total();
  EXPECT_NEAR(total.verified, 500, 80);
  EXPECT_EQ(total.answered, 2000);
}

TEST(LoadRunnerTest, MixesShapesInProportion) {
  RequestShape large = TinyShape();
  large.query_length = 30;
  World world(AnswerEmpty, kService, 1,
              {{.shape = TinyShape(), .weight = 3}, {.shape = large}});
  LoadPlan plan;
  plan.requests = 4000;
  const LoadResult result = world.Run(plan);
  ASSERT_EQ(result.shapes.size(), 2u);
  EXPECT_NEAR(result.shapes[0].sent, 3000, 110);
  EXPECT_EQ(result.shapes[0].sent + result.shapes[1].sent, 4000);
  EXPECT_EQ(result.Total().size.query_tokens,
            3 * result.shapes[0].sent + 30 * result.shapes[1].sent);
}

TEST(LoadRunnerTest, StopEndsTheRunAndKeepsWhatWasMeasured) {
  World world;
  world.simulation.At(world.simulation.Now() + absl::Seconds(5),
                      [&world] { world.runner->Stop(); });
  LoadPlan plan = OpenLoop(100);
  plan.duration = absl::Seconds(60);
  const LoadResult result = world.Run(plan);
  EXPECT_TRUE(result.stopped);
  EXPECT_NEAR(result.Total().sent, 500, 1);
  ExpectConservation(result.Total());
}

TEST(LoadRunnerTest, ProgressCoversEachRequestOnce) {
  World world([](int64_t index,
                 const AttentionRequest&) -> absl::StatusOr<AttentionResult> {
    if (index % 10 == 0) return absl::InternalError("");
    return AttentionResult();
  });
  int64_t finished = 0, failed = 0, answered = 0;
  for (int second = 1; second <= 11; ++second) {
    world.simulation.At(
        world.simulation.Now() + absl::Seconds(second) - absl::Nanoseconds(1),
        [&, second] {
          const LoadRunner::Progress progress = world.runner->TakeProgress();
          EXPECT_EQ(progress.finished, 100);
          EXPECT_EQ(progress.failed, 10);
          EXPECT_EQ(progress.warming_up, second == 1);
          finished += progress.finished;
          failed += progress.failed;
          answered += progress.latency.count();
        });
  }
  LoadPlan plan = OpenLoop(100);
  plan.warmup = absl::Seconds(1);
  plan.duration = absl::Seconds(10);
  const LoadResult result = world.Run(plan);
  // The run ends with its last answer, before the last look.
  const LoadRunner::Progress rest = world.runner->TakeProgress();
  EXPECT_EQ(finished + rest.finished, result.Total().sent + result.warmup_sent);
  EXPECT_EQ(failed + rest.failed, 110);
  EXPECT_EQ(answered + rest.latency.count(), 990);
}

// Answers from a thread of its own, as a real client does.
class ThreadedSender : public RequestSender {
 public:
  ThreadedSender() : thread_([this] { Loop(); }) {}

  ~ThreadedSender() override {
    {
      absl::MutexLock lock(&mutex_);
      ended_ = true;
    }
    thread_.join();
  }

  void Send(const AttentionRequest&, Client::Done done) override {
    absl::MutexLock lock(&mutex_);
    queue_.push_back(std::move(done));
  }

 private:
  void Loop() {
    while (true) {
      std::vector<Client::Done> batch;
      {
        absl::MutexLock lock(&mutex_);
        mutex_.Await(absl::Condition(
            +[](ThreadedSender* self) {
              self->mutex_.AssertHeld();
              return self->ended_ || !self->queue_.empty();
            },
            this));
        if (queue_.empty()) return;
        batch.swap(queue_);
      }
      for (Client::Done& done : batch) {
        if (count_++ % 16 == 0) {
          done(absl::UnavailableError("every sixteenth"));
        } else {
          done(AttentionResult());
        }
      }
    }
  }

  absl::Mutex mutex_;
  std::vector<Client::Done> queue_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t count_ = 0;  // the thread's
  std::thread thread_;
};

TEST(LoadRunnerThreadsTest, ManySendersAndAProgressReader) {
  for (bool open : {false, true}) {
    const ShapeMix mix = {{.shape = TinyShape()}};
    const InputSet inputs = *InputSet::Create(mix, {});
    ThreadedSender sender;
    LoadPlan plan;
    plan.requests = 3000;
    plan.sender_threads = 4;
    plan.max_outstanding = 8;
    if (open) plan.rate = 50'000;
    LoadRunner runner(plan, mix, inputs, sender, LoadClock::Steady());
    std::atomic<bool> ended = false;
    int64_t finished = 0;
    std::thread reader([&] {
      while (!ended) finished += runner.TakeProgress().finished;
    });
    const LoadResult result = runner.Run();
    ended = true;
    reader.join();
    finished += runner.TakeProgress().finished;
    const LoadStats total = result.Total();
    EXPECT_EQ(total.sent, 3000);
    EXPECT_EQ(finished, 3000);
    EXPECT_LE(result.max_outstanding, 8);
    EXPECT_EQ(total.error_count(), 188);
    ExpectConservation(total);
  }
}

}  // namespace
}  // namespace attention::loadtest
