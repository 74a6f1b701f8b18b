// Where the search for hostile requests starts.
#ifndef ATTENTION_TESTS_FUZZ_REQUEST_SEEDS_H_
#define ATTENTION_TESTS_FUZZ_REQUEST_SEEDS_H_

#include <cstdint>
#include <vector>

#include "tests/fuzz/fuzz_target.h"

namespace attention::test {

// The region that seeds refer to.
inline constexpr char kSeedOwner[] = "owner-of-16-byte";
inline constexpr char kSeedRegion[] = "region";
inline constexpr int64_t kSeedRegionBytes = 4096;

// Valid requests of every kind, and one of every way to break one.
std::vector<Seed> RequestSeeds();

}  // namespace attention::test

#endif  // ATTENTION_TESTS_FUZZ_REQUEST_SEEDS_H_
