/* IEEE half precision and bfloat16 in portable C: no hardware support needed, no tables. */
#ifndef K1_HALF_H
#define K1_HALF_H

#include <stdint.h>
#include <string.h>

#define K1_F16_MAX 65504.0f

static inline float k1_float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t k1_bits_of_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* The half's bits in a float's place are 2^112 times too small; the product is exact for subnormals too. */
static inline float k1_f16_to_f32(uint16_t h) {
    float magnitude = k1_float_of_bits((uint32_t)(h & 0x7fffu) << 13) * 0x1p112f;
    uint32_t special = magnitude >= 65536.0f ? 0x7f800000u : 0u; /* infinity and NaN keep their mantissa */
    return k1_float_of_bits(k1_bits_of_float(magnitude) | special | (uint32_t)(h & 0x8000u) << 16);
}

/* Round to nearest even; beyond ±65504 is clipped, NaN stays NaN. */
static inline uint16_t k1_f32_to_f16(float value) {
    uint32_t bits = k1_bits_of_float(value);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u | (bits >> 13 & 0x1ffu));
    }
    if (bits >= 0x477fe000u) { /* 65504 */
        return (uint16_t)(sign | 0x7bffu);
    }
    if (bits < 0x38800000u) { /* below 2^-14: adding 0.5 leaves the rounded subnormal in the low bits */
        uint32_t low = k1_bits_of_float(k1_float_of_bits(bits) + 0.5f) - 0x3f000000u;
        return (uint16_t)(sign | low);
    }
    bits += 0xfffu + (bits >> 13 & 1u);
    return (uint16_t)(sign | (bits - 0x38000000u) >> 13);
}

static inline float k1_bf16_to_f32(uint16_t h) { return k1_float_of_bits((uint32_t)h << 16); }

static inline uint16_t k1_load_u16(const void *p) {
    uint16_t value;
    memcpy(&value, p, sizeof value);
    return value;
}

static inline float k1_load_f16(const void *p) { return k1_f16_to_f32(k1_load_u16(p)); }

#endif
