// A consumer of the e4m3 kernels: a warpgroup that owns 64 rows of a tile.
//
// As consumer.cuh, with these differences. Weights are multiplied as e4m3, 2^7
// times as large, so that they use its range: the largest is 128 of at most 448,
// and a row takes a new maximum only when a weight would be larger than that.
// Sums of tensor cores keep some 14 bits, which the sum over many keys would
// outgrow: every few steps it is added to one in fp32 (DeepSeek-AI 2024,
// "DeepSeek-V3", section 3.3.2). Each row has the scales of its own head.
#ifndef ATTENTION_KERNELS_CUDA_SM90_FLOAT8_FLOAT8_CONSUMER_CUH_
#define ATTENTION_KERNELS_CUDA_SM90_FLOAT8_FLOAT8_CONSUMER_CUH_

#include "kernels/cuda/float8.cuh"
#include "kernels/cuda/portable/element.cuh"
#include "kernels/cuda/portable/problem.cuh"
#include "kernels/cuda/portable/tensor_core.cuh"
#include "kernels/cuda/sm90/float8/float8_tile.cuh"
#include "kernels/cuda/sm90/non_finite.cuh"
#include "kernels/cuda/sm90/output.cuh"

namespace attention::cuda::sm90 {

template <typename Tile>
class Float8Consumer {
 public:
  using T = __nv_fp8_e4m3;
  using Output = portable::Element<__nv_bfloat16>;
  static constexpr int kBlockN = Tile::kBlockN;
  static constexpr int kStepBytes = 32;  // of 32 elements
  static constexpr float kWeightFactor = 128;
  static constexpr float kLogWeightFactor = 7;  // to base 2
  static constexpr float kLogLargestWeight = 8.8f;  // at most log2(448)

  __device__ Float8Consumer(const WorkList& list, Float8Shared<Tile>& shared,
                            const Float8Memory<Tile>& memory)
      : list_(list),
        shared_(shared),
        memory_(memory),
        warpgroup_(__shfl_sync(0xffffffffu, threadIdx.x / 128 - 1, 0)) {}

  __device__ __forceinline__ void Run() {
    if (warpgroup_ == 1) PassTurn();
    while (const TileWork* work = NextTile()) RunTiles(work);
  }

 private:
  static __device__ int Thread() { return threadIdx.x % 128; }
  static __device__ int Lane() { return threadIdx.x % 32; }
  // The row, within the tile, of accumulator elements 2 * half + {0, 1}.
  __device__ int Row(int half) const {
    return warpgroup_ * 64 + Thread() / 32 * 16 + half * 8 + Lane() / 4;
  }
  static constexpr int kAllConsumers = 1;  // a named barrier
  // The unit of exponentials is slow, and two warpgroups that compute them at
  // the same time leave it idle at the same time: they take turns. To wait is
  // a loop, across which the assembler moves nothing.
  __device__ __forceinline__ void TakeTurn(uint32_t step) {
    shared_.turn[warpgroup_].Wait(step % 2);
  }
  __device__ __forceinline__ void PassTurn() {
    ArriveByWarp(shared_.turn[1 - warpgroup_]);
  }

  __device__ __forceinline__ Operand QueryOperand() const {
    return Uniform(RowOperand(memory_.Query(QueryStage(tile_count_)) +
                              warpgroup_ * 64 * kPanelWidthBytes));
  }
  __device__ __forceinline__ Operand KeyOperand() const {
    return Uniform(RowOperand(memory_.Key(KeyStage())));
  }
  __device__ __forceinline__ Operand ValueOperand() const {
    return Uniform(RowOperand(memory_.Value(ValueStage())));
  }
  __device__ __forceinline__ void IssueScores(Operand query, Operand key) {
#pragma unroll
    for (int step = 0; step < Tile::kQueryDims / 32; ++step) {
      Product<T, kBlockN>::FromShared(s_, query + step * kStepBytes,
                                      key + step * kStepBytes, step > 0);
    }
    WarpgroupCommit();
  }
  __device__ __forceinline__ void IssueValues(Operand value) {
#pragma unroll
    for (int step = 0; step < kBlockN / 32; ++step) {
      Product<T, Tile::kValueDims>::FromRegisters(
          o_, p_ + 4 * step,
          value + (step / 2 * Tile::kValuePanelBytes + step % 2 * kStepBytes));
    }
    WarpgroupCommit();
  }

  static __device__ int QueryStage(uint32_t tile) {
    return tile % Tile::kQueryStages;
  }
  // Keys and values have rings of the same size, and values lag one step behind.
  __device__ int KeyStage() const { return key_count_ % Tile::kStages; }
  __device__ int ValueStage() const {
    return (key_count_ - 1) % Tile::kStages;
  }
  __device__ __forceinline__ void WaitForKeys() {
    shared_.key_full[KeyStage()].Wait(key_count_ / Tile::kStages % 2);
  }
  __device__ __forceinline__ void ReleaseKeys() {
    ArriveByWarp(shared_.key_empty[KeyStage()]);
  }
  // Of the step before the one that WaitForKeys is about.
  __device__ __forceinline__ void WaitForValues() {
    shared_.value_full[ValueStage()].Wait((key_count_ - 1) / Tile::kStages % 2);
  }
  __device__ __forceinline__ void ReleaseValues() {
    ArriveByWarp(shared_.value_empty[ValueStage()]);
  }

  // Relative to the step; see TileWork.
  __device__ __forceinline__ TileWork::Columns VisibleColumns(
      int half, int step, const TileWork& work) const {
    return work.VisibleColumns(
        (work.first_row + Row(half)) >> list_.group_shift, step * kBlockN);
  }

  __device__ __forceinline__ void Mask(int step, const TileWork& work) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const TileWork::Columns visible = VisibleColumns(half, step, work);
      const int begin = visible.begin - Lane() % 4 * 2;
      const int end = visible.end - Lane() % 4 * 2;
#pragma unroll
      for (int j = 0; j < kBlockN / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int column = 8 * j + e;
          if (column < begin || column >= end) {
            s_[4 * j + 2 * half + e] = -INFINITY;
          }
        }
      }
    }
  }

  // The largest score of this thread in each row.
  __device__ __forceinline__ void FindMaxima(float (&max)[2]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      constexpr int kChains = 4;  // of dependent instructions
      float chain[kChains];
#pragma unroll
      for (int j = 0; j < kBlockN / 8; ++j) {
        const float pair =
            fmaxf(s_[4 * j + 2 * half], s_[4 * j + 2 * half + 1]);
        chain[j % kChains] =
            j < kChains ? pair : fmaxf(chain[j % kChains], pair);
      }
      max[half] =
          fmaxf(fmaxf(chain[0], chain[1]), fmaxf(chain[2], chain[3]));
    }
  }
  // Takes the scores into the maxima, which are what the accumulators so far and
  // the weights to come are relative to, in rows where some weight would be too
  // large otherwise. Returns whether there are any in the warp: the accumulators
  // are then to be rescaled.
  __device__ __forceinline__ bool UpdateMaxima() {
    float max[2];
    FindMaxima(max);
    const bool is_needed =
        max[0] * factor_ > limit_[0] || max[1] * factor_ > limit_[1];
    if (!__any_sync(0xffffffffu, is_needed)) return false;
    bool large = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float all = max[half];
      all = fmaxf(all, __shfl_xor_sync(0xffffffffu, all, 1));
      all = fmaxf(all, __shfl_xor_sync(0xffffffffu, all, 2));
      const float old = max_[half];
      // Does not depend on other rows.
      if (all * factor_ > limit_[half]) max_[half] = fmaxf(old, all);
      rescale_[half] = portable::FastExp2((old - Base(half)) * factor_);
      sum_[half] *= rescale_[half];
      const float offset = Base(half) * factor_;
      large |= !(fabsf(offset) <= portable::kSmallOffset);
      offset_[half] = offset - kLogWeightFactor;
      limit_[half] = max_[half] == -INFINITY
                         ? -INFINITY
                         : offset_[half] + kLogLargestWeight;
    }
    if (__any_sync(0xffffffffu, large)) {
#pragma unroll
      for (int i = 0; i < kBlockN / 2; ++i) s_[i] -= Base(i / 2 % 2);
      offset_[0] = offset_[1] = -kLogWeightFactor;
      limit_[0] = limit_[1] = -INFINITY;
    }
    return true;
  }
  // Turns the scores into weights. Each thread sums its own columns only.
  __device__ __forceinline__ void ComputeWeights() {
#pragma unroll
    for (int i = 0; i < kBlockN / 2; ++i) {
      const int half = i / 2 % 2;
      s_[i] = portable::FastExp2(fmaf(s_[i], factor_, -offset_[half]));
      sum_[half] += s_[i];
    }
    PackWeights();
  }
  // The maximum, or 0 while that is -inf: -inf - -inf would be NaN.
  __device__ __forceinline__ float Base(int half) const {
    return max_[half] == -INFINITY ? 0.0f : max_[half];
  }

  // See ValueOffset.
  __device__ __forceinline__ void PackWeights() {
#pragma unroll
    for (int i = 0; i < kBlockN / 8; ++i) {
      const int half = i % 2;
      const float* const s = s_ + i / 2 * 8 + 2 * half;
      asm("{ .reg .b16 low, high;\n"
          "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
          "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
          "mov.b32 %0, {low, high}; }"
          : "=r"(p_[i])
          : "f"(s[0]), "f"(s[1]), "f"(s[4]), "f"(s[5]));
    }
  }

  __device__ __forceinline__ void RescaleOutput() {
#pragma unroll
    for (int i = 0; i < Tile::kValueDims / 2; ++i) o_[i] *= rescale_[i / 2 % 2];
  }

  // This thread's part of the sum in shared memory: elements of O in fours, at
  // kSumStride, and the maxima that they are relative to.
  static constexpr int kSumStride = 128 * 16;
  __device__ __forceinline__ uint32_t SumAddress() const {
    return memory_.Sum(warpgroup_) + ThreadAnew() * 16;
  }
  __device__ __forceinline__ uint32_t SumMaxAddress() const {
    return memory_.Sum(warpgroup_) + 64 * Tile::kValueDims * 4 +
           ThreadAnew() * 8;
  }
  // Whether a tile has one when its softmax ends: the values of its last step
  // stay in O.
  static __device__ bool HasSum(const TileWork& work) {
    return work.end_step - work.first_step > Tile::kStepsPerSum;
  }
  // What makes the sum relative to the maxima so far.
  __device__ __forceinline__ float SumRescale(int half) const {
    const float max =
        __uint_as_float(LoadSharedWord(SumMaxAddress() + 4 * half));
    return portable::FastExp2((max - Base(half)) * factor_);
  }
  // O += the sum
  __device__ __forceinline__ void AddSum(float rescale0, float rescale1) {
    const uint32_t address = SumAddress();
#pragma unroll
    for (int i = 0; i < Tile::kValueDims / 8; ++i) {
      const uint4 v = LoadShared(address + i * kSumStride);
      o_[4 * i] = fmaf(__uint_as_float(v.x), rescale0, o_[4 * i]);
      o_[4 * i + 1] = fmaf(__uint_as_float(v.y), rescale0, o_[4 * i + 1]);
      o_[4 * i + 2] = fmaf(__uint_as_float(v.z), rescale1, o_[4 * i + 2]);
      o_[4 * i + 3] = fmaf(__uint_as_float(v.w), rescale1, o_[4 * i + 3]);
    }
  }
  // Adds O to the sum, which is there unless it is the first time, and begins
  // anew.
  __device__ __forceinline__ void MoveToSum(bool is_first) {
    if (!is_first) AddSum(SumRescale(0), SumRescale(1));
    const uint32_t address = SumAddress();
#pragma unroll
    for (int i = 0; i < Tile::kValueDims / 8; ++i) {
      asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(
                       address + i * kSumStride),
                   "f"(o_[4 * i]), "f"(o_[4 * i + 1]), "f"(o_[4 * i + 2]),
                   "f"(o_[4 * i + 3])
                   : "memory");
    }
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(SumMaxAddress()),
                 "f"(max_[0]), "f"(max_[1])
                 : "memory");
    ClearOutput();
  }

  __device__ __forceinline__ const TileWork& WaitForWork(uint32_t tile) {
    const int slot = tile % Tile::kWorkSlots;
    shared_.work_full[slot].Wait(tile / Tile::kWorkSlots % 2);
    return shared_.work[slot];
  }
  __device__ __forceinline__ void WaitForQuery() {
    shared_.query_full[QueryStage(tile_count_)].Wait(
        tile_count_ / Tile::kQueryStages % 2);
  }
  // After the last scores of a tile.
  __device__ __forceinline__ void ReleaseQuery() {
    ArriveByWarp(shared_.query_empty[QueryStage(tile_count_)]);
  }

  // The next tile with keys to see, once its query is there; null after the
  // last. Finishes tiles without.
  __device__ __forceinline__ const TileWork* NextTile() {
    while (true) {
      const TileWork& work = WaitForWork(++tile_count_);
      if (work.sequence < 0) return nullptr;
      WaitForQuery();
      if (!work.IsEmpty()) return &work;
      ReleaseQuery();
      BeginTile(work);
      ClearOutput();
      FinishSoftmax(work);
      StoreOutput(work);
      ArriveByWarp(shared_.work_empty[tile_count_ % Tile::kWorkSlots]);
    }
  }

  __device__ __forceinline__ void BeginTile(const TileWork& work) {
    max_[0] = max_[1] = limit_[0] = limit_[1] = -INFINITY;
    offset_[0] = offset_[1] = -kLogWeightFactor;
    sum_[0] = sum_[1] = 0;
    // The thread's two rows have the same head: groups are of at most 8.
    const int head = (work.head << list_.group_shift) +
                     (Lane() / 4 & ((1 << list_.group_shift) - 1));
    factor_ = list_.HeadFactors(list_.Get(work.sequence))[head];
  }
  __device__ __forceinline__ void ClearOutput() {
#pragma unroll
    for (int i = 0; i < Tile::kValueDims / 2; ++i) o_[i] = 0;
    Pin(o_);
  }

  // A tile and those behind it without a break: the scores of the next begin
  // under the last values of the one before.
  __device__ __forceinline__ void RunTiles(const TileWork* work) {
    BeginTile(*work);
    ClearOutput();
    int step = work->end_step - 1;
    WaitForKeys();
    WarpgroupFence();
    IssueScores(QueryOperand(), KeyOperand());
    WarpgroupWait<0>();
    Pin(s_);
    ReleaseKeys();
    if (step == work->first_step) ReleaseQuery();
    Mask(step, *work);
    UpdateMaxima();
    TakeTurn(key_count_);
    ComputeWeights();
    ++key_count_;
    bool is_mixed = work->IsMasked(step) && work->IsMixed(step);
    bool is_last = step == work->first_step;

#pragma unroll 1
    while (true) {  // p_ has the weights of `step`
      PassTurn();
      if (is_mixed) IsolateNanValues(step, *work);
      const TileWork* next = work;
      const bool is_new = is_last;
      if (is_new) {
        next = &WaitForWork(tile_count_ + 1);
        if (next->sequence < 0 || next->IsEmpty()) break;
        ++tile_count_;
        WaitForQuery();
        step = next->end_step;
      }
      --step;
      const Operand query = QueryOperand();
      const Operand key = KeyOperand();
      const Operand value = ValueOperand();
      WaitForKeys();
      WarpgroupFence();
      IssueScores(query, key);
      WaitForValues();
      WarpgroupFence();
      IssueValues(value);
      // What does not depend on the products runs under them.
      if (is_new) {
        FinishSoftmax(*work);
        BeginTile(*next);
      }
      const bool is_masked = next->IsMasked(step);
      is_mixed = is_masked && next->IsMixed(step);
      is_last = step == next->first_step;
      WarpgroupWait<1>();
      Pin(s_);
      ReleaseKeys();
      if (is_last) ReleaseQuery();
      // In blocks of their own: without, the assembler moves the wait that
      // follows to before them, and nothing overlaps with the products.
      if (is_masked) Mask(step, *next);
      const bool has_new_maxima = UpdateMaxima();
      WarpgroupWait<0>();
      Pin(o_);
      ReleaseValues();
      ++key_count_;
      if (is_new) {
        StoreOutput(*work);
        ClearOutput();
        ArriveByWarp(shared_.work_empty[(tile_count_ - 1) % Tile::kWorkSlots]);
        work = next;
      }
      if (has_new_maxima) RescaleOutput();
      TakeTurn(key_count_ - 1);
      ComputeWeights();
      const int steps = work->end_step - 1 - step;  // whose values are in
      if (steps % Tile::kStepsPerSum == 0 && steps > 0) {
        MoveToSum(steps == Tile::kStepsPerSum);
      }
    }
    WaitForValues();
    WarpgroupFence();
    IssueValues(ValueOperand());
    WarpgroupWait<0>();
    Pin(o_);
    ReleaseValues();
    FinishSoftmax(*work);
    StoreOutput(*work);
    ArriveByWarp(shared_.work_empty[tile_count_ % Tile::kWorkSlots]);
  }

  // Makes the values of a step safe to multiply where rows differ in the keys
  // they see: a weight of 0 does not hide NaN. NaN, which is rare, is added to
  // the rows that see it and then set to zero.
  __device__ __forceinline__ void IsolateNanValues(int step,
                                                   const TileWork& work) {
    WaitForValues();
    const int stage = ValueStage();
    bool found = false;
#pragma unroll
    for (int box = 0; box < Tile::kBoxes; ++box) {
      found |= shared_.has_nan_value[stage][box];
    }
    if (!found) return;
    const uint32_t value = memory_.Value(stage);
    AddNanValues(value, step, work);
    SyncNamed(kAllConsumers, Tile::kConsumerThreads);
#pragma unroll 1
    for (int i = threadIdx.x - 128; i < Tile::kValueBytes / 4;
         i += Tile::kConsumerThreads) {
      const uint32_t word = LoadSharedWord(value + i * 4);
      const uint32_t mask = Float8NanBytes(word);
      if (mask != 0) StoreSharedWord(value + i * 4, word & ~mask);
    }
    FenceAsyncProxy();
    SyncNamed(kAllConsumers, Tile::kConsumerThreads);
  }

  // Adds NaN values of a step to the rows that see them.
  __device__ __forceinline__ void AddNanValues(uint32_t value, int step,
                                               const TileWork& work) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const TileWork::Columns visible = VisibleColumns(half, step, work);
      const int end = min(visible.end, kBlockN);
#pragma unroll 1
      for (int key = max(visible.begin, 0); key < end; ++key) {
        const uint32_t panel =
            value + key / Tile::kBoxKeys * Tile::kValuePanelBytes;
#pragma unroll
        for (int j = 0; j < Tile::kValueDims / 8; ++j) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int offset = ValueOffset(8 * j + Lane() % 4 * 2 + e,
                                           key % Tile::kBoxKeys);
            const uint32_t word = LoadSharedWord(panel + (offset & ~3));
            if ((word >> offset % 4 * 8 & 0x7f) == 0x7f) {
              o_[4 * j + 2 * half + e] = NAN;
            }
          }
        }
      }
    }
  }

  // Ends the softmax of the tile: stores the log-sum-exp and sets inverse_ and
  // sum_rescale_.
  __device__ __forceinline__ void FinishSoftmax(const TileWork& work) {
    if (HasSum(work)) {
      sum_rescale_[0] = SumRescale(0);
      sum_rescale_[1] = SumRescale(1);
    }
    const float value_scale =
        list_.ValueScales(list_.Get(work.sequence))[work.kv_head];
    float sum[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float all = sum_[half];
      all += __shfl_xor_sync(0xffffffffu, all, 1);
      all += __shfl_xor_sync(0xffffffffu, all, 2);
      inverse_[half] = all == 0 ? 0.0f : __fdividef(value_scale, all);
      sum[half] = all / kWeightFactor;
    }
    StoreLogSumExp<Tile>(list_, work, warpgroup_, max_, sum, factor_);
  }

  // output = O / l. Of 16 dimensions, those with even numbers are in one group
  // of 8 columns, and those with odd ones in the next: a thread has four in a
  // row.
  __device__ __forceinline__ void StoreOutput(const TileWork& work) {
    if (HasSum(work)) AddSum(sum_rescale_[0], sum_rescale_[1]);
    const int thread = ThreadAnew();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const OutputRow row = RowOf(list_, work, warpgroup_, thread, half);
      auto* const output = static_cast<uint16_t*>(work.output) +
                           row.query * work.output_token_stride +
                           row.head * work.output_head_stride;
      const float inverse = inverse_[half];
#pragma unroll
      for (int j = 0; j < Tile::kValueDims / 8; j += 2) {
        const int even = 4 * j + 2 * half, odd = even + 4;
        const int column = 8 * j + thread % 4 * 4;
        if (row.exists && column < list_.value_dims) {
          *reinterpret_cast<uint2*>(output + column) = make_uint2(
              Output::Pack(o_[even] * inverse, o_[odd] * inverse),
              Output::Pack(o_[even + 1] * inverse, o_[odd + 1] * inverse));
        }
      }
    }
  }

  const WorkList& list_;
  Float8Shared<Tile>& shared_;
  const Float8Memory<Tile>& memory_;
  const int warpgroup_;
  uint32_t key_count_ = 0;  // steps whose scores are done
  uint32_t tile_count_ = ~0u;  // tiles begun, less one

  // The online softmax of this thread's two rows.
  float factor_;
  float max_[2], sum_[2];
  float limit_[2];  // of scores times the factor, relative to these maxima
  float rescale_[2], offset_[2], inverse_[2], sum_rescale_[2];
  float s_[kBlockN / 2];
  uint32_t p_[kBlockN / 8];
  float o_[Tile::kValueDims / 2];  // of the last steps
};

}  // namespace attention::cuda::sm90

#endif  // ATTENTION_KERNELS_CUDA_SM90_FLOAT8_FLOAT8_CONSUMER_CUH_
