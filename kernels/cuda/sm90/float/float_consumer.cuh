// A consumer of the fp32 kernels: a warpgroup that owns 64 rows of a tile.
//
// Per step of keys, from the last to the first,
//
//   S = Q K^T;  m' = max(m, rowmax S);  P = exp2(c (S - m'));
//   O = exp2(c (m - m')) O + P V;  l likewise
//
// where operands that are split (split.cuh) are multiplied part by part, the
// smallest products first. Tensor cores truncate sums: each step's P V is
// summed by itself and added to O rounded to nearest, so that errors do not
// grow with the number of keys.
//
// Scores are computed by one warpgroup after the other: the softmax of one runs
// under the products of the other.
#ifndef ATTENTION_KERNELS_CUDA_SM90_FLOAT_FLOAT_CONSUMER_CUH_
#define ATTENTION_KERNELS_CUDA_SM90_FLOAT_FLOAT_CONSUMER_CUH_

#include <type_traits>

#include "kernels/cuda/portable/element.cuh"
#include "kernels/cuda/portable/problem.cuh"
#include "kernels/cuda/portable/tensor_core.cuh"
#include "kernels/cuda/sm90/float/float_tile.cuh"
#include "kernels/cuda/sm90/float/split.cuh"
#include "kernels/cuda/sm90/non_finite.cuh"

namespace attention::cuda::sm90 {

template <typename Tile>
class FloatConsumer {
 public:
  using Part = __nv_bfloat16;
  using Element =  // of the last part of values
      portable::Element<std::conditional_t<Tile::kIsSplit, Part, float>>;
  static constexpr int kParts = Tile::kParts;
  static constexpr int kBlockN = Tile::kBlockN;
  static constexpr int kPartWords = kBlockN / 4;  // of a thread's weights
  static constexpr int kStepBytes = 32;           // of a product

  __device__ FloatConsumer(const WorkList& list, FloatShared<Tile>& shared,
                           const FloatMemory<Tile>& memory)
      : list_(list),
        shared_(shared),
        memory_(memory),
        warpgroup_(__shfl_sync(0xffffffffu, threadIdx.x / 128 - 1, 0)) {}

  __device__ __forceinline__ void Run() {
    if (warpgroup_ == Tile::kWarpgroups - 1) PassTurn();
    RingPosition<Tile::kWorkSlots> ring;
    while (true) {
      shared_.work_full[ring.stage].Wait(ring.parity);
      const TileWork& work = shared_.work[ring.stage];
      if (work.sequence < 0) return;
      RunTile(work);
      ArriveByWarp(shared_.work_empty[ring.stage]);
      ring.Advance();
      query_parity_ ^= 1;
    }
  }

 private:
  static __device__ int Thread() { return threadIdx.x % 128; }
  static __device__ int Lane() { return threadIdx.x % 32; }
  // The row, within the tile, of accumulator elements 2 * half + {0, 1}.
  __device__ int Row(int half) const {
    return warpgroup_ * 64 + Thread() / 32 * 16 + half * 8 + Lane() / 4;
  }
  // Named barriers, of both warpgroups: a turn at computing scores.
  static constexpr int kTurn = 1, kAllConsumers = 7;
  __device__ void TakeTurn() {
    SyncNamed(kTurn + warpgroup_, Tile::kConsumerThreads);
  }
  __device__ void PassTurn() {
    ArriveNamed(kTurn + 1 - warpgroup_, Tile::kConsumerThreads);
  }

  __device__ __forceinline__ void RunTile(const TileWork& work) {
    max_[0] = max_[1] = -INFINITY;
    sum_[0] = sum_[1] = 0;
    factor_ = list_.Get(work.sequence).factor;
#pragma unroll
    for (int i = 0; i < Tile::kValueDims / 2; ++i) o_[i] = 0;
    shared_.query_full[warpgroup_].Wait(query_parity_);
#pragma unroll 1
    for (int step = work.end_step - 1; step >= work.first_step; --step) {
      ComputeScores();
      if (step == work.first_step) {
        ArriveByWarp(shared_.query_empty[warpgroup_]);
      }
      if (step < work.first_full_step || step >= work.end_full_step) {
        Mask(step, work);
      }
      UpdateMaxima();
      ComputeWeights();
      shared_.value_full[ring_.stage].Wait(ring_.parity);
      if (work.IsMixed(step)) IsolateNonFiniteValues(step, work);
      AddValues();
      ring_.Advance();
    }
    if (work.first_step >= work.end_step) {
      ArriveByWarp(shared_.query_empty[warpgroup_]);
    }
    Finish(work);
  }

  // S = Q K^T
  __device__ __forceinline__ void ComputeScores() {
    shared_.key_full[ring_.stage].Wait(ring_.parity);
    TakeTurn();
    WarpgroupFence();
    if constexpr (Tile::kIsSplit) {
      MultiplyParts<64>(s_, 0, 2, false);
      MultiplyParts<64>(s_, 2, 0, true);
      MultiplyParts<128>(pair_, 1, 0, false);
      MultiplyParts<128>(pair_, 0, 0, true);
    } else {
      MultiplyKeys();
    }
    WarpgroupCommit();
    WarpgroupWait<0>();
    Pin(s_);
    Pin(pair_);
    PassTurn();
    ArriveByWarp(shared_.key_empty[ring_.stage]);
    if constexpr (Tile::kIsSplit) {
#pragma unroll
      for (int i = 0; i < kBlockN / 2; ++i) {
        s_[i] = (s_[i] + pair_[i + kBlockN / 2]) + pair_[i];
      }
    }
  }

  __device__ __forceinline__ void MultiplyKeys() {
    const Operand query = RowOperand(memory_.Query(warpgroup_));
    const Operand key = RowOperand(memory_.Key(ring_.stage));
#pragma unroll
    for (int step = 0; step < Tile::kQueryDims / 8; ++step) {
      const int offset = step / 4 * Tile::kPanelBytes + step % 4 * kStepBytes;
      Product<float, kBlockN>::FromShared(s_, query + offset, key + offset,
                                          step > 0);
    }
  }

  // d = or += part a of the query times the rows of part b of the keys, and,
  // with 128 columns, those of the next part.
  template <int kColumns>
  __device__ __forceinline__ void MultiplyParts(float (&d)[kColumns / 2], int a,
                                                int b, bool accumulate) {
    const Operand query =
        RowOperand(memory_.Query(warpgroup_) + a * Tile::kPartBytes);
    const Operand key =
        RowOperand(memory_.Key(ring_.stage) + b * Tile::kPanelBytes);
#pragma unroll
    for (int step = 0; step < Tile::kQueryDims / 16; ++step) {
      const int panel = step / 4, offset = step % 4 * kStepBytes;
      Product<Part, kColumns>::FromShared(
          d, query + (panel * Tile::kPanelBytes + offset),
          key + (panel * kParts * Tile::kPanelBytes + offset),
          accumulate || step > 0);
    }
  }

  // O = rescale O + P V
  __device__ __forceinline__ void AddValues() {
    // Or the compiler computes some of them between the products.
#pragma unroll
    for (uint32_t& word : p_) asm volatile("" : "+r"(word)::"memory");
    WarpgroupFence();
    if constexpr (Tile::kValueDims == 128) {
      MultiplyValues(pair_);
      AddToOutput(pair_);
    } else {
      MultiplyValues(s_);
      AddToOutput(s_);
    }
  }
  __device__ __forceinline__ void MultiplyValues(
      float (&d)[Tile::kValueDims / 2]) {
    if constexpr (!Tile::kIsSplit) {
      const Operand value = RowOperand(memory_.Value(ring_.stage));
#pragma unroll
      for (int step = 0; step < kBlockN / 8; ++step) {
        Product<float, Tile::kValueDims>::FromRegisters(
            d, p_ + 4 * step,
            value + (step / 4 * Tile::kTransposedPanelBytes +
                     step % 4 * kStepBytes),
            step > 0);
      }
    } else {
      MultiplySplitValues(d);
    }
    WarpgroupCommit();
    WarpgroupWait<0>();
    Pin(d);
    ArriveByWarp(shared_.value_empty[ring_.stage]);
  }
  __device__ __forceinline__ void MultiplySplitValues(
      float (&d)[Tile::kValueDims / 2]) {
#pragma unroll
    for (int order = kParts - 1; order >= 0; --order) {
#pragma unroll
      for (int a = 0; a <= order; ++a) {
        const Operand value = ColumnOperand(
            memory_.Value(ring_.stage) + (order - a) * Tile::kPartBytes,
            Tile::kPanelBytes);
#pragma unroll
        for (int step = 0; step < kBlockN / 16; ++step) {
          Product<Part, Tile::kValueDims>::FromRegisters(
              d, p_ + a * kPartWords + 4 * step,
              value + step * 16 * kPanelWidthBytes,
              order < kParts - 1 || a > 0 || step > 0);
        }
      }
    }
  }
  __device__ __forceinline__ void AddToOutput(
      const float (&d)[Tile::kValueDims / 2]) {
#pragma unroll
    for (int i = 0; i < Tile::kValueDims / 2; ++i) {
      o_[i] = fmaf(o_[i], rescale_[i / 2 % 2], d[i]);
    }
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

  // Takes the scores into the maxima: sets what the accumulators so far and the
  // weights to come are relative to.
  __device__ __forceinline__ void UpdateMaxima() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float max = s_[2 * half];
#pragma unroll
      for (int j = 0; j < kBlockN / 8; ++j) {
        max = fmaxf(max, fmaxf(s_[4 * j + 2 * half], s_[4 * j + 2 * half + 1]));
      }
      max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 1));
      max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 2));
      const float old = max_[half];
      max_[half] = fmaxf(old, max);
      rescale_[half] = portable::FastExp2((old - Base(half)) * factor_);
      sum_[half] *= rescale_[half];
    }
  }
  // The maximum, or 0 while that is -inf: -inf - -inf would be NaN.
  __device__ __forceinline__ float Base(int half) const {
    return max_[half] == -INFINITY ? 0.0f : max_[half];
  }

  // Turns the scores into weights, in parts. Each thread sums its own columns
  // only.
  __device__ __forceinline__ void ComputeWeights() {
    const float base[2] = {Base(0), Base(1)};
#pragma unroll
    for (int i = 0; i < kBlockN / 4; ++i) {
      const int half = i % 2;
      float weight[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        weight[e] = portable::FastExp2((s_[2 * i + e] - base[half]) * factor_);
        sum_[half] += weight[e];
      }
      if constexpr (!Tile::kIsSplit) {
        // Products truncate: half a unit of TF32 more makes that rounding.
        constexpr uint32_t kHalfUnit = 1u << 12;
        p_[i / 2 * 4 + half] = __float_as_uint(weight[0]) + kHalfUnit;
        p_[i / 2 * 4 + half + 2] = __float_as_uint(weight[1]) + kHalfUnit;
      } else {
        uint32_t word[kSplitParts];
        SplitPair(weight[0], weight[1], word);
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          p_[part * kPartWords + i] = word[part];
        }
      }
    }
  }

  // Makes the values of a step safe to multiply where rows differ in the keys
  // they see: a weight of 0 does not hide a NaN or an infinity. Non-finite
  // values, which are rare, are added row by row and then set to zero.
  __device__ __forceinline__ void IsolateNonFiniteValues(int step,
                                                         const TileWork& work) {
    bool found = false;
#pragma unroll
    for (int share = 0; share < Tile::kShares; ++share) {
      found |= shared_.has_non_finite_value[ring_.stage][share];
    }
    if (!found) return;
#pragma unroll
    for (int i = 0; i < Tile::kValueDims / 2; ++i) o_[i] *= rescale_[i / 2 % 2];
    rescale_[0] = rescale_[1] = 1;
    constexpr int kBytes =
        Tile::kIsSplit ? Tile::kPartBytes : Tile::kOperandBytes;
    const uint32_t value =  // the part that has them
        memory_.Value(ring_.stage) + (kParts - 1) * kBytes;
    AddNonFiniteValues(value, step, work);
    SyncNamed(kAllConsumers, Tile::kConsumerThreads);
#pragma unroll 1
    for (int i = threadIdx.x - 128; i < kBytes / 4;
         i += Tile::kConsumerThreads) {
      const uint32_t word = LoadSharedWord(value + i * 4);
      const uint32_t mask = Element::NonFinite(word);
      if (mask != 0) StoreSharedWord(value + i * 4, word & ~mask);
    }
    FenceAsyncProxy();
    SyncNamed(kAllConsumers, Tile::kConsumerThreads);
  }

  // Adds the non-finite values of a step to the rows that see them. Their
  // weight is positive, so that NaN and infinity stand for their products.
  __device__ __forceinline__ void AddNonFiniteValues(uint32_t value, int step,
                                                     const TileWork& work) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const TileWork::Columns visible = VisibleColumns(half, step, work);
      int key = max(visible.begin, 0);
#pragma unroll 1
      for (int keys = min(visible.end, kBlockN) - key; keys > 0;
           --keys, ++key) {
#pragma unroll
        for (int j = 0; j < Tile::kValueDims / 8; ++j) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            o_[4 * j + 2 * half + e] += NonFiniteValue(value, key, j, e);
          }
        }
      }
    }
  }

  // The value of a key at column 8 * j + Lane() % 4 * 2 + e; 0 if it is finite.
  static __device__ __forceinline__ float NonFiniteValue(uint32_t value,
                                                         int key, int j,
                                                         int e) {
    if constexpr (!Tile::kIsSplit) {
      const int swizzle = Lane() % 4 * 2 + e;  // the row modulo 8
      const int chunk = key % 32 / 8 * 2 + key % 2;
      const uint32_t word =
          LoadSharedWord(value + key / 32 * Tile::kTransposedPanelBytes +
                         (8 * j + swizzle) * kPanelWidthBytes +
                         ((chunk ^ swizzle) * 16) + key % 8 / 2 * 4);
      return Element::ToFloat(word & Element::NonFinite(word));
    } else {
      const uint32_t word = LoadSharedWord(
          value + j / 8 * Tile::kPanelBytes + key * kPanelWidthBytes +
          ((j % 8 ^ key % 8) * 16) + Lane() % 4 * 4);
      return Element::ToFloat(
          static_cast<uint16_t>((word & Element::NonFinite(word)) >> 16 * e));
    }
  }

  // output = O / l
  __device__ __forceinline__ void Finish(const TileWork& work) {
    const PrefillSequence& sequence = list_.Get(work.sequence);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = sum_[half];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      const int row = work.first_row + Row(half);
      if (row >= sequence.rows) continue;
      const int64_t query = row >> list_.group_shift;
      const int64_t head = (work.head << list_.group_shift) +
                           (row & ((1 << list_.group_shift) - 1));
      if (Lane() % 4 == 0 && sequence.log_sum_exp != nullptr) {
        sequence.log_sum_exp[query * sequence.log_sum_exp_token_stride +
                             head * sequence.log_sum_exp_head_stride] =
            sum == 0 ? -INFINITY
                     : fmaf(max_[half], factor_, log2f(sum)) * portable::kLn2;
      }
      const float inverse = sum == 0 ? 0.0f : 1.0f / sum;
      float* const output = static_cast<float*>(sequence.output) +
                            query * sequence.output_token_stride +
                            head * sequence.output_head_stride;
#pragma unroll
      for (int j = 0; j < Tile::kValueDims / 8; ++j) {
        const int column = 8 * j + Lane() % 4 * 2;
        if (column < list_.value_dims) {
          *reinterpret_cast<float2*>(output + column) =
              make_float2(o_[4 * j + 2 * half] * inverse,
                          o_[4 * j + 2 * half + 1] * inverse);
        }
      }
    }
  }

  const WorkList& list_;
  FloatShared<Tile>& shared_;
  const FloatMemory<Tile>& memory_;
  const int warpgroup_;
  uint32_t query_parity_ = 0;
  RingPosition<Tile::kStages> ring_;

  // The online softmax of this thread's two rows.
  float factor_;
  float max_[2], sum_[2], rescale_[2];
  float s_[kBlockN / 2];
  float pair_[kBlockN];  // sums of two products of scores, or P V
  uint32_t p_[Tile::kIsSplit ? kParts * kPartWords : kBlockN / 2];
  float o_[Tile::kValueDims / 2];
};

}  // namespace attention::cuda::sm90

#endif  // ATTENTION_KERNELS_CUDA_SM90_FLOAT_FLOAT_CONSUMER_CUH_
