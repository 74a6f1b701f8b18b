// Valid requests with bits, bytes, fields and numbers changed at random: the
// decoder never crashes, never accepts work that reaches outside its memory, and
// always says no in the same way.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "tests/server/rpc/decode.h"
#include "tests/server/rpc/memory_bounds.h"
#include "tests/server/rpc/request_maker.h"
#include "tests/support/kernel_backend.h"

namespace attention::test {
namespace {

using Request = v1::ComputeAttentionRequest;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

class RequestMutationTest : public ::testing::Test {
 protected:
  RequestMutationTest()
      : random_(RunSeed()),
        trace_(__FILE__, __LINE__,
               absl::StrCat("repeat with --gtest_random_seed=", RunSeed())) {
    limits_.max_message_bytes = 1 << 20;
    limits_.max_request_flops = 1e9;
  }

  int64_t Draw(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }

  // Numbers that arithmetic gets wrong.
  int64_t Number() {
    constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
    const int64_t bases[] = {0, 1, 2, 8, 256, 257, 1 << 16, int64_t{1} << 31,
                             int64_t{1} << 32, int64_t{1} << 62, kMax, kMax / 3,
                             -1, -kMax - 1};
    const int64_t base = bases[Draw(0, std::size(bases) - 1)];
    const int64_t nudge = Draw(-1, 1);
    int64_t sum;
    return __builtin_add_overflow(base, nudge, &sum) ? base : sum;
  }

  void MutateField(Message& message) {
    const auto& descriptor = *message.GetDescriptor();
    const auto& reflection = *message.GetReflection();
    const FieldDescriptor* field =
        descriptor.field(static_cast<int>(Draw(0, descriptor.field_count() - 1)));
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      return MutateField(*reflection.MutableMessage(&message, field));
    }
    if (Draw(0, 5) == 0) return reflection.ClearField(&message, field);
    if (field->is_repeated()) return MutateRepeated(message, field);
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT64:
        return reflection.SetInt64(&message, field, Number());
      case FieldDescriptor::CPPTYPE_INT32:
        return reflection.SetInt32(&message, field,
                                   static_cast<int32_t>(Number()));
      case FieldDescriptor::CPPTYPE_ENUM:
        return reflection.SetEnumValue(&message, field,
                                       static_cast<int>(Draw(-1, 5)));
      case FieldDescriptor::CPPTYPE_BOOL:
        return reflection.SetBool(&message, field, Draw(0, 1));
      case FieldDescriptor::CPPTYPE_DOUBLE: {
        const double choices[] = {0, -1, 1e308, INFINITY, NAN};
        return reflection.SetDouble(&message, field, choices[Draw(0, 4)]);
      }
      default: {
        std::string text = reflection.GetString(message, field);
        text.resize(Draw(0, 2) ? Draw(0, 2 * text.size() + 4) : text.size());
        return reflection.SetString(&message, field, text);
      }
    }
  }

  void MutateRepeated(Message& message, const FieldDescriptor* field) {
    const auto& reflection = *message.GetReflection();
    const int size = reflection.FieldSize(message, field);
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_FLOAT) {
      const float choices[] = {1, 0.5f, 0, -1, 3e38f, INFINITY, NAN};
      const float choice = choices[Draw(0, 6)];
      if (size == 0 || Draw(0, 3) == 0) {
        return reflection.AddFloat(&message, field, choice);
      }
      return reflection.SetRepeatedFloat(
          &message, field, static_cast<int>(Draw(0, size - 1)), choice);
    }
    if (size == 0 || Draw(0, 3) == 0) {
      reflection.AddInt64(&message, field, Number());
    } else if (Draw(0, 3) == 0) {
      reflection.RemoveLast(&message, field);
    } else {
      reflection.SetRepeatedInt64(&message, field,
                                  static_cast<int>(Draw(0, size - 1)), Number());
    }
  }

  void MutateBytes(std::string& message) {
    for (int64_t count = Draw(1, 4); count > 0 && !message.empty(); --count) {
      // Metadata comes first, and payload bytes change nothing.
      const int64_t last = std::min<int64_t>(message.size(), 120) - 1;
      const int64_t at = Draw(0, last);
      switch (Draw(0, 3)) {
        case 0: message[at] ^= static_cast<char>(1 << Draw(0, 7)); break;
        case 1: message[at] = static_cast<char>(Draw(0, 255)); break;
        case 2: message.erase(at, Draw(1, 8)); break;
        default: message.insert(at, 1, static_cast<char>(Draw(0, 255)));
      }
    }
  }

  // Alone and within a message of a stream, which makes no difference.
  void Decode(const std::string& message) {
    const auto decoded = DecodeBytes(message, limits_);
    const std::string streamed = WithinStream(message);
    const auto from_stream = DecodeStreamBytes(streamed, limits_);
    ASSERT_EQ(from_stream.ok(), decoded.ok()) << from_stream.status();
    ASSERT_EQ(from_stream.status().code(), decoded.status().code());
    if (decoded.ok()) {
      ++accepted_;
      ASSERT_LE(decoded->work->result_bytes(),
                static_cast<size_t>(limits_.max_message_bytes));
      for (const AttentionWork* work :
           {decoded->work.get(), from_stream->work.get()}) {
        const absl::Status bounds = CheckMemoryBounds(*work);
        ASSERT_TRUE(bounds.ok()) << bounds;
      }
      return;
    }
    ++refused_;
    const absl::StatusCode code = decoded.status().code();
    ASSERT_TRUE(code == absl::StatusCode::kInvalidArgument ||
                code == absl::StatusCode::kResourceExhausted)
        << decoded.status();
    ASSERT_FALSE(decoded.status().message().empty());
  }

  std::mt19937_64 random_;
  testing::ScopedTrace trace_;
  RequestLimits limits_;
  int accepted_ = 0;
  int refused_ = 0;
};

TEST_F(RequestMutationTest, AcceptsWhatIsNotMutated) {
  for (int i = 0; i < 500; ++i) {
    const RequestSpec spec = RandomSpec(random_);
    const std::string message =
        RequestMaker(spec, random_).request().SerializeAsString();
    SCOPED_TRACE(ToString(spec));
    const auto decoded = DecodeBytes(message, limits_);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    const absl::Status bounds = CheckMemoryBounds(*decoded->work);
    ASSERT_TRUE(bounds.ok()) << bounds;
  }
}

TEST_F(RequestMutationTest, SurvivesMutatedFields) {
  for (int i = 0; i < 4'000; ++i) {
    Request request = RequestMaker(RandomSpec(random_), random_).request();
    for (int64_t count = Draw(1, 3); count > 0; --count) MutateField(request);
    Decode(request.SerializeAsString());
    if (HasFatalFailure()) FAIL() << request.ShortDebugString();
  }
  // Both happen, or the test tests nothing.
  EXPECT_GT(accepted_, 100);
  EXPECT_GT(refused_, 100);
}

TEST_F(RequestMutationTest, SurvivesMutatedBytes) {
  for (int i = 0; i < 4'000; ++i) {
    std::string message =
        RequestMaker(RandomSpec(random_), random_).request().SerializeAsString();
    MutateBytes(message);
    Decode(message);
    if (HasFatalFailure()) FAIL();
  }
  EXPECT_GT(accepted_, 100);
  EXPECT_GT(refused_, 100);
}

}  // namespace
}  // namespace attention::test
