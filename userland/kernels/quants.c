/* Block formats of GGUF tensors and the quantization of activations. Layouts: ggml/src/ggml-common.h; formulas:
 * gguf-py/gguf/quants.py. */
#include <math.h>
#include <string.h>

#include "half.h"
#include "scalar.h"

/* 16 bytes of nibbles: the low ones are values 0 to 15, the high ones 16 to 31. */
static void unpack_nibbles(const uint8_t *in, int8_t *out) {
    for (size_t i = 0; i < 16; i++) {
        out[i] = (int8_t)(in[i] & 15u);
        out[i + 16] = (int8_t)(in[i] >> 4);
    }
}

void k1_unpack_q4_0(const uint8_t *in, k1_block *out) {
    out->d = k1_load_f16(in);
    out->m = out->d * -8.0f;
    unpack_nibbles(in + 2, out->q);
}

void k1_unpack_q4_1(const uint8_t *in, k1_block *out) {
    out->d = k1_load_f16(in);
    out->m = k1_load_f16(in + 2);
    unpack_nibbles(in + 4, out->q);
}

/* As Q4_0, and four bytes that hold the fifth bits in order. */
void k1_unpack_q5_0(const uint8_t *in, k1_block *out) {
    out->d = k1_load_f16(in);
    out->m = out->d * -16.0f;
    unpack_nibbles(in + 6, out->q);
    for (size_t i = 0; i < 32; i++) {
        unsigned bit = (unsigned)in[2 + i / 8] >> i % 8 & 1u;
        out->q[i] = (int8_t)(out->q[i] | (int)(bit << 4));
    }
}

void k1_unpack_q8_0(const uint8_t *in, k1_block *out) {
    out->d = k1_load_f16(in);
    out->m = 0.0f;
    memcpy(out->q, in + 2, sizeof out->q);
}

typedef void unpack_fn(const uint8_t *in, k1_block *out);

static void dequantize_blocks(unpack_fn *unpack, size_t bytes, const uint8_t *in, float *out, size_t n) {
    for (size_t i = 0; i < n; i += K1_Q16_BLOCK, in += bytes) {
        k1_block block;
        unpack(in, &block);
        for (size_t j = 0; j < K1_Q16_BLOCK; j++) {
            out[i + j] = block.d * (float)block.q[j] + block.m;
        }
    }
}

/* Scale and minimum of sub-block j of 8, six bits each, in the twelve bytes s. */
static void q4_k_scale(const uint8_t *s, size_t j, float *scale, float *min) {
    unsigned sc;
    unsigned mn;
    if (j < 4) {
        sc = s[j] & 63u;
        mn = s[j + 4] & 63u;
    } else {
        sc = (s[j + 4] & 15u) | (unsigned)(s[j - 4] >> 6) << 4;
        mn = (unsigned)(s[j + 4] >> 4) | (unsigned)(s[j] >> 6) << 4;
    }
    *scale = (float)sc;
    *min = (float)mn;
}

/* 256 values: d, dmin, 12 bytes of scales, 4 times 32 bytes whose low nibbles precede their high nibbles. */
static void dequantize_q4_k(const uint8_t *in, float *out) {
    float d = k1_load_f16(in);
    float dmin = k1_load_f16(in + 2);
    for (size_t j = 0; j < 8; j++) {
        const uint8_t *q = in + 16 + j / 2 * 32;
        unsigned shift = j % 2 == 0 ? 0 : 4;
        float scale;
        float min;
        q4_k_scale(in + 4, j, &scale, &min);
        scale *= d;
        min *= dmin;
        for (size_t i = 0; i < 32; i++) {
            out[j * 32 + i] = scale * (float)(q[i] >> shift & 15u) - min;
        }
    }
}

/* 256 values: low nibbles (128 bytes), upper two bits (64), int8 scales for 16 values each (16), d. */
static void dequantize_q6_k(const uint8_t *in, float *out) {
    float d = k1_load_f16(in + 208);
    for (size_t i = 0; i < 256; i++) {
        size_t half = i / 128;
        size_t quarter = i / 32 % 4;
        size_t l = i % 32;
        unsigned low = (unsigned)in[half * 64 + quarter % 2 * 32 + l] >> quarter / 2 * 4 & 15u;
        unsigned high = (unsigned)in[128 + half * 32 + l] >> quarter * 2 & 3u;
        int8_t scale;
        memcpy(&scale, in + 192 + i / 16, 1);
        out[i] = d * (float)scale * (float)((int)(low | high << 4) - 32);
    }
}

static void dequantize_halves(k1_dtype type, const uint8_t *in, float *out, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint16_t h = k1_load_u16(in + 2 * i);
        out[i] = type == K1_F16 ? k1_f16_to_f32(h) : k1_bf16_to_f32(h);
    }
}

void k1_scalar_dequantize(k1_dtype type, const void *row, float *out, size_t n) {
    const uint8_t *in = row;
    switch (type) {
    case K1_F32:
        memcpy(out, in, n * sizeof *out);
        break;
    case K1_F16:
    case K1_BF16:
        dequantize_halves(type, in, out, n);
        break;
    case K1_Q4_0:
        dequantize_blocks(k1_unpack_q4_0, 18, in, out, n);
        break;
    case K1_Q4_1:
        dequantize_blocks(k1_unpack_q4_1, 20, in, out, n);
        break;
    case K1_Q5_0:
        dequantize_blocks(k1_unpack_q5_0, 22, in, out, n);
        break;
    case K1_Q8_0:
        dequantize_blocks(k1_unpack_q8_0, 34, in, out, n);
        break;
    case K1_Q4_K:
        for (size_t i = 0; i < n; i += 256, in += 144) {
            dequantize_q4_k(in, out + i);
        }
        break;
    case K1_Q6_K:
        for (size_t i = 0; i < n; i += 256, in += 210) {
            dequantize_q6_k(in, out + i);
        }
        break;
    }
}

/* A block that holds NaN or infinity gets d = NaN, so that the fault shows in the result instead of vanishing. */
static void quantize_block(const float *x, k1_q16 *out) {
    float largest = 0.0f;
    float poison = 0.0f; /* NaN once a value is not finite */
    for (size_t i = 0; i < K1_Q16_BLOCK; i++) {
        float magnitude = fabsf(x[i]);
        largest = magnitude > largest ? magnitude : largest;
        poison += x[i] * 0.0f;
    }
    float d = largest / (float)K1_Q16_MAX;
    float inverse = 1.0f / d;
    if (poison != poison || !(inverse < INFINITY)) { /* the second: zero, or so small that it counts as zero */
        out->d = poison != poison ? NAN : 0.0f;
        out->s = out->d;
        memset(out->q, 0, sizeof out->q);
        return;
    }
    int sum = 0;
    for (size_t i = 0; i < K1_Q16_BLOCK; i++) {
        float scaled = x[i] * inverse;
        int q = (int)scaled;
        float rest = scaled - (float)q;
        q += (rest >= 0.5f) - (rest <= -0.5f);
        out->q[i] = (int16_t)q;
        sum += q;
    }
    out->d = d;
    out->s = d * (float)sum;
}

void k1_scalar_quantize(const float *x, k1_q16 *out, size_t n) {
    for (size_t i = 0; i < n / K1_Q16_BLOCK; i++) {
        quantize_block(x + i * K1_Q16_BLOCK, out + i);
    }
}
