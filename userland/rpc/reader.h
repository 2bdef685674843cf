/* Bytes of one connection become messages. It owns no socket: it says where the next bytes go, and judges them. */
#ifndef K1_RPC_READER_H
#define K1_RPC_READER_H

#include "hello.h"

typedef enum k1_stage {
    K1_STAGE_HELLO,   /* a listener: hello comes */
    K1_STAGE_WELCOME, /* a dialler: welcome comes */
    K1_STAGE_CONFIRM, /* a listener: confirm or bye comes */
    K1_STAGE_FRAMES,
} k1_stage;

typedef enum k1_read {
    K1_READ_MORE,    /* receive into k1_reader_room */
    K1_READ_FRAME,   /* set frame */
    K1_READ_MESSAGE, /* header and payload hold a message */
    K1_READ_BAD,     /* err tells what is wrong with it; bad_magic and bad_version tell why */
} k1_read;

typedef struct k1_reader {
    k1_stage stage;
    uint64_t seq_num;     /* of the message that comes */
    uint32_t max_payload; /* of it */
    uint32_t rank;        /* its sender's, from CONFIRM on */
    uint8_t key[32];      /* what tags are checked with, from CONFIRM on; the handshake's first two have their own */
    k1_header header;
    bool checked;     /* header is decoded and allowed */
    bool verified;    /* so is the payload */
    bool bad_magic;   /* this is no k1rpc at all */
    bool bad_version; /* header.version tells which */
    size_t n;         /* bytes of header and payload so far */
    k1_frame *frame;  /* of a message for on_frame; NULL for others */
    uint8_t head[K1_RPC_HEADER];
    uint8_t small[K1_RPC_TEXT]; /* the payload of others */
} k1_reader;

k1_read k1_reader_step(k1_reader *reader, k1_err *err);
/* Where the next bytes go and how many are wanted at most; add what came to reader->n. */
size_t k1_reader_room(k1_reader *reader, uint8_t **at);
const uint8_t *k1_reader_payload(const k1_reader *reader);
/* The message has been dealt with (and its frame given away). */
void k1_reader_next(k1_reader *reader);

#endif
