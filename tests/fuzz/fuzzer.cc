// One target under libFuzzer. Before the first input, the target's seeds are
// written to the folder that --seeds=FOLDER names, if any; libFuzzer itself
// ignores flags with two dashes.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/strip.h"
#include "tests/fuzz/fuzz_target.h"

using attention::test::ATTENTION_FUZZ_TARGET;

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  for (int i = 1; i < *argc; ++i) {
    absl::string_view folder = (*argv)[i];
    if (!absl::ConsumePrefix(&folder, "--seeds=")) continue;
    const std::filesystem::path path(std::string{folder});
    std::filesystem::create_directories(path);
    for (const auto& seed : ATTENTION_FUZZ_TARGET.seeds()) {
      std::ofstream(path / seed.name, std::ios::binary) << seed.input;
    }
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto accepted =
      ATTENTION_FUZZ_TARGET.run({reinterpret_cast<const char*>(data), size});
  if (!accepted.ok()) {
    std::fprintf(stderr, "%s\n", accepted.status().ToString().c_str());
    std::abort();
  }
  return 0;
}
