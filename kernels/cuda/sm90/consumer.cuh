// A consumer of the sm_90 kernel: a warpgroup that owns 64 rows of a tile.
//
// Per step of keys, from the last to the first,
//
//   S = Q K^T;  m' = max(m, rowmax S);  P = exp2(c (S - m'));
//   O = exp2(c (m - m')) (O + P_previous V_previous);  l likewise
//
// so that while the softmax of one step runs, the tensor cores have the values
// of the step before (Shah et al. 2024, "FlashAttention-3"). Warpgroups take
// turns at issuing products: the softmax of one runs under those of another.
#ifndef ATTENTION_KERNELS_CUDA_SM90_CONSUMER_CUH_
#define ATTENTION_KERNELS_CUDA_SM90_CONSUMER_CUH_

#include "kernels/cuda/portable/element.cuh"
#include "kernels/cuda/portable/problem.cuh"
#include "kernels/cuda/portable/tensor_core.cuh"
#include "kernels/cuda/sm90/non_finite.cuh"
#include "kernels/cuda/sm90/output.cuh"
#include "kernels/cuda/sm90/prefill_tile.cuh"

namespace attention::cuda::sm90 {

template <typename Tile>
class Consumer {
 public:
  using T = typename Tile::Type;
  using Element = portable::Element<T>;
  static constexpr int kBlockN = Tile::kBlockN;
  static constexpr int kRowBytes = kPanelWidthBytes;
  static constexpr int kStepBytes = 32;  // of 16 elements

  __device__ Consumer(const WorkList& list, PrefillShared<Tile>& shared,
                      const OperandMemory<Tile>& memory)
      : list_(list),
        shared_(shared),
        memory_(memory),
        warpgroup_(__shfl_sync(0xffffffffu, threadIdx.x / 128 - 1, 0)) {}

  __device__ __forceinline__ void Run() {
    if (warpgroup_ == Tile::kWarpgroups - 1) PassTurn();
    while (const TileWork* work = NextTile()) RunTiles(work);
  }

 private:
  static __device__ int Thread() { return threadIdx.x % 128; }
  static __device__ int Lane() { return threadIdx.x % 32; }
  // The online softmax of this thread's two rows.
  struct RowState {
    float max[2] = {-INFINITY, -INFINITY};
    float sum[2] = {0, 0};
  };
  // The row, within the tile, of accumulator elements 2 * half + {0, 1}.
  __device__ int Row(int half) const {
    return warpgroup_ * 64 + Thread() / 32 * 16 + half * 8 + Lane() / 4;
  }
  // Named barriers, of two warpgroups each: a turn at the tensor cores.
  static constexpr int kTurn = 1, kAllConsumers = 7;
  __device__ void TakeTurn() { SyncNamed(kTurn + warpgroup_, 256); }
  __device__ void PassTurn() {
    const int next = warpgroup_ + 1 == Tile::kWarpgroups ? 0 : warpgroup_ + 1;
    ArriveNamed(kTurn + next, 256);
  }

  __device__ __forceinline__ Operand QueryOperand() const {
    return Uniform(RowOperand(memory_.Query(QueryStage(tile_count_)) +
                              warpgroup_ * 64 * kRowBytes));
  }
  __device__ __forceinline__ Operand KeyOperand() const {
    return Uniform(RowOperand(memory_.Key(KeyStage())));
  }
  __device__ __forceinline__ Operand ValueOperand() const {
    return Uniform(
        ColumnOperand(memory_.Value(ValueStage()), Tile::kKeyPanelBytes));
  }

  __device__ __forceinline__ void IssueScores(Operand query, Operand key) {
#pragma unroll
    for (int step = 0; step < Tile::kQueryDims / 16; ++step) {
      const int panel = step / 4, offset = step % 4 * kStepBytes;
      Product<T, kBlockN>::FromShared(
          s_, query + (panel * Tile::kQueryPanelBytes + offset),
          key + (panel * Tile::kKeyPanelBytes + offset), step > 0);
    }
    WarpgroupCommit();
  }
  __device__ __forceinline__ void IssueValues(Operand value) {
#pragma unroll
    for (int step = 0; step < kBlockN / 16; ++step) {
      Product<T, Tile::kValueDims>::FromRegisters(
          o_, p_ + 4 * step, value + step * 16 * kRowBytes);
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
    // Only windows hide keys before the first that a row sees.
    const bool has_begin = work.lower > -kMaxLength;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const TileWork::Columns visible = VisibleColumns(half, step, work);
      const int end = visible.end - Lane() % 4 * 2;
      HideColumns(half, [end](int column) { return column >= end; });
      if (!has_begin) continue;
      const int begin = visible.begin - Lane() % 4 * 2;
      HideColumns(half, [begin](int column) { return column < begin; });
    }
  }
  template <typename IsHidden>
  __device__ __forceinline__ void HideColumns(int half, IsHidden is_hidden) {
#pragma unroll
    for (int j = 0; j < kBlockN / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (is_hidden(8 * j + e)) s_[4 * j + 2 * half + e] = -INFINITY;
      }
    }
  }

  // Takes the scores into the maxima: sets what the accumulators so far and the
  // weights to come are relative to.
  __device__ __forceinline__ void UpdateMaxima() {
    bool large = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      constexpr int kChains = 4;  // of dependent instructions
      float max[kChains];
#pragma unroll
      for (int j = 0; j < kBlockN / 8; ++j) {
        const float pair =
            fmaxf(s_[4 * j + 2 * half], s_[4 * j + 2 * half + 1]);
        max[j % kChains] = j < kChains ? pair : fmaxf(max[j % kChains], pair);
      }
      float all = fmaxf(fmaxf(max[0], max[1]), fmaxf(max[2], max[3]));
      all = fmaxf(all, __shfl_xor_sync(0xffffffffu, all, 1));
      all = fmaxf(all, __shfl_xor_sync(0xffffffffu, all, 2));
      const float old = state_.max[half];
      state_.max[half] = fmaxf(old, all);
      rescale_[half] = portable::FastExp2((old - Base(half)) * factor_);
      state_.sum[half] *= rescale_[half];
      offset_[half] = Base(half) * factor_;
      large |= !(fabsf(offset_[half]) <= portable::kSmallOffset);
    }
    if (__any_sync(0xffffffffu, large)) {
#pragma unroll
      for (int i = 0; i < kBlockN / 2; ++i) s_[i] -= Base(i / 2 % 2);
      offset_[0] = offset_[1] = 0;
    }
  }
  // Turns the scores of some columns, in eights, into weights. Each thread sums
  // its own columns only.
  template <int kFirst, int kEnd>
  __device__ __forceinline__ void ComputeWeights() {
#pragma unroll
    for (int j = kFirst; j < kEnd; ++j) {
#pragma unroll
      for (int i = 4 * j; i < 4 * j + 4; ++i) {
        const int half = i / 2 % 2;
        s_[i] = portable::FastExp2(fmaf(s_[i], factor_, -offset_[half]));
        state_.sum[half] += s_[i];
      }
    }
  }
  // The maximum, or 0 while that is -inf: -inf - -inf would be NaN.
  __device__ __forceinline__ float Base(int half) const {
    return state_.max[half] == -INFINITY ? 0.0f : state_.max[half];
  }

  __device__ __forceinline__ void PackWeights() {
#pragma unroll
    for (int i = 0; i < kBlockN / 4; ++i) {
      p_[i] = Element::Pack(s_[2 * i], s_[2 * i + 1]);
    }
  }

  __device__ __forceinline__ void RescaleOutput() {
#pragma unroll
    for (int i = 0; i < Tile::kValueDims / 2; ++i) o_[i] *= rescale_[i / 2 % 2];
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
      StoreOutput<Tile>(list_, work, warpgroup_, o_, inverse_);
      ArriveByWarp(shared_.work_empty[tile_count_ % Tile::kWorkSlots]);
    }
  }

  __device__ __forceinline__ void BeginTile(const TileWork& work) {
    state_ = {};
    factor_ = work.factor;
  }
  __device__ __forceinline__ void ClearOutput() {
#pragma unroll
    for (int i = 0; i < Tile::kValueDims / 2; ++i) o_[i] = 0;
    Pin(o_);
  }

  // A tile and, with room for two queries, those behind it without a break: the
  // scores of the next begin under the last values of the one before.
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
    ComputeWeights<0, kBlockN / 8>();
    PackWeights();
    ++key_count_;

    int kind = work->KindOf(step);
#pragma unroll 1
    while (true) {  // p_ has the weights of `step`
      if (kind & TileWork::kIsMixed) IsolateNonFiniteValues(step, *work);
      const TileWork* next = work;
      const bool is_new = kind & TileWork::kIsFirst;
      if (is_new) {
        // The next query is not there yet: the values do not wait for it.
        if (Tile::kQueryStages == 1) break;
        next = &WaitForWork(tile_count_ + 1);
        if (next->sequence < 0 || next->IsEmpty()) break;
        ++tile_count_;
        WaitForQuery();
        step = next->end_step;
      }
      --step;
      kind = next->KindOf(step);
      const Operand query = QueryOperand();
      const Operand key = KeyOperand();
      const Operand value = ValueOperand();
      WaitForKeys();
      TakeTurn();
      WarpgroupFence();
      IssueScores(query, key);
      WaitForValues();
      WarpgroupFence();
      IssueValues(value);
      PassTurn();
      // What does not depend on the products runs under them.
      if (is_new) {
        FinishSoftmax(*work);
        BeginTile(*next);
      }
      WarpgroupWait<1>();
      Pin(s_);
      ReleaseKeys();
      if (kind & TileWork::kIsFirst) ReleaseQuery();
      // In blocks of their own: without, the assembler moves the wait that
      // follows to before them, and nothing overlaps with the products.
      constexpr int kEarly = kBlockN / 16;
      if (kind & TileWork::kIsMasked) {
        Mask(step, *next);
        UpdateMaxima();
        ComputeWeights<0, kEarly>();
      } else {
        UpdateMaxima();
        ComputeWeights<0, kEarly>();
      }
      WarpgroupWait<0>();
      Pin(o_);
      ReleaseValues();
      ++key_count_;
      if (is_new) {
        StoreOutput<Tile>(list_, *work, warpgroup_, o_, inverse_);
        ClearOutput();
        ArriveByWarp(shared_.work_empty[(tile_count_ - 1) % Tile::kWorkSlots]);
        work = next;
      }
      // The unit of exponentials is slow: the rest runs in its gaps.
      ComputeWeights<kEarly, kBlockN / 8>();
      RescaleOutput();
      PackWeights();
    }
    WaitForValues();
    WarpgroupFence();
    IssueValues(ValueOperand());
    WarpgroupWait<0>();
    Pin(o_);
    ReleaseValues();
    FinishSoftmax(*work);
    StoreOutput<Tile>(list_, *work, warpgroup_, o_, inverse_);
    ArriveByWarp(shared_.work_empty[tile_count_ % Tile::kWorkSlots]);
  }

  // Makes the values of a step safe to multiply where rows differ in the keys
  // they see: a weight of 0 does not hide a NaN or an infinity. Non-finite
  // values, which are rare, are added row by row and then set to zero.
  __device__ __forceinline__ void IsolateNonFiniteValues(int step,
                                                         const TileWork& work) {
    const int stage = ValueStage();
    shared_.value_inspected[stage].Wait((key_count_ - 1) / Tile::kStages % 2);
    if (!shared_.has_non_finite_value[stage]) return;
    const uint32_t value = memory_.Value(stage);
    AddNonFiniteValues(value, step, work);
    SyncNamed(kAllConsumers, Tile::kConsumerThreads);
#pragma unroll 1
    for (int i = threadIdx.x - 128; i < Tile::kValueBytes / 4;
         i += Tile::kConsumerThreads) {
      const uint32_t word = LoadSharedWord(value + i * 4);
      const uint32_t mask = Element::NonFinite(word);
      if (mask != 0) StoreSharedWord(value + i * 4, word & ~mask);
    }
    FenceAsyncProxy();
    SyncNamed(kAllConsumers, Tile::kConsumerThreads);
  }

  // Adds the non-finite values of a step to the rows that see them. Their weight
  // is positive, so that NaN and infinity stand for their products.
  __device__ __forceinline__ void AddNonFiniteValues(uint32_t value, int step,
                                                     const TileWork& work) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const TileWork::Columns visible = VisibleColumns(half, step, work);
      int key = max(visible.begin, 0);
#pragma unroll 1
      for (int keys = min(visible.end, kBlockN) - key; keys > 0; --keys, ++key) {
#pragma unroll
        for (int j = 0; j < Tile::kValueDims / 8; ++j) {
          const uint32_t word = LoadSharedWord(
              value + j / 8 * Tile::kKeyPanelBytes + key * kRowBytes +
              ((j % 8 ^ key % 8) * 16) + Lane() % 4 * 4);
          const uint32_t mask = Element::NonFinite(word);
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            o_[4 * j + 2 * half + e] += Element::ToFloat(
                static_cast<typename Element::Bits>((word & mask) >> 16 * e));
          }
        }
      }
    }
  }

  // Ends the softmax of the tile: stores the log-sum-exp and sets inverse_.
  __device__ __forceinline__ void FinishSoftmax(const TileWork& work) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float& sum = state_.sum[half];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      inverse_[half] = sum == 0 ? 0.0f : __fdividef(1.0f, sum);
    }
    StoreLogSumExp<Tile>(list_, work, warpgroup_, state_.max, state_.sum,
                         factor_);
  }

  const WorkList& list_;
  PrefillShared<Tile>& shared_;
  const OperandMemory<Tile>& memory_;
  const int warpgroup_;
  uint32_t key_count_ = 0;  // steps whose scores are done
  uint32_t tile_count_ = ~0u;  // tiles begun, less one

  float factor_;
  RowState state_;
  float rescale_[2], offset_[2], inverse_[2];
  float s_[kBlockN / 2];
  uint32_t p_[kBlockN / 4];
  float o_[Tile::kValueDims / 2];
};

}  // namespace attention::cuda::sm90

#endif  // ATTENTION_KERNELS_CUDA_SM90_CONSUMER_CUH_
