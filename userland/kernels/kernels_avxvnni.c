/* AVX-VNNI: AVX2 with one instruction for two 16-bit products and their sum. The float functions are those of AVX2. */
#include <immintrin.h>

#include "avx2.h"
#include "scalar.h"

#define INLINE static inline __attribute__((always_inline))

INLINE __m256i add_pairs(__m256i sum, __m256i a, __m256i b) { return _mm256_dpwssd_avx_epi32(sum, a, b); }

#include "products_avx2.h"

const k1_kernels k1_kernels_avxvnni = TABLE("avxvnni");
