/* AVX-VNNI: AVX2 with one instruction for two 16-bit products and their sum. The float functions are those of AVX2. */
#include <immintrin.h>

#include "avx2.h"
#include "scalar.h"

#define INLINE static inline __attribute__((always_inline))

INLINE __m256i add_pairs(__m256i sum, __m256i a, __m256i b) { return _mm256_dpwssd_avx_epi32(sum, a, b); }

#include "products_avx2.h"

const k1_kernels k1_kernels_avxvnni = {
    .name = "avxvnni",
    .matmul =
        {
            [K1_F32] = {K1_ACT_F32, k1_avx2_matmul_f32},
            [K1_F16] = {K1_ACT_F32, k1_avx2_matmul_f16},
            [K1_BF16] = {K1_ACT_F32, k1_avx2_matmul_bf16},
            [K1_Q4_0] = {K1_ACT_Q16, matmul_q4_0},
            [K1_Q4_1] = {K1_ACT_Q16, matmul_q4_1},
            [K1_Q5_0] = {K1_ACT_Q16, k1_scalar_matmul_q5_0},
            [K1_Q8_0] = {K1_ACT_Q16, matmul_q8_0},
            [K1_Q4_K] = {K1_ACT_F32, k1_scalar_matmul_q4_k},
            [K1_Q6_K] = {K1_ACT_F32, k1_scalar_matmul_q6_k},
        },
    .quantize = k1_avx2_quantize,
    .dequantize = k1_scalar_dequantize,
    .rmsnorm = k1_avx2_rmsnorm,
    .add = k1_avx2_add,
    .swiglu = k1_avx2_swiglu,
    .dot_f16 = k1_avx2_dot_f16,
    .axpy_f16 = k1_avx2_axpy_f16,
    .to_f16 = k1_avx2_to_f16,
};
