#include <algorithm>
#include <cstdint>

#include "tests/fuzz/fuzz_target.h"

namespace attention::test {

FragmentedMessage::FragmentedMessage(absl::string_view input) {
  size_t cut_count = 0;
  if (!input.empty()) {
    cut_count = static_cast<uint8_t>(input[0]) % (kMaxCuts + 1);
    input.remove_prefix(1);
  }
  std::vector<size_t> cuts;
  for (; cut_count > 0 && input.size() >= 2; --cut_count) {
    cuts.push_back(static_cast<uint8_t>(input[0]) |
                   static_cast<size_t>(static_cast<uint8_t>(input[1])) << 8);
    input.remove_prefix(2);
  }
  message_ = std::string(input);
  for (size_t& cut : cuts) cut %= message_.size() + 1;
  std::sort(cuts.begin(), cuts.end());
  size_t begin = 0;
  for (size_t cut : cuts) {
    Add(input.substr(begin, cut - begin));
    begin = cut;
  }
  Add(input.substr(begin));
}

void FragmentedMessage::Add(absl::string_view fragment) {
  memory_.push_back(std::make_unique<char[]>(fragment.size()));
  std::copy(fragment.begin(), fragment.end(), memory_.back().get());
  fragments_.emplace_back(memory_.back().get(), fragment.size());
}

std::string FragmentedMessage::Input(absl::string_view message,
                                     const std::vector<size_t>& cuts) {
  std::string input(1, static_cast<char>(cuts.size()));
  for (size_t cut : cuts) {
    input += static_cast<char>(cut & 0xff);
    input += static_cast<char>(cut >> 8);
  }
  return input.append(message.data(), message.size());
}

}  // namespace attention::test
