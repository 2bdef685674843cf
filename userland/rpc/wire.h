/* Little-endian numbers in bytes, whatever the machine's own order and alignment. */
#ifndef K1_RPC_WIRE_H
#define K1_RPC_WIRE_H

#include <stdint.h>
#include <string.h>

static inline void k1_put_u16(uint8_t *at, uint16_t value) {
    at[0] = (uint8_t)value;
    at[1] = (uint8_t)(value >> 8);
}

static inline void k1_put_u32(uint8_t *at, uint32_t value) {
    k1_put_u16(at, (uint16_t)value);
    k1_put_u16(at + 2, (uint16_t)(value >> 16));
}

static inline void k1_put_u64(uint8_t *at, uint64_t value) {
    k1_put_u32(at, (uint32_t)value);
    k1_put_u32(at + 4, (uint32_t)(value >> 32));
}

static inline void k1_put_f32(uint8_t *at, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    k1_put_u32(at, bits);
}

static inline uint16_t k1_get_u16(const uint8_t *at) { return (uint16_t)(at[0] | at[1] << 8); }

static inline uint32_t k1_get_u32(const uint8_t *at) {
    return (uint32_t)k1_get_u16(at) | (uint32_t)k1_get_u16(at + 2) << 16;
}

static inline uint64_t k1_get_u64(const uint8_t *at) {
    return (uint64_t)k1_get_u32(at) | (uint64_t)k1_get_u32(at + 4) << 32;
}

static inline float k1_get_f32(const uint8_t *at) {
    uint32_t bits = k1_get_u32(at);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline int32_t k1_get_i32(const uint8_t *at) {
    uint32_t bits = k1_get_u32(at);
    int32_t value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

#endif
