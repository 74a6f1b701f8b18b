#include "client/safetensors/safetensors.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace attention {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

std::string FileBytes(absl::string_view header, absl::string_view data,
                      uint64_t header_bytes) {
  std::string file(8, '\0');
  for (int i = 0; i < 8; ++i) {
    file[i] = static_cast<char>((header_bytes >> (8 * i)) & 0xff);
  }
  return absl::StrCat(file, header, data);
}

std::string FileBytes(absl::string_view header, absl::string_view data = "") {
  return FileBytes(header, data, header.size());
}

void ExpectRefused(std::string bytes, absl::string_view message) {
  const auto file = SafetensorsFile::FromBytes(std::move(bytes));
  EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(file.status().message()),
              HasSubstr(std::string(message)));
}

class TemporaryFile {
 public:
  TemporaryFile()
      : path_(std::filesystem::path(testing::TempDir()) /
              absl::StrCat("safetensors_test_", getpid(), "_", ++count_)) {}
  ~TemporaryFile() { std::filesystem::remove(path_); }
  std::string path() const { return path_.string(); }
  std::string Read() const {
    std::ostringstream out;
    out << std::ifstream(path_, std::ios::binary).rdbuf();
    return out.str();
  }

 private:
  static inline int count_ = 0;
  const std::filesystem::path path_;
};

TEST(SafetensorsReaderTest, ReadsTensorsAndMetadata) {
  const auto file = SafetensorsFile::FromBytes(
      FileBytes(R"({"__metadata__":{"layout":"BHSD"},)"
                R"("a":{"dtype":"F32","shape":[1,2],"data_offsets":[2,10]},)"
                R"("b":{"dtype":"BF16","shape":[],"data_offsets":[0,2]}}  )",
                "xyABCDEFGH"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT((*file)->metadata(), ElementsAre(Pair("layout", "BHSD")));
  const auto a = (*file)->tensor("a");
  ASSERT_TRUE(a.ok()) << a.status();
  EXPECT_EQ(a->type, SafetensorsType::kF32);
  EXPECT_THAT(a->shape, ElementsAre(1, 2));
  EXPECT_EQ(a->bytes, "ABCDEFGH");
  const auto b = (*file)->tensor("b");
  ASSERT_TRUE(b.ok()) << b.status();
  EXPECT_EQ(b->type, SafetensorsType::kBF16);
  EXPECT_THAT(b->shape, IsEmpty());
  EXPECT_EQ(b->bytes, "xy");
}

TEST(SafetensorsReaderTest, ReadsEveryType) {
  const struct {
    const char* name;
    int64_t bytes;
  } kTypes[] = {{"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"F8_E4M3", 1},
                {"I64", 8}, {"I32", 4}, {"I16", 2}, {"I8", 1},   {"U64", 8},
                {"U32", 4}, {"U16", 2}, {"U8", 1},  {"BOOL", 1}};
  for (const auto& type : kTypes) {
    const auto file = SafetensorsFile::FromBytes(
        FileBytes(absl::StrCat(R"({"t":{"dtype":")", type.name,
                               R"(","shape":[3],"data_offsets":[0,)",
                               3 * type.bytes, "]}}"),
                  std::string(3 * type.bytes, 'z')));
    ASSERT_TRUE(file.ok()) << type.name << ": " << file.status();
    EXPECT_EQ(ToString((*file)->tensor("t")->type), type.name);
    EXPECT_EQ(ElementBytes((*file)->tensor("t")->type), type.bytes);
  }
}

TEST(SafetensorsReaderTest, AnUnknownNameListsTheKnownOnes) {
  const auto file = SafetensorsFile::FromBytes(FileBytes(
      R"({"q":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x"));
  ASSERT_TRUE(file.ok()) << file.status();
  const absl::Status status = (*file)->tensor("query").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(R"(no tensor "query" among "q")"));
}

TEST(SafetensorsReaderTest, EmptyTensorsMayShareAnOffset) {
  const auto file = SafetensorsFile::FromBytes(
      FileBytes(R"({"a":{"dtype":"F32","shape":[0,4],"data_offsets":[0,0]},)"
                R"("b":{"dtype":"U8","shape":[9223372036854775807,0],)"
                R"("data_offsets":[0,0]},)"
                R"("c":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                "wxyz"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->tensors().size(), 3);
}

TEST(SafetensorsReaderTest, RefusesABadHeaderLength) {
  ExpectRefused("", "it has 0 bytes");
  ExpectRefused("1234567", "it has 7 bytes");
  ExpectRefused(FileBytes("{}", "", 3), "must be at most 2; got 3");
  ExpectRefused(FileBytes("{}", "", std::numeric_limits<uint64_t>::max()),
                "got 18446744073709551615");
  ExpectRefused(FileBytes("{}", "", uint64_t{1} << 63),
                "got 9223372036854775808");
  ExpectRefused(FileBytes("", "", 0), "not JSON");
}

TEST(SafetensorsReaderTest, RefusesAHeaderLongerThanTheFormatAllows) {
  ExpectRefused(FileBytes("{}", std::string(100'000'100, ' '), 100'000'001),
                "must be at most 100000000; got 100000001");
}

TEST(SafetensorsReaderTest, RefusesBrokenJson) {
  ExpectRefused(FileBytes("{"), "not JSON");
  ExpectRefused(FileBytes("[]"), "not a JSON object");
  ExpectRefused(FileBytes("null"), "not a JSON object");
  ExpectRefused(FileBytes("{}{}"), "not JSON");
  ExpectRefused(FileBytes("{\"\xff\":{}}"), "not JSON");
  ExpectRefused(FileBytes(absl::string_view("{}\0", 3)), "not JSON");
}

TEST(SafetensorsReaderTest, RefusesDeepNesting) {
  ExpectRefused(FileBytes(R"({"a":{"shape":[[1]]}})"), "nests deeper");
  const size_t depth = 1'000'000;
  ExpectRefused(FileBytes(absl::StrCat(R"({"a":)", std::string(depth, '['),
                                       std::string(depth, ']'), "}")),
                "nests deeper");
}

TEST(SafetensorsReaderTest, RefusesDuplicateKeys) {
  const std::string tensor =
      R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  ExpectRefused(
      FileBytes(absl::StrCat(R"({"a":)", tensor, R"(,"a":)", tensor, "}"), "x"),
      R"(names "a" twice)");
  ExpectRefused(FileBytes(R"({"a":{"dtype":"U8","shape":[1],"shape":[1],)"
                          R"("data_offsets":[0,1]}})",
                          "x"),
                R"(names "shape" twice)");
}

TEST(SafetensorsReaderTest, RefusesBrokenMetadata) {
  ExpectRefused(FileBytes(R"({"__metadata__":[]})"), "is not an object");
  ExpectRefused(FileBytes(R"({"__metadata__":{"a":1}})"),
                R"("a" is not a string)");
}

TEST(SafetensorsReaderTest, RefusesIncompleteTensors) {
  ExpectRefused(FileBytes(R"({"a":1})"), "needs dtype");
  ExpectRefused(FileBytes(R"({"a":{"dtype":"U8","shape":[0]}})"),
                "needs dtype");
  ExpectRefused(
      FileBytes(R"({"a":{"dtype":7,"shape":[0],"data_offsets":[0,0]}})"),
      "not a string");
  ExpectRefused(
      FileBytes(R"({"a":{"dtype":"F33","shape":[0],"data_offsets":[0,0]}})"),
      R"(unknown dtype "F33")");
}

TEST(SafetensorsReaderTest, RefusesBadShapesAndOffsets) {
  const auto with = [](absl::string_view shape, absl::string_view offsets) {
    return FileBytes(absl::StrCat(R"({"a":{"dtype":"F32","shape":)", shape,
                                  R"(,"data_offsets":)", offsets, "}}"),
                     "12345678");
  };
  ExpectRefused(with("2", "[0,8]"), "shape of tensor");
  ExpectRefused(with("[-2]", "[0,8]"), "shape of tensor");
  ExpectRefused(with("[2.0]", "[0,8]"), "shape of tensor");
  ExpectRefused(with("[\"2\"]", "[0,8]"), "shape of tensor");
  ExpectRefused(with("[9223372036854775808]", "[0,8]"), "shape of tensor");
  ExpectRefused(with("[1e400]", "[0,8]"), "not JSON");
  ExpectRefused(with("[2]", "[0]"), "data_offsets of tensor");
  ExpectRefused(with("[2]", "[0,8,8]"), "data_offsets of tensor");
  ExpectRefused(with("[2]", "[-8,0]"), "data_offsets of tensor");
  ExpectRefused(with("[2]", "[8,0]"), "in order");
  ExpectRefused(with("[2]", "[0,9]"), "at most the data's 8 bytes");
  ExpectRefused(with("[2]", "[9223372036854775800,9223372036854775807]"),
                "at most the data's 8 bytes");
  ExpectRefused(with("[3]", "[0,8]"), "does not have 8 bytes");
}

TEST(SafetensorsReaderTest, RefusesShapesWhoseSizeOverflows) {
  // 2^62 elements of 4 bytes are 2^64 bytes: 0 when computed carelessly.
  ExpectRefused(
      FileBytes(R"({"a":{"dtype":"F32","shape":[4611686018427387904],)"
                R"("data_offsets":[0,0]}})"),
      "does not have 0 bytes");
  ExpectRefused(
      FileBytes(R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],)"
                R"("data_offsets":[0,0]}})"),
      "does not have 0 bytes");
  ExpectRefused(
      FileBytes(R"({"a":{"dtype":"U8","shape":[4294967296,0,4294967296],)"
                R"("data_offsets":[0,0]}})"),
      "does not have 0 bytes");
}

TEST(SafetensorsReaderTest, RefusesOverlapsHolesAndRests) {
  const auto with = [](int a_begin, int a_end, int b_begin, int b_end) {
    return FileBytes(
        absl::StrCat(R"({"a":{"dtype":"U8","shape":[)", a_end - a_begin,
                     R"(],"data_offsets":[)", a_begin, ",", a_end,
                     R"(]},"b":{"dtype":"U8","shape":[)", b_end - b_begin,
                     R"(],"data_offsets":[)", b_begin, ",", b_end, "]}}"),
        "12345678");
  };
  EXPECT_TRUE(SafetensorsFile::FromBytes(with(4, 8, 0, 4)).ok());
  ExpectRefused(with(0, 4, 3, 8), R"("b" overlaps)");
  ExpectRefused(with(0, 8, 0, 8), "overlaps");
  ExpectRefused(with(0, 3, 4, 8), R"("b" leaves a hole)");
  ExpectRefused(with(1, 4, 4, 8), R"("a" leaves a hole)");
  ExpectRefused(with(0, 4, 4, 7), "1 bytes at its end");
}

TEST(SafetensorsReaderTest, NamesReachMessagesEscaped) {
  ExpectRefused(FileBytes(R"({"\u001b[2J":1})"), R"("\033[2J")");
}

TEST(SafetensorsReaderTest, MutatedFilesNeverReadOutside) {
  const std::string good =
      FileBytes(R"({"__metadata__":{"k":"v"},)"
                R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                R"("b":{"dtype":"U8","shape":[4],"data_offsets":[24,28]}})",
                std::string(28, 'x'));
  std::mt19937 random(7);
  int accepted = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    std::string bytes = good;
    const int edits = 1 + static_cast<int>(random() % 3);
    for (int edit = 0; edit < edits; ++edit) {
      const size_t at = random() % bytes.size();
      switch (random() % 3) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes.erase(at, 1 + random() % 4);
          break;
        default:
          bytes.insert(at, 1, "0123456789[]{},:\""[random() % 17]);
      }
      if (bytes.empty()) bytes = good;
    }
    const auto file = SafetensorsFile::FromBytes(bytes);
    if (!file.ok()) continue;
    ++accepted;
    size_t total = 0;
    for (const auto& [name, tensor] : (*file)->tensors()) {
      for (const char c : tensor.bytes) total += c != '\0';
    }
    EXPECT_LE(total, bytes.size());
  }
  EXPECT_GT(accepted, 0);  // some edits touch only data
}

TEST(SafetensorsFileTest, OpenReportsTheSystemsError) {
  EXPECT_EQ(SafetensorsFile::Open("/nonexistent/x").status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(SafetensorsFile::Open("/").status().code(),
            absl::StatusCode::kInvalidArgument);
  TemporaryFile file;
  std::ofstream(file.path()).close();
  EXPECT_THAT(
      std::string(SafetensorsFile::Open(file.path()).status().message()),
      HasSubstr("it has 0 bytes"));
}

TEST(SafetensorsFileTest, OpenRefusesAFifoAtOnce) {
  TemporaryFile file;
  ASSERT_EQ(mkfifo(file.path().c_str(), 0600), 0);
  EXPECT_THAT(
      std::string(SafetensorsFile::Open(file.path()).status().message()),
      HasSubstr("is not a file"));
}

TEST(SafetensorsFileTest, ErrorsOfOpenNameThePath) {
  TemporaryFile file;
  std::ofstream(file.path()) << "not safetensors at all";
  const absl::Status status = SafetensorsFile::Open(file.path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(file.path()));
}

TEST(SafetensorsWriterTest, RoundTrips) {
  TemporaryFile file;
  const std::string q(24, 'q'), k(6, 'k'), lse(16, 'l');
  ASSERT_EQ(WriteSafetensors(file.path(),
                             {{"q", {SafetensorsType::kF32, {2, 3}, q}},
                              {"k", {SafetensorsType::kBF16, {3}, k}},
                              {"lse", {SafetensorsType::kF64, {2}, lse}},
                              {"none", {SafetensorsType::kF16, {0, 5}, ""}}},
                             {{"layout", "BSHD"}, {"note", "\"quoted\" ü"}}),
            absl::OkStatus());
  const auto read = SafetensorsFile::Open(file.path());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT((*read)->metadata(), ElementsAre(Pair("layout", "BSHD"),
                                               Pair("note", "\"quoted\" ü")));
  ASSERT_EQ((*read)->tensors().size(), 4);
  EXPECT_EQ((*read)->tensor("q")->bytes, q);
  EXPECT_EQ((*read)->tensor("k")->bytes, k);
  EXPECT_EQ((*read)->tensor("lse")->bytes, lse);
  EXPECT_THAT((*read)->tensor("none")->shape, ElementsAre(0, 5));
  for (const auto& [name, tensor] : (*read)->tensors()) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.bytes.data()) %
                  static_cast<uintptr_t>(ElementBytes(tensor.type)),
              0)
        << name;
  }
}

TEST(SafetensorsWriterTest, AFileWithoutTensorsIsValid) {
  TemporaryFile file;
  ASSERT_EQ(WriteSafetensors(file.path(), {}), absl::OkStatus());
  const auto read = SafetensorsFile::Open(file.path());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT((*read)->tensors(), IsEmpty());
}

TEST(SafetensorsWriterTest, AViewOfTheReplacedFileStaysReadable) {
  TemporaryFile file;
  const std::string old_bytes(8192, 'o'), new_bytes(4, 'n');
  ASSERT_EQ(
      WriteSafetensors(file.path(),
                       {{"t", {SafetensorsType::kU8, {8192}, old_bytes}}}),
      absl::OkStatus());
  const auto old_file = SafetensorsFile::Open(file.path());
  ASSERT_TRUE(old_file.ok()) << old_file.status();
  ASSERT_EQ(WriteSafetensors(file.path(),
                             {{"t", {SafetensorsType::kU8, {4}, new_bytes}}}),
            absl::OkStatus());
  EXPECT_EQ((*old_file)->tensor("t")->bytes, old_bytes);
  EXPECT_EQ((*SafetensorsFile::Open(file.path()))->tensor("t")->bytes,
            new_bytes);
}

TEST(SafetensorsWriterTest, RefusesWhatTheReaderWould) {
  TemporaryFile file;
  const auto code = [&](const std::string& name, SafetensorsTensor tensor,
                        SafetensorsMetadata metadata = {}) {
    return WriteSafetensors(file.path(), {{name, tensor}}, metadata).code();
  };
  const SafetensorsTensor good{SafetensorsType::kU8, {1}, "x"};
  EXPECT_EQ(code("a", {SafetensorsType::kF32, {2}, "1234"}),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("a", {SafetensorsType::kF32, {-1}, ""}),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("a", {SafetensorsType::kF32, {int64_t{1} << 62}, ""}),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("__metadata__", good), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("\xff", good), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("a", good, {{"k", "\xff"}}),
            absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(std::filesystem::exists(file.path()));
}

TEST(SafetensorsWriterTest, FailuresLeaveNothingBehind) {
  const SafetensorsTensor tensor{SafetensorsType::kU8, {1}, "x"};
  EXPECT_EQ(WriteSafetensors("/nonexistent/x", {{"a", tensor}}).code(),
            absl::StatusCode::kNotFound);
  // /dev/full fails every write, and must itself survive.
  const absl::Status status = WriteSafetensors("/dev/full", {{"a", tensor}});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("/dev/full"));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));
}

}  // namespace
}  // namespace attention
