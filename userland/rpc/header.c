/* The header of 128 bytes: docs/protocol.md, Header. */
#include <string.h>

#include "k1/rpc.h"
#include "wire.h"

static const uint8_t magic[4] = {'K', '1', 'R', 'P'};

void k1_header_encode(const k1_header *header, uint8_t out[K1_RPC_HEADER]) {
    memset(out, 0, K1_RPC_HEADER);
    memcpy(out, magic, sizeof magic);
    k1_put_u16(out + 4, header->version);
    k1_put_u16(out + 6, header->msg_type);
    k1_put_u32(out + 8, header->layer_id);
    k1_put_u32(out + 12, header->flags);
    k1_put_u64(out + 16, header->seq_num);
    k1_put_u32(out + 24, header->payload_size);
    k1_put_u32(out + 28, header->crc32);
    k1_put_u64(out + 32, header->session);
    k1_put_u32(out + 40, header->rank);
    k1_put_u32(out + 44, header->plan_epoch);
    k1_put_u64(out + 48, header->request_id);
    k1_put_u32(out + 56, header->slot);
    k1_put_u32(out + 60, header->slot_gen);
    k1_put_u32(out + 64, header->first_pos);
    k1_put_u32(out + 68, header->n_tokens);
    k1_put_u16(out + 72, header->dtype);
    memcpy(out + 112, header->mac, sizeof header->mac);
}

int k1_header_decode(const uint8_t in[K1_RPC_HEADER], k1_header *header, k1_err *err) {
    if (memcmp(in, magic, sizeof magic) != 0) {
        return k1_fail(err, "these bytes are not k1rpc: they begin with %02x %02x %02x %02x", in[0], in[1], in[2],
                       in[3]);
    }
    *header = (k1_header){
        .version = k1_get_u16(in + 4),
        .msg_type = k1_get_u16(in + 6),
        .layer_id = k1_get_u32(in + 8),
        .flags = k1_get_u32(in + 12),
        .seq_num = k1_get_u64(in + 16),
        .payload_size = k1_get_u32(in + 24),
        .crc32 = k1_get_u32(in + 28),
        .session = k1_get_u64(in + 32),
        .rank = k1_get_u32(in + 40),
        .plan_epoch = k1_get_u32(in + 44),
        .request_id = k1_get_u64(in + 48),
        .slot = k1_get_u32(in + 56),
        .slot_gen = k1_get_u32(in + 60),
        .first_pos = k1_get_u32(in + 64),
        .n_tokens = k1_get_u32(in + 68),
        .dtype = k1_get_u16(in + 72),
    };
    memcpy(header->mac, in + 112, sizeof header->mac);
    return 0;
}
