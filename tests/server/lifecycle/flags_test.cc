#include "server/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace attention {
namespace {

absl::StatusOr<int64_t> Parse(const std::string& text) {
  ByteSize size;
  std::string error;
  if (!AbslParseFlag(text, &size, &error)) {
    return absl::InvalidArgumentError(error);
  }
  return size.bytes;
}

TEST(ByteSizeTest, ParsesUnits) {
  EXPECT_EQ(*Parse("0"), 0);
  EXPECT_EQ(*Parse("123"), 123);
  EXPECT_EQ(*Parse("123B"), 123);
  EXPECT_EQ(*Parse("4KiB"), 4096);
  EXPECT_EQ(*Parse("512MiB"), 512 << 20);
  EXPECT_EQ(*Parse("8GiB"), int64_t{8} << 30);
  EXPECT_EQ(*Parse("2TiB"), int64_t{2} << 40);
  EXPECT_EQ(*Parse("1.5GiB"), int64_t{3} << 29);
  EXPECT_EQ(*Parse("4KB"), 4000);
  EXPECT_EQ(*Parse("3 MB"), 3'000'000);
  EXPECT_EQ(*Parse("2GB"), 2'000'000'000);
}

TEST(ByteSizeTest, RefusesWhatIsNoSize) {
  for (const char* text : {"", "GiB", "x", "-1", "-1GiB", "1XiB", "1kib", "nan",
                           "inf", "1e30", "9000000000GiB", "1 2"}) {
    EXPECT_FALSE(Parse(text).ok()) << text;
    EXPECT_THAT(std::string(Parse(text).status().message()),
                testing::HasSubstr("8GiB"));
  }
}

TEST(ByteSizeTest, PrintsWhatItParses) {
  EXPECT_EQ(AbslUnparseFlag({int64_t{8} << 30}), "8GiB");
  EXPECT_EQ(AbslUnparseFlag({512 << 20}), "512MiB");
  EXPECT_EQ(AbslUnparseFlag({1000}), "1000");
  for (int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{1536} << 20}) {
    EXPECT_EQ(*Parse(AbslUnparseFlag({bytes})), bytes);
  }
}

}  // namespace
}  // namespace attention
