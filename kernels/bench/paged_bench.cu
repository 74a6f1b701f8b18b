// Times attention over paged K/V on the current GPU, and checks it against the
// kernels for contiguous tensors.
//
//   paged_bench [--json=FILE] [--min_ms=N] [--check] CASE...
//
// A case is a comma-separated list, e.g. type=bf16,b=64,hq=16,hkv=8,n=4096,
// d=128,page=64. `m` queries each (1), `kv=fp8` for e4m3 pages, `long=131072`
// gives the first sequence that many keys, `lengths=lognormal` each its own,
// with the mean n, `split=balanced` cuts keys by that policy (fixed). GB/s
// counts every key and value once.
//
// As gpu_bench: inputs are random and rotate through several sets that together
// are far larger than the L2 cache; pages are in random order; the time is the
// median of many rounds, each between two events. A round is kMinLaunches or
// more, one behind the other as in a decoding loop: what the host does before
// the first is no kernel's time.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/bench/gpu_support.cuh"
#include "kernels/cuda/attention_cuda.h"
#include "kernels/cuda/decode/decode.h"
#include "kernels/paged_params.h"

namespace attention {
namespace {

using bench::Check;
using bench::Refuse;

struct Case {
  std::string text;
  PagedConfig config;
  int64_t batch = 1;
  int64_t query_length = 1;
  int64_t key_length = 4096;
  int64_t long_length = 0;              // of the first sequence, if above 0
  int64_t append_length = 0;            // tokens that each launch writes anew
  std::vector<int64_t> ragged_lengths;  // of all sequences, if not empty

  int64_t Length(int64_t sequence) const {
    if (!ragged_lengths.empty()) return ragged_lengths[sequence];
    return sequence == 0 && long_length > 0 ? long_length : key_length;
  }
  // Lengths of a log-normal distribution with the mean `key_length`, the same
  // in every run.
  void DrawLengths() {
    constexpr double kSigma = 1.0;  // of the logarithm
    std::mt19937 random(1);
    std::lognormal_distribution<double> lengths(
        std::log(static_cast<double>(key_length)) - kSigma * kSigma / 2,
        kSigma);
    ragged_lengths.resize(batch);
    for (int64_t& length : ragged_lengths) {
      length = std::max<int64_t>(std::llround(lengths(random)), 1);
    }
  }
  double KeyValueBytes() const {
    const HeadConfig& h = config.heads;
    double tokens = 0;
    for (int64_t i = 0; i < batch; ++i) tokens += Length(i);
    return tokens * h.kv_head_count * (h.head_dim_qk + h.head_dim_v) *
           KvElementBytes(config);
  }
};

Case ParseCase(const std::string& text) {
  Case c;
  c.text = text;
  HeadConfig& h = c.config.heads;
  h = {.data_type = DataType::kBFloat16,
       .head_dim_qk = 128,
       .query_head_count = 16,
       .mask = MaskKind::kCausalBottomRight};
  bool is_ragged = false;
  for (const bench::Item& item : bench::ParseItems(text)) {
    const int32_t number = std::atoi(item.value.c_str());
    if (bench::ParseHeads(item, h)) continue;
    if (item.key == "b")
      c.batch = number;
    else if (item.key == "m")
      c.query_length = number;
    else if (item.key == "n")
      c.key_length = number;
    else if (item.key == "long")
      c.long_length = number;
    else if (item.key == "append")
      c.append_length = number;
    else if (item.key == "page")
      c.config.page_tokens = number;
    else if (item.key == "kv" && item.value == "fp8")
      c.config.kv_data_type = KvDataType::kFloat8E4M3;
    else if (item.key == "lengths" && item.value == "lognormal")
      is_ragged = true;
    else if (item.key == "split" && item.value == "balanced")
      c.config.split_policy = SplitPolicy::kBalanced;
    else if (item.key == "split" && item.value == "fixed")
      c.config.split_policy = SplitPolicy::kFixed;
    else
      Refuse(text);
  }
  if (h.data_type == DataType::kFloat8E4M3) Refuse(text);  // kv=fp8 is meant
  bench::CompleteHeads(h);
  if (is_ragged) c.DrawLengths();
  return c;
}

struct Free {
  void operator()(void* data) const { cudaFree(data); }
};
using DeviceMemory = std::unique_ptr<void, Free>;

DeviceMemory Allocate(size_t bytes) {
  void* data = nullptr;
  Check(cudaMalloc(&data, std::max<size_t>(bytes, 1)), "allocate");
  return DeviceMemory(data);
}

struct Scratch {
  explicit Scratch(cuda::ScratchBytes bytes)
      : device(Allocate(bytes.device_bytes)) {
    Check(cudaMallocHost(&host, std::max<size_t>(bytes.host_bytes, 1)),
          "allocate pinned");
  }
  ~Scratch() { cudaFreeHost(host); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  cuda::Scratch get() const { return {host, device.get()}; }

  void* host = nullptr;
  DeviceMemory device;
};

constexpr int64_t kMinLaunches = 8;

// Sequences with their pages filled, ready to be attended, `launches` times
// without waiting.
class PagedSet {
 public:
  PagedSet(const Case& c, uint64_t seed, int64_t launches) : case_(c) {
    const HeadConfig& h = c.config.heads;
    const int64_t element = ElementBytes(h.data_type);
    scales_.assign(h.kv_head_count, 1.0f / 64);
    int64_t page_count = 0;
    for (int64_t i = 0; i < c.batch; ++i) {
      page_count += PagesFor(c.config, c.Length(i));
    }
    const int64_t page_bytes = (PageBytes(c.config) + 255) / 256 * 256;
    pages_ = Allocate(page_count * page_bytes);
    std::vector<void*> free(page_count);
    for (int64_t p = 0; p < page_count; ++p) {
      free[p] = static_cast<char*>(pages_.get()) + p * page_bytes;
    }
    std::shuffle(free.begin(), free.end(), std::mt19937_64(seed));
    query_ =
        Filled(c.batch * c.query_length * h.query_head_count * h.head_dim_qk,
               seed += 17);
    output_ = Allocate(c.batch * c.query_length * h.query_head_count *
                       h.head_dim_v * element);
    const auto strides = [](int64_t heads, int64_t dims) {
      return TensorStrides{.token = heads * dims, .head = dims};
    };
    for (int64_t i = 0; i < c.batch; ++i) {
      const int64_t count = PagesFor(c.config, c.Length(i));
      tables_.emplace_back(free.end() - count, free.end());
      free.resize(free.size() - count);
      PagedSequence s;
      s.query_strides = strides(h.query_head_count, h.head_dim_qk);
      s.output_strides = strides(h.query_head_count, h.head_dim_v);
      s.new_key_strides = strides(h.kv_head_count, h.head_dim_qk);
      s.new_value_strides = strides(h.kv_head_count, h.head_dim_v);
      const int64_t first = i * c.query_length;
      s.query = static_cast<char*>(query_.get()) +
                first * s.query_strides.token * element;
      s.output = static_cast<char*>(output_.get()) +
                 first * s.output_strides.token * element;
      s.pages = tables_.back().data();
      s.key_length = s.key_end = c.Length(i);
      s.scale = 1.0 / std::sqrt(h.head_dim_qk);
      s.key_scales = s.value_scales = scales_.data();
      sequences_.push_back(s);
      Append(i, seed += 29);
      sequences_[i].query_length = c.query_length;
    }
    if (c.append_length > 0) AppendAgain(seed);
    for (int64_t i = 0; i < launches; ++i) {
      scratch_.push_back(
          std::make_unique<Scratch>(cuda::PagedScratchSize(params())));
    }
  }

  PagedParams params() const {
    return {.config = case_.config,
            .sequences = sequences_.data(),
            .sequence_count = static_cast<int64_t>(sequences_.size())};
  }
  void Launch(cudaStream_t stream, int64_t index = 0) const {
    Check(cuda::LaunchPaged(params(), scratch_[index]->get(), stream),
          "launch");
  }

  // The largest difference of an output from the contiguous kernels', relative
  // to the largest output.
  double Error() const {
    const HeadConfig& h = case_.config.heads;
    const int64_t element = ElementBytes(h.data_type);
    Launch(nullptr);
    Check(cudaDeviceSynchronize(), "synchronize");
    const size_t bytes =
        case_.query_length * h.query_head_count * h.head_dim_v * element;
    std::vector<char> got(bytes), expected(bytes);
    double error = 0;
    for (size_t i = 0; i < sequences_.size(); ++i) {
      const PagedSequence& s = sequences_[i];
      DeviceMemory key =
          Filled(s.key_length * h.kv_head_count * h.head_dim_qk, seeds_[i]);
      DeviceMemory value =
          Filled(s.key_length * h.kv_head_count * h.head_dim_v, seeds_[i] + 7);
      DeviceMemory output = Allocate(bytes);
      Sequence contiguous;
      contiguous.query = s.query;
      contiguous.key = key.get();
      contiguous.value = value.get();
      contiguous.output = output.get();
      contiguous.query_strides = s.query_strides;
      contiguous.key_strides = s.new_key_strides;
      contiguous.value_strides = s.new_value_strides;
      contiguous.output_strides = s.output_strides;
      contiguous.query_length = s.query_length;
      contiguous.key_length = s.key_length;
      contiguous.scale = s.scale;
      const AttentionParams params = {h, &contiguous, 1};
      const Scratch scratch(cuda::ScratchSize(params));
      Check(cuda::Launch(params, scratch.get(), nullptr), "launch");
      Check(cudaMemcpy(expected.data(), output.get(), bytes,
                       cudaMemcpyDeviceToHost),
            "copy");
      Check(cudaMemcpy(got.data(), s.output, bytes, cudaMemcpyDeviceToHost),
            "copy");
      error = std::max(error, bench::RelativeError(h.data_type, got, expected));
    }
    return error;
  }

 private:
  DeviceMemory Filled(int64_t count, uint64_t seed) const {
    const DataType type = case_.config.heads.data_type;
    DeviceMemory memory = Allocate(count * ElementBytes(type));
    bench::FillRandom(type, memory.get(), count, seed);
    return memory;
  }

  void Append(int64_t index, uint64_t seed) {
    const HeadConfig& h = case_.config.heads;
    PagedSequence s = sequences_[index];
    DeviceMemory key =
        Filled(s.key_length * h.kv_head_count * h.head_dim_qk, seed);
    DeviceMemory value =
        Filled(s.key_length * h.kv_head_count * h.head_dim_v, seed + 7);
    seeds_.push_back(seed);
    s.new_key = key.get();
    s.new_value = value.get();
    s.append_length = s.key_length;
    const PagedParams params = {
        .config = case_.config, .sequences = &s, .sequence_count = 1};
    const Scratch scratch(cuda::PagedScratchSize(params));
    Check(cuda::LaunchPaged(params, scratch.get(), nullptr), "append");
    Check(cudaDeviceSynchronize(), "append");
  }

  // The same values for all sequences.
  void AppendAgain(uint64_t seed) {
    const HeadConfig& h = case_.config.heads;
    const int64_t rows = case_.append_length * h.kv_head_count;
    new_key_ = Filled(rows * h.head_dim_qk, seed);
    new_value_ = Filled(rows * h.head_dim_v, seed + 1);
    for (PagedSequence& s : sequences_) {
      s.new_key = new_key_.get();
      s.new_value = new_value_.get();
      s.append_length = case_.append_length;
    }
  }

  const Case case_;
  std::vector<float> scales_;
  DeviceMemory pages_, query_, output_, new_key_, new_value_;
  std::vector<std::vector<void*>> tables_;
  std::vector<uint64_t> seeds_;
  std::vector<PagedSequence> sequences_;
  std::vector<std::unique_ptr<Scratch>> scratch_;  // of each launch
};

// Each set is launched `launches` times a round.
double MedianMilliseconds(const std::vector<std::unique_ptr<PagedSet>>& sets,
                          int64_t launches, double min_ms) {
  const double round =
      bench::MedianRoundMilliseconds(min_ms, [&](cudaStream_t stream) {
        for (int64_t i = 0; i < launches; ++i) {
          for (const auto& set : sets) set->Launch(stream, i);
        }
      });
  return round / static_cast<double>(launches * std::ssize(sets));
}

int Main(int argc, char** argv) {
  std::FILE* json = nullptr;
  double min_ms = 200;
  bool check = false;
  std::vector<Case> cases;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.starts_with("--json=")) {
      json = std::fopen(argument.c_str() + 7, "w");
      if (json == nullptr) Refuse(argument);
    } else if (argument.starts_with("--min_ms=")) {
      min_ms = std::atof(argument.c_str() + 9);
    } else if (argument == "--check") {
      check = true;
    } else {
      cases.push_back(ParseCase(argument));
    }
  }
  if (cases.empty()) Refuse("no cases");

  cudaDeviceProp device;
  Check(cudaGetDeviceProperties(&device, 0), "device");
  std::printf("%s\n%-72s %10s %10s%s\n", device.name, "case", "us", "GB/s",
              check ? "      error" : "");
  for (const Case& c : cases) {
    constexpr double kWorkingSetBytes = 400e6;  // several times any L2 cache
    const auto count = std::clamp<int64_t>(
        static_cast<int64_t>(std::ceil(kWorkingSetBytes / c.KeyValueBytes())),
        2, 64);
    const int64_t launches = (kMinLaunches + count - 1) / count;
    std::vector<std::unique_ptr<PagedSet>> sets;
    for (int64_t i = 0; i < count; ++i) {
      sets.push_back(std::make_unique<PagedSet>(c, 977 * i + 1, launches));
    }
    const double ms = MedianMilliseconds(sets, launches, min_ms);
    const double gbytes = c.KeyValueBytes() / ms * 1e-6;
    std::printf("%-72s %10.2f %10.1f", c.text.c_str(), ms * 1e3, gbytes);
    if (check) std::printf(" %10.2e", sets[0]->Error());
    std::printf("\n");
    std::fflush(stdout);
    if (json != nullptr) {
      std::fprintf(json,
                   "{\"case\": \"%s\", \"ms\": %.6f, "
                   "\"gbytes_per_second\": %.3f}\n",
                   c.text.c_str(), ms, gbytes);
    }
  }
  if (json != nullptr) std::fclose(json);
  return 0;
}

}  // namespace
}  // namespace attention

int main(int argc, char** argv) { return attention::Main(argc, argv); }
