#include "server/lifecycle/processor_confinement.h"

#include <gtest/gtest.h>

#include <thread>

namespace attention {
namespace {

cpu_set_t Allowed() {
  cpu_set_t allowed;
  EXPECT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  return allowed;
}

cpu_set_t AllowedInNewThread() {
  cpu_set_t allowed;
  std::thread([&allowed] { allowed = Allowed(); }).join();
  return allowed;
}

bool IsWithin(cpu_set_t part, cpu_set_t whole) {
  cpu_set_t both;
  CPU_AND(&both, &part, &whole);
  return CPU_EQUAL(&both, &part);
}

class ProcessorConfinementTest : public ::testing::Test {
 protected:
  const cpu_set_t before_ = Allowed();
  const int count_ = CPU_COUNT(&before_);
};

TEST_F(ProcessorConfinementTest, HoldsForThreadsThatStartMeanwhile) {
  if (count_ < 2) GTEST_SKIP() << "there is one processor";
  for (int processors = 1; processors < count_; ++processors) {
    {
      const ProcessorConfinement confinement(processors);
      for (const cpu_set_t& allowed : {Allowed(), AllowedInNewThread()}) {
        EXPECT_EQ(CPU_COUNT(&allowed), processors);
        EXPECT_TRUE(IsWithin(allowed, before_));
      }
    }
    for (const cpu_set_t& allowed : {Allowed(), AllowedInNewThread()}) {
      EXPECT_TRUE(CPU_EQUAL(&allowed, &before_));
    }
  }
}

TEST_F(ProcessorConfinementTest, HasNothingToDoWithoutABoundOrBelowIt) {
  for (int processors : {0, count_, count_ + 1}) {
    const ProcessorConfinement confinement(processors);
    const cpu_set_t allowed = Allowed();
    EXPECT_TRUE(CPU_EQUAL(&allowed, &before_)) << processors;
  }
}

TEST_F(ProcessorConfinementTest, KeepsToWhatTheThreadMayUse) {
  if (count_ < 2) GTEST_SKIP() << "there is one processor";
  const ProcessorConfinement outer(1);
  const cpu_set_t one = Allowed();
  const ProcessorConfinement inner(1);
  const cpu_set_t allowed = Allowed();
  EXPECT_TRUE(CPU_EQUAL(&allowed, &one));
}

}  // namespace
}  // namespace attention
