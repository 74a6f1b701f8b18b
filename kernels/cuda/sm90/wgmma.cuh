// Warpgroup matrix products (sm_90a): D += A B with D in registers.
//
// PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions". A warpgroup is
// four warps; its thread t holds, of the 64 x N accumulator, in element
// 4 j + 2 h + e the row 16 (t / 32) + 8 h + t % 32 / 4 and the column
// 8 j + 2 (t % 4) + e. The left operand of the next product has the same
// layout, so that weights never leave the registers.
#ifndef ATTENTION_KERNELS_CUDA_SM90_WGMMA_CUH_
#define ATTENTION_KERNELS_CUDA_SM90_WGMMA_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace attention::cuda::sm90 {

// A tile in shared memory consists of panels of 128-byte rows, swizzled in
// groups of 8 rows as tensor copies write them.
inline constexpr int kPanelWidthBytes = 128;
inline constexpr int kPanelAlignment = 1024;

// Where panels can begin in memory of kPanelAlignment bytes more.
inline __device__ uint32_t FirstPanel(const uint8_t* memory) {
  const auto address =
      static_cast<uint32_t>(__cvta_generic_to_shared(memory));
  return (address + kPanelAlignment - 1) / kPanelAlignment * kPanelAlignment;
}

// An operand in shared memory: the lower half of its matrix descriptor, which
// has its address in units of 16 bytes; the upper half is the same for all.
struct Operand {
  uint32_t word;

  // Further by a multiple of 16 bytes.
  __device__ Operand operator+(int bytes) const { return {word + bytes / 16}; }
};

// 128-byte swizzle, and 1024 bytes from one group of 8 rows to the next.
#define ATTENTION_OPERAND_UPPER_HALF "0x40000040"
// 64-byte swizzle of rows of 64 bytes, and 512 bytes.
#define ATTENTION_NARROW_OPERAND_UPPER_HALF "0x80000020"

// The same in all lanes, and known to be: products take operands from uniform
// registers.
inline __device__ Operand Uniform(Operand operand) {
  return {__shfl_sync(0xffffffffu, operand.word, 0)};
}

// Rows of one panel whose reduction runs along the row. A step along the
// reduction adds its bytes, at most 96.
inline __device__ Operand RowOperand(uint32_t address) {
  return {address >> 4 | 1u << 16};
}

// Rows whose reduction runs across rows, over panels that lie `panel_bytes`
// apart. A step of 16 rows adds 2048.
inline __device__ Operand ColumnOperand(uint32_t address,
                                        uint32_t panel_bytes) {
  return {address >> 4 | panel_bytes >> 4 << 16};
}

// Orders this thread's accesses to accumulators and register operands before
// the products that follow.
inline __device__ void WarpgroupFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
inline __device__ void WarpgroupCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most kPending of the last committed groups are under way.
template <int kPending>
__device__ void WarpgroupWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving uses of accumulators across a wait.
template <int kCount>
__device__ void Pin(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Product<T, N>::FromShared: D (64 x N) += or = A (64 x 16) B (16 x N), both
// operands RowOperand. Product<T, N>::FromRegisters: A from registers, B a
// ColumnOperand. fp32 has steps of 8 instead of 16, e4m3 of 32, and both only
// RowOperands; those of e4m3's FromRegisters have rows of 64 bytes.
template <typename T, int kColumns>
struct Product;

// Registers %0... of an accumulator, in eights.
#define ATTENTION_R0 "%0,%1,%2,%3,%4,%5,%6,%7"
#define ATTENTION_R8 "%8,%9,%10,%11,%12,%13,%14,%15"
#define ATTENTION_R16 "%16,%17,%18,%19,%20,%21,%22,%23"
#define ATTENTION_R24 "%24,%25,%26,%27,%28,%29,%30,%31"
#define ATTENTION_R32 "%32,%33,%34,%35,%36,%37,%38,%39"
#define ATTENTION_R40 "%40,%41,%42,%43,%44,%45,%46,%47"
#define ATTENTION_R48 "%48,%49,%50,%51,%52,%53,%54,%55"
#define ATTENTION_R56 "%56,%57,%58,%59,%60,%61,%62,%63"
#define ATTENTION_R64 "%64,%65,%66,%67,%68,%69,%70,%71"
#define ATTENTION_R72 "%72,%73,%74,%75,%76,%77,%78,%79"
#define ATTENTION_R80 "%80,%81,%82,%83,%84,%85,%86,%87"
#define ATTENTION_R88 "%88,%89,%90,%91,%92,%93,%94,%95"
#define ATTENTION_R96 "%96,%97,%98,%99,%100,%101,%102,%103"
#define ATTENTION_R104 "%104,%105,%106,%107,%108,%109,%110,%111"
#define ATTENTION_R112 "%112,%113,%114,%115,%116,%117,%118,%119"
#define ATTENTION_R120 "%120,%121,%122,%123,%124,%125,%126,%127"
#define ATTENTION_LIST_32 \
  ATTENTION_R0 "," ATTENTION_R8 "," ATTENTION_R16 "," ATTENTION_R24
#define ATTENTION_LIST_40 ATTENTION_LIST_32 "," ATTENTION_R32
#define ATTENTION_LIST_48 ATTENTION_LIST_40 "," ATTENTION_R40
#define ATTENTION_LIST_56 ATTENTION_LIST_48 "," ATTENTION_R48
#define ATTENTION_LIST_64 ATTENTION_LIST_56 "," ATTENTION_R56
#define ATTENTION_LIST_72 ATTENTION_LIST_64 "," ATTENTION_R64
#define ATTENTION_LIST_80 ATTENTION_LIST_72 "," ATTENTION_R72
#define ATTENTION_LIST_88 ATTENTION_LIST_80 "," ATTENTION_R80
#define ATTENTION_LIST_96 ATTENTION_LIST_88 "," ATTENTION_R88
#define ATTENTION_LIST_128                                                 \
  ATTENTION_LIST_96 "," ATTENTION_R96 "," ATTENTION_R104 "," ATTENTION_R112 \
                    "," ATTENTION_R120

#define ATTENTION_D8(i)                                                  \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]),            \
      "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define ATTENTION_D_32 \
  ATTENTION_D8(0), ATTENTION_D8(8), ATTENTION_D8(16), ATTENTION_D8(24)
#define ATTENTION_D_40 ATTENTION_D_32, ATTENTION_D8(32)
#define ATTENTION_D_48 ATTENTION_D_40, ATTENTION_D8(40)
#define ATTENTION_D_56 ATTENTION_D_48, ATTENTION_D8(48)
#define ATTENTION_D_64 ATTENTION_D_56, ATTENTION_D8(56)
#define ATTENTION_D_72 ATTENTION_D_64, ATTENTION_D8(64)
#define ATTENTION_D_80 ATTENTION_D_72, ATTENTION_D8(72)
#define ATTENTION_D_88 ATTENTION_D_80, ATTENTION_D8(80)
#define ATTENTION_D_96 ATTENTION_D_88, ATTENTION_D8(88)
#define ATTENTION_D_128                                                \
  ATTENTION_D_96, ATTENTION_D8(96), ATTENTION_D8(104), ATTENTION_D8(112), \
      ATTENTION_D8(120)

// N columns, kept in R = N / 2 registers per thread; R1... are R + 1...
#define ATTENTION_PRODUCT(TYPE, NAME, STEP, ROWS_FLAGS, COLUMN_FLAG,          \
                          COLUMN_UPPER_HALF, N, R, R1, R2, R3, R4, R5)        \
  template <>                                                                 \
  struct Product<TYPE, N> {                                                   \
    static __device__ void FromShared(float (&d)[R], Operand a, Operand b,    \
                                      bool accumulate) {                      \
      asm volatile("{ .reg .pred p; .reg .b64 a, b;\n"                        \
                   "setp.ne.b32 p, %" #R2 ", 0;\n"                            \
                   "mov.b64 a, {%" #R ", " ATTENTION_OPERAND_UPPER_HALF "};\n"\
                   "mov.b64 b, {%" #R1 ", " ATTENTION_OPERAND_UPPER_HALF "};\n"\
                   "wgmma.mma_async.sync.aligned.m64n" #N STEP ".f32." NAME "."\
                   NAME " {" ATTENTION_LIST_##R "}, a, b, p, 1, 1" ROWS_FLAGS \
                   "; }"                                                      \
                   : ATTENTION_D_##R                                          \
                   : "r"(a.word), "r"(b.word), "r"(static_cast<int>(accumulate))\
                   : "memory");                                               \
    }                                                                         \
    static __device__ void FromRegisters(float (&d)[R], const uint32_t* a,    \
                                         Operand b, bool accumulate = true) { \
      asm volatile("{ .reg .pred p; .reg .b64 b;\n"                           \
                   "setp.ne.b32 p, %" #R5 ", 0;\n"                            \
                   "mov.b64 b, {%" #R4 ", " COLUMN_UPPER_HALF "};\n"          \
                   "wgmma.mma_async.sync.aligned.m64n" #N STEP ".f32." NAME "."\
                   NAME " {" ATTENTION_LIST_##R "}, {%" #R ",%" #R1 ",%" #R2   \
                   ",%" #R3 "}, b, p, 1, 1" COLUMN_FLAG "; }"                 \
                   : ATTENTION_D_##R                                          \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.word), \
                     "r"(static_cast<int>(accumulate))                        \
                   : "memory");                                               \
    }                                                                         \
  };
#define ATTENTION_PRODUCTS(N, R, R1, R2, R3, R4, R5)                  \
  ATTENTION_PRODUCT(__nv_bfloat16, "bf16", "k16", ", 0, 0", ", 1",    \
                    ATTENTION_OPERAND_UPPER_HALF, N, R, R1, R2, R3, R4, R5) \
  ATTENTION_PRODUCT(__half, "f16", "k16", ", 0, 0", ", 1",            \
                    ATTENTION_OPERAND_UPPER_HALF, N, R, R1, R2, R3, R4, R5)

ATTENTION_PRODUCTS(64, 32, 33, 34, 35, 36, 37)
ATTENTION_PRODUCTS(80, 40, 41, 42, 43, 44, 45)
ATTENTION_PRODUCTS(96, 48, 49, 50, 51, 52, 53)
ATTENTION_PRODUCTS(128, 64, 65, 66, 67, 68, 69)
ATTENTION_PRODUCTS(176, 88, 89, 90, 91, 92, 93)
ATTENTION_PRODUCTS(192, 96, 97, 98, 99, 100, 101)
ATTENTION_PRODUCTS(256, 128, 129, 130, 131, 132, 133)

// TF32, from fp32 operands of which it ignores the lower bits.
ATTENTION_PRODUCT(float, "tf32", "k8", "", "", ATTENTION_OPERAND_UPPER_HALF,
                  64, 32, 33, 34, 35, 36, 37)
ATTENTION_PRODUCT(float, "tf32", "k8", "", "", ATTENTION_OPERAND_UPPER_HALF,
                  128, 64, 65, 66, 67, 68, 69)

#define ATTENTION_FLOAT8_PRODUCT(N, R, R1, R2, R3, R4, R5)            \
  ATTENTION_PRODUCT(__nv_fp8_e4m3, "e4m3", "k32", "", "",             \
                    ATTENTION_NARROW_OPERAND_UPPER_HALF, N, R, R1, R2, R3, R4, \
                    R5)
ATTENTION_FLOAT8_PRODUCT(64, 32, 33, 34, 35, 36, 37)
ATTENTION_FLOAT8_PRODUCT(128, 64, 65, 66, 67, 68, 69)
ATTENTION_FLOAT8_PRODUCT(192, 96, 97, 98, 99, 100, 101)

}  // namespace attention::cuda::sm90

#endif  // ATTENTION_KERNELS_CUDA_SM90_WGMMA_CUH_
