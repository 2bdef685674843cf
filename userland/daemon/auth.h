/* Who may use the API: bearer tokens from a file. */
#ifndef K1_AUTH_H
#define K1_AUTH_H

#include <stdbool.h>
#include <stddef.h>

#include "k1/error.h"

#define K1_AUTH_MAX 32
#define K1_AUTH_HASH 32

/* Only hashes are kept, which also makes all comparisons equally long. n 0: everybody may. */
typedef struct k1_auth {
    size_t n;
    unsigned char hash[K1_AUTH_MAX][K1_AUTH_HASH];
} k1_auth;

/* One token a line; # begins a comment. -1 and err: unreadable, no token, a token shorter than 16 characters. */
int k1_auth_load(k1_auth *auth, const char *path, k1_err *err);
/* header: the value of Authorization, or NULL. */
bool k1_auth_allows(const k1_auth *auth, const char *header);
/* Whether only this machine can reach the address: 127.0.0.0/8, ::1, localhost. */
bool k1_is_loopback(const char *host);

#endif
