#include "client/output_file/output_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace attention {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::StartsWith;

std::string Read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class OutputFileTest : public testing::Test {
 protected:
  OutputFileTest() {
    std::string name = testing::TempDir() + "/output_file_XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~OutputFileTest() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const {
    return folder_ + "/" + name;
  }

  std::set<std::string> Names() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      names.insert(entry.path().filename());
    }
    return names;
  }

 private:
  std::string folder_;
};

TEST_F(OutputFileTest, ReplacesTheFileByAllParts) {
  const std::string path = Path("x");
  std::ofstream(path) << "something longer than what follows";
  EXPECT_EQ(WriteOutputFile(path, {"two ", "parts"}), absl::OkStatus());
  EXPECT_EQ(Read(path), "two parts");
  EXPECT_THAT(Names(), ElementsAre("x"));
}

TEST_F(OutputFileTest, TheCheckLeavesNothingBehindAndTheFileAsItWas) {
  EXPECT_EQ(CheckOutputFile(Path("new")), absl::OkStatus());
  EXPECT_THAT(Names(), IsEmpty());
  std::ofstream(Path("old")) << "old";
  EXPECT_EQ(CheckOutputFile(Path("old")), absl::OkStatus());
  EXPECT_EQ(Read(Path("old")), "old");
  EXPECT_THAT(Names(), ElementsAre("old"));
}

TEST_F(OutputFileTest, LinksStayLinks) {
  std::ofstream(Path("file")) << "old";
  std::filesystem::create_symlink("file", Path("link"));
  EXPECT_EQ(WriteOutputFile(Path("link"), {"new"}), absl::OkStatus());
  EXPECT_TRUE(std::filesystem::is_symlink(Path("link")));
  EXPECT_EQ(Read(Path("file")), "new");
}

TEST_F(OutputFileTest, AFolderThatIsNotThereIsAnErrorAtOnce) {
  for (const absl::Status& status :
       {CheckOutputFile(Path("none/x")), WriteOutputFile(Path("none/x"), {})}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
    EXPECT_THAT(std::string(status.message()),
                StartsWith(Path("none/x") + ": cannot create"));
  }
}

TEST_F(OutputFileTest, AFolderIsNoFile) {
  std::filesystem::create_directory(Path("folder"));
  const std::string error = Path("folder") + ": cannot create: Is a directory";
  EXPECT_THAT(std::string(CheckOutputFile(Path("folder")).message()),
              StartsWith(error));
  EXPECT_THAT(std::string(WriteOutputFile(Path("folder"), {"x"}).message()),
              StartsWith(error));
}

// /dev/full fails every write, and must itself survive.
TEST_F(OutputFileTest, DevicesAreWrittenInPlace) {
  EXPECT_EQ(CheckOutputFile("/dev/full"), absl::OkStatus());
  EXPECT_EQ(WriteOutputFile("/dev/null", {"x"}), absl::OkStatus());
  EXPECT_EQ(WriteOutputFile("/dev/full", {"x"}).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));
}

TEST_F(OutputFileTest, TheCheckDoesNotWaitForAPipesReader) {
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0) << errno;
  EXPECT_EQ(CheckOutputFile(Path("pipe")), absl::OkStatus());
  EXPECT_TRUE(std::filesystem::is_fifo(Path("pipe")));
}

}  // namespace
}  // namespace attention
