#include "server/rpc/tensor_dims.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <string>

namespace attention {
namespace {

// What a payload of 4 bytes in layout BSHD and fp32 is refused with.
std::string Refusal(std::initializer_list<int64_t> shape,
                    std::initializer_list<int64_t> strides) {
  v1::TensorDescriptor descriptor;
  for (const int64_t size : shape) descriptor.add_shape(size);
  for (const int64_t stride : strides) descriptor.add_strides(stride);
  const auto dims = ReadTensor("key", descriptor, v1::LAYOUT_BSHD, 4, 4);
  return std::string(dims.status().message());
}

TEST(TensorDimsTest, MessagesSayTheSizeThatThePayloadMustHave) {
  constexpr int64_t kHuge = int64_t{1} << 62;
  EXPECT_EQ(Refusal({1, 2, 1, 8}, {}),
            "key (its size in bytes) must be 64, as key_descriptor says; got 4");
  EXPECT_EQ(Refusal({1, 2, 1, 8}, {16, 8, 8, 1}),
            "key (its size in bytes) must be at least 64, as key_descriptor "
            "says; got 4");
  // 2^63 and more: the exact size is not known.
  for (const std::string& message :
       {Refusal({kHuge, kHuge, 1, 8}, {}),
        Refusal({1, 2, 1, 8}, {0, kHuge, 0, 1})}) {
    EXPECT_EQ(message,
              "key (its size in bytes) must be at least 2^63, as "
              "key_descriptor says; got 4");
  }
}

}  // namespace
}  // namespace attention
