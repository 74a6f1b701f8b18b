// Tensor-core products of one warp through mma.sync and ldmatrix.
//
// Fragment layouts (PTX ISA, "Matrix fragments for mma"), lane = 4 g + t: the
// accumulator of a 16x8 tile holds rows g and g + 8, columns 2t and 2t + 1. A
// k-step is 32 bytes of a row, 16 elements of 16 bits or 8 of fp32, and in
// bytes the operand layouts of all types are the same.
#ifndef ATTENTION_KERNELS_CUDA_PORTABLE_MMA_CUH_
#define ATTENTION_KERNELS_CUDA_PORTABLE_MMA_CUH_

#include <cstdint>

#include "kernels/cuda/portable/element.cuh"
#include "kernels/cuda/portable/tile_io.cuh"

namespace attention::cuda::portable {

inline constexpr int kStepBytes = 32;

inline __device__ void LoadMatrices(uint32_t (&r)[4], uint32_t shared) {
  asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
      : "r"(shared)
      : "memory");
}

inline __device__ void LoadMatricesTransposed(uint32_t (&r)[4],
                                              uint32_t shared) {
  asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
      : "r"(shared)
      : "memory");
}

// MatrixUnit<T>:
//   kMinArch      the __CUDA_ARCH__ that has the instructions
//   Round         an operand word as loaded -> as multiplied
//   Multiply      c += a * b for a 16x8 tile and one k-step
//   WeightStep    operand a of the k-step `step` of P * V, from the weights P
//                 that a score accumulator has become
//   ValueStep     operands b of two neighbouring 8-column tiles of that step
template <typename T>
struct MatrixUnit;

template <typename T>
struct MatrixUnit16 {
  static __device__ uint32_t Round(uint32_t word) { return word; }

  template <int kTiles>
  static __device__ void WeightStep(uint32_t (&a)[4],
                                    const float (&p)[kTiles][4], int step) {
    a[0] = Element<T>::Pack(p[2 * step][0], p[2 * step][1]);
    a[1] = Element<T>::Pack(p[2 * step][2], p[2 * step][3]);
    a[2] = Element<T>::Pack(p[2 * step + 1][0], p[2 * step + 1][1]);
    a[3] = Element<T>::Pack(p[2 * step + 1][2], p[2 * step + 1][3]);
  }

  template <int kRowBytes>
  static __device__ void ValueStep(uint32_t (&b)[4], uint32_t tile, int step,
                                   int pair) {
    const int lane = threadIdx.x % 32;
    LoadMatricesTransposed(b, tile + (step * 16 + lane % 16) * kRowBytes +
                                  pair * 32 + lane / 16 * 16);
  }
};

template <>
struct MatrixUnit<__nv_bfloat16> : MatrixUnit16<__nv_bfloat16> {
  static constexpr int kMinArch = 800;

  static __device__ void Multiply(float (&c)[4], const uint32_t (&a)[4],
                                  uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

template <>
struct MatrixUnit<__half> : MatrixUnit16<__half> {
  static constexpr int kMinArch = 750;

  static __device__ void Multiply(float (&c)[4], const uint32_t (&a)[4],
                                  uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    MultiplyHalfStep(c, a[0], a[1], b0);
    MultiplyHalfStep(c, a[2], a[3], b1);
#endif
  }

 private:
  static __device__ void MultiplyHalfStep(float (&c)[4], uint32_t a0,
                                          uint32_t a1, uint32_t b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(b));
  }
};

// fp32 through TF32: 10 bits of mantissa, rounded to nearest here because the
// hardware would truncate.
template <>
struct MatrixUnit<float> {
  static constexpr int kMinArch = 800;

  static __device__ uint32_t Round(uint32_t word) {
    uint32_t rounded;
    asm("cvt.rna.tf32.f32 %0, %1;"
        : "=r"(rounded)
        : "f"(__uint_as_float(word)));
    return rounded;
  }

  static __device__ void Multiply(float (&c)[4], const uint32_t (&a)[4],
                                  uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }

  // The order of a step's 8 keys is free as long as both operands agree: with
  // keys 2t and 2t + 1 in the places t and t + 4, the accumulator already is
  // the operand.
  template <int kTiles>
  static __device__ void WeightStep(uint32_t (&a)[4],
                                    const float (&p)[kTiles][4], int step) {
    a[0] = Round(__float_as_uint(p[step][0]));
    a[1] = Round(__float_as_uint(p[step][2]));
    a[2] = Round(__float_as_uint(p[step][1]));
    a[3] = Round(__float_as_uint(p[step][3]));
  }

  template <int kRowBytes>
  static __device__ void ValueStep(uint32_t (&b)[4], uint32_t tile, int step,
                                   int pair) {
    const int lane = threadIdx.x % 32;
    const uint32_t address =
        tile + (step * 8 + lane % 4 * 2) * kRowBytes + pair * 64 + lane / 4 * 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      asm volatile("ld.shared.b32 %0, [%1];"
                   : "=r"(b[i])
                   : "r"(address + i % 2 * kRowBytes + i / 2 * 32)
                   : "memory");
      b[i] = Round(b[i]);
    }
  }
};

}  // namespace attention::cuda::portable

#endif  // ATTENTION_KERNELS_CUDA_PORTABLE_MMA_CUH_
