// Computes causal attention on a server: attention-quickstart HOST:PORT.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <random>
#include <vector>

#include "client/cpp/attention_client.h"

int main(int argc, char** argv) {
  const char* target = argc > 1 ? argv[1] : "localhost:50051";
  auto client = attention::Client::Create({.target = target});
  if (!client.ok()) {
    std::cerr << client.status() << "\n";
    return 2;
  }

  // One sequence of 512 tokens, 16 query heads, 4 K/V heads, 128 dimensions.
  const std::vector<int64_t> query_shape = {1, 512, 16, 128};
  const std::vector<int64_t> kv_shape = {1, 512, 4, 128};
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> query(512 * 16 * 128), key(512 * 4 * 128);
  for (float& x : query) x = normal(random);
  for (float& x : key) x = normal(random);
  // The weights of a row add up to 1, so values of 7 must give outputs of 7.
  const std::vector<float> value(512 * 4 * 128, 7.0f);

  attention::AttentionRequest request;
  request.query =
      attention::TensorView::Contiguous(query.data(), query_shape, 4);
  request.key = attention::TensorView::Contiguous(key.data(), kv_shape, 4);
  request.value = attention::TensorView::Contiguous(value.data(), kv_shape, 4);
  request.mask = attention::MaskKind::kCausalBottomRight;

  const auto result = (*client)->Compute(request);
  if (!result.ok()) {
    std::cerr << result.status() << "\n";
    return 1;
  }
  std::vector<float> output(result->output.size() / sizeof(float));
  std::memcpy(output.data(), result->output.data(), result->output.size());
  float largest_error = 0;
  for (const float x : output) {
    largest_error = std::max(largest_error, std::abs(x - 7.0f));
  }
  std::cout << output.size() << " outputs from "
            << result->timings.device_name() << ", computed in "
            << result->timings.compute_duration().nanos() / 1e6
            << " ms, largest error " << largest_error << "\n";
  return output.size() == query.size() && largest_error < 1e-4f ? 0 : 1;
}
