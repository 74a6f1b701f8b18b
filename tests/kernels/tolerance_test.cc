#include "kernels/reference/tolerance.h"

#include <gtest/gtest.h>

#include <limits>

namespace attention::reference {
namespace {

TEST(ToleranceTest, OutputsAreMeasuredByTheLargest) {
  EXPECT_DOUBLE_EQ(ToleranceOf(DataType::kFloat32, Precision::kIeee).Output(30),
                   3e-4);
  EXPECT_DOUBLE_EQ(ToleranceOf(DataType::kFloat32, Precision::kTf32).Output(30),
                   6e-2);
  // Precision is that of fp32 products.
  for (const Precision precision : {Precision::kIeee, Precision::kTf32}) {
    EXPECT_DOUBLE_EQ(ToleranceOf(DataType::kFloat16, precision).Output(2),
                     5e-3);
    EXPECT_DOUBLE_EQ(ToleranceOf(DataType::kBFloat16, precision).Output(2),
                     3.3e-2);
    EXPECT_DOUBLE_EQ(ToleranceOf(DataType::kFloat8E4M3, precision).Output(2),
                     0.141);
  }
}

TEST(ToleranceTest, LogSumExpsAreMeasuredByThemselvesFromOneOn) {
  for (const DataType type : {DataType::kFloat32, DataType::kFloat16,
                              DataType::kBFloat16, DataType::kFloat8E4M3}) {
    const Tolerance tolerance = ToleranceOf(type, Precision::kIeee);
    const double unit = type == DataType::kFloat32      ? 1e-5
                        : type == DataType::kFloat8E4M3 ? 1e-3
                                                        : 2e-4;
    EXPECT_DOUBLE_EQ(tolerance.LogSumExp(0.25), unit);
    EXPECT_DOUBLE_EQ(tolerance.LogSumExp(-20), 20 * unit);
    EXPECT_EQ(tolerance.LogSumExp(-std::numeric_limits<double>::infinity()), 0);
  }
}

}  // namespace
}  // namespace attention::reference
