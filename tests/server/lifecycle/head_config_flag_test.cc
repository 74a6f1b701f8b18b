#include "server/head_config_flag.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace attention {
namespace {

using ::testing::HasSubstr;

TEST(HeadConfigFlagTest, ParsesWhatItNeedsAndWhatItMayHave) {
  EXPECT_EQ(*ParseHeadConfig("bf16:32:128"),
            (HeadConfig{.data_type = DataType::kBFloat16,
                        .head_dim_qk = 128,
                        .head_dim_v = 128,
                        .query_head_count = 32,
                        .kv_head_count = 32}));
  EXPECT_EQ(*ParseHeadConfig("fp16:16/8:192/128:causal"),
            (HeadConfig{.data_type = DataType::kFloat16,
                        .head_dim_qk = 192,
                        .head_dim_v = 128,
                        .query_head_count = 16,
                        .kv_head_count = 8,
                        .mask = MaskKind::kCausalBottomRight}));
  EXPECT_EQ(*ParseHeadConfig("fp32:1:1:three_step:causal_top_left"),
            (HeadConfig{.data_type = DataType::kFloat32,
                        .head_dim_qk = 1,
                        .head_dim_v = 1,
                        .query_head_count = 1,
                        .kv_head_count = 1,
                        .mask = MaskKind::kCausalTopLeft,
                        .algorithm = Algorithm::kThreeStep}));
  EXPECT_EQ(*ParseHeadConfig("fp8:16:64"),
            (HeadConfig{.data_type = DataType::kFloat8E4M3,
                        .head_dim_qk = 64,
                        .head_dim_v = 64,
                        .query_head_count = 16,
                        .kv_head_count = 16}));
}

TEST(HeadConfigFlagTest, RefusesTheRestAndQuotesIt) {
  for (const std::string text :
       {"", "bf16", "bf16:8", "fp64:8:128", "bf16:8/8/8:128", "bf16::128",
        "bf16:x:128", "bf16:8:128:casual", "bf16:8:128:", "bf16:8:0",
        "bf16:8:257", "bf16:-8:64", "bf16:8/3:64", "bf16:0:64",
        "bf16:99999999999:64", "fp8:8:64:three_step"}) {
    const absl::Status status = ParseHeadConfig(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("\"" + text + "\""));
  }
}

}  // namespace
}  // namespace attention
