#include "client/cpp/request_memory.h"

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace attention {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

std::string Bytes(const grpc::Slice& slice) {
  return std::string(reinterpret_cast<const char*>(slice.begin()),
                     slice.size());
}

TEST(RequestMemoryTest, CopiesAnySize) {
  const auto memory = RequestMemory::Create(64 * kMiB);
  for (const size_t bytes :
       {size_t{0}, size_t{1}, kMiB / 4 - 1, kMiB / 4, kMiB, 4 * kMiB + 3}) {
    const std::string data(bytes, 'x');
    const grpc::Slice slice = memory->Copy(data.data(), data.size());
    EXPECT_EQ(Bytes(slice), data);
    EXPECT_NE(static_cast<const void*>(slice.begin()), data.data());
  }
}

TEST(RequestMemoryTest, UsesMemoryAgainOnceItsSliceIsGone) {
  const auto memory = RequestMemory::Create(64 * kMiB);
  const std::string a(3 * kMiB, 'a');
  const std::string b(3 * kMiB - 5, 'b');
  std::optional<grpc::Slice> first = memory->Copy(a.data(), a.size());
  const void* const place = first->begin();

  const grpc::Slice second = memory->Copy(b.data(), b.size());
  EXPECT_NE(second.begin(), place);
  EXPECT_EQ(Bytes(*first), a);

  first.reset();
  EXPECT_EQ(memory->cached_bytes(), 3 * kMiB);
  const grpc::Slice third = memory->Copy(b.data(), b.size());
  EXPECT_EQ(third.begin(), place);
  EXPECT_EQ(Bytes(third), b);
  EXPECT_EQ(memory->cached_bytes(), 0u);
}

TEST(RequestMemoryTest, KeepsNoMoreThanItMay) {
  const auto memory = RequestMemory::Create(4 * kMiB);
  const std::string data(5 * kMiB, 'x');
  (void)memory->Copy(data.data(), 5 * kMiB);  // too large to be kept
  EXPECT_EQ(memory->cached_bytes(), 0u);
  (void)memory->Copy(data.data(), 3 * kMiB);
  EXPECT_EQ(memory->cached_bytes(), 3 * kMiB);
  (void)memory->Copy(data.data(), 2 * kMiB);  // not beside the other
  EXPECT_EQ(memory->cached_bytes(), 2 * kMiB);
  (void)memory->Copy(data.data(), 1 * kMiB);
  EXPECT_EQ(memory->cached_bytes(), 3 * kMiB);
}

TEST(RequestMemoryTest, OutlivesItsOwnerWhileSlicesDo) {
  auto memory = RequestMemory::Create(64 * kMiB);
  const std::string data(kMiB, 'x');
  const grpc::Slice slice = memory->Copy(data.data(), data.size());
  const std::weak_ptr<RequestMemory> watch = memory;
  memory.reset();
  EXPECT_FALSE(watch.expired());
  EXPECT_EQ(Bytes(slice), data);
}

TEST(RequestMemoryTest, ThreadsNeverShareASlice) {
  const auto memory = RequestMemory::Create(3 * kMiB);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const std::string data(kMiB + i, static_cast<char>('a' + i));
      for (int round = 0; round < 20; ++round) {
        const grpc::Slice slice = memory->Copy(data.data(), data.size());
        if (Bytes(slice) != data) ++wrong[i];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4));
  EXPECT_LE(memory->cached_bytes(), 3 * kMiB);
}

}  // namespace
}  // namespace attention
