#include "reader.h"

#include <string.h>

/* Messages that are the link's own business, small enough for memory of its own: no frame is needed for them. */
static bool is_small(const k1_header *header) {
    return header->msg_type == K1_MSG_PING || header->msg_type == K1_MSG_BYE || header->msg_type > K1_MSG_BYE;
}

static bool is_expected(k1_stage stage, uint16_t type) {
    switch (stage) {
    case K1_STAGE_HELLO:
        return type == K1_MSG_HELLO;
    case K1_STAGE_WELCOME:
        return type == K1_MSG_WELCOME;
    case K1_STAGE_CONFIRM:
        return type == K1_MSG_CONFIRM || type == K1_MSG_BYE;
    default:
        return type <= K1_MSG_BYE;
    }
}

static bool is_size_allowed(const k1_reader *reader) {
    const k1_header *header = &reader->header;
    bool text = (header->flags & K1_FLAG_ERROR) != 0;
    switch (header->msg_type) {
    case K1_MSG_HELLO:
        return header->payload_size == K1_HELLO_BYTES;
    case K1_MSG_WELCOME:
        return text ? header->payload_size <= K1_RPC_TEXT : header->payload_size == K1_HELLO_BYTES;
    case K1_MSG_CONFIRM:
        return header->payload_size == 0;
    case K1_MSG_PING:
        return header->payload_size == sizeof(uint64_t);
    case K1_MSG_BYE:
        return header->payload_size <= K1_RPC_TEXT;
    default:
        return header->payload_size <= reader->max_payload && (!text || header->payload_size <= K1_RPC_TEXT);
    }
}

static int check_header(k1_reader *reader, k1_err *err) {
    k1_header *header = &reader->header;
    if (k1_header_decode(reader->head, header, err) != 0) {
        reader->bad_magic = true;
        return -1;
    }
    if (header->version != K1_RPC_VERSION) {
        reader->bad_version = true;
        return k1_fail(err, "it speaks version %u of k1rpc, not %d", header->version, K1_RPC_VERSION);
    }
    if (!is_expected(reader->stage, header->msg_type)) {
        return k1_fail(err, "it sent a message of type %u, which has no place here", header->msg_type);
    }
    if (!is_size_allowed(reader)) {
        return k1_fail(err, "it sent a message of type %u with %u bytes (at most %u are agreed on)", header->msg_type,
                       header->payload_size, reader->max_payload);
    }
    if (header->seq_num != reader->seq_num) {
        return k1_fail(err, "it sent message %llu where %llu comes next", (unsigned long long)header->seq_num,
                       (unsigned long long)reader->seq_num);
    }
    return 0;
}

const uint8_t *k1_reader_payload(const k1_reader *reader) {
    return reader->frame != NULL ? k1_frame_payload(reader->frame) : reader->small;
}

static int verify(const k1_reader *reader, k1_err *err) {
    const k1_header *header = &reader->header;
    const uint8_t *payload = k1_reader_payload(reader);
    uint8_t tag[K1_TAG];
    if (reader->stage >= K1_STAGE_CONFIRM) {
        k1_frame_tag(reader->key, reader->seq_num, reader->head, payload, header->payload_size, tag);
        if (!k1_same_tag(tag, header->mac)) {
            return k1_fail(err, "it sent a message whose tag is wrong: it was altered, or sent by somebody else");
        }
        if (header->rank != reader->rank) {
            return k1_fail(err, "it sent a message in the name of rank %u", header->rank);
        }
    }
    if (k1_crc32(payload, header->payload_size) != header->crc32) {
        return k1_fail(err, "it sent a message whose crc32 is wrong");
    }
    return 0;
}

k1_read k1_reader_step(k1_reader *reader, k1_err *err) {
    if (reader->n < K1_RPC_HEADER) {
        return K1_READ_MORE;
    }
    if (!reader->checked) {
        if (check_header(reader, err) != 0) {
            return K1_READ_BAD;
        }
        reader->checked = true;
    }
    if (reader->frame == NULL && !is_small(&reader->header)) {
        return K1_READ_FRAME;
    }
    if (reader->n - K1_RPC_HEADER < reader->header.payload_size) {
        return K1_READ_MORE;
    }
    if (!reader->verified) {
        if (verify(reader, err) != 0) {
            return K1_READ_BAD;
        }
        reader->verified = true;
        if (reader->frame != NULL) {
            reader->frame->header = reader->header;
            memcpy(reader->frame->wire, reader->head, K1_RPC_HEADER);
        }
    }
    return K1_READ_MESSAGE;
}

size_t k1_reader_room(k1_reader *reader, uint8_t **at) {
    if (reader->n < K1_RPC_HEADER) {
        *at = reader->head + reader->n;
        return K1_RPC_HEADER - reader->n;
    }
    size_t done = reader->n - K1_RPC_HEADER;
    *at = (reader->frame != NULL ? k1_frame_payload(reader->frame) : reader->small) + done;
    return reader->header.payload_size - done;
}

void k1_reader_next(k1_reader *reader) {
    reader->frame = NULL;
    reader->checked = reader->verified = false;
    reader->n = 0;
    reader->seq_num++;
}
