/* The engine's thread and the way to it. All functions but the thread itself belong to the event thread: jobs go down
 * one ring, replies come back up another, and an eventfd wakes each side. */
#ifndef K1_WORKER_H
#define K1_WORKER_H

#include <stdatomic.h>

#include "k1/request.h"
#include "k1/runtime.h"

typedef enum k1_reply_kind {
    K1_REPLY_TEXT,      /* more text is visible */
    K1_REPLY_DONE,      /* the request's tokens, finish and times may be read */
    K1_REPLY_REFUSED,   /* text says what is wrong with the request */
    K1_REPLY_FAILED,    /* text says what went wrong here */
    K1_REPLY_CANCELLED, /* as asked for */
} k1_reply_kind;

typedef struct k1_job k1_job;

/* text: n bytes, NUL-terminated when n > 0. Every kind but TEXT is the last of its job. */
typedef struct k1_reply {
    k1_job *job;
    k1_reply_kind kind;
    size_t n;
    char text[];
} k1_reply;

/* One request on its way. Zero-initialise, then set params, on_reply and owner. It must stay until its last reply. */
struct k1_job {
    k1_request_params params;
    void (*on_reply)(k1_job *job, const k1_reply *reply); /* called by the event thread; may free the job at the last */
    void *owner;
    k1_request request; /* the worker's until the last reply */
    atomic_bool cancelled;
    bool started; /* given to the worker */
    k1_job *next; /* in the queue */
};

/* Free what a job holds, after its last reply. */
void k1_job_clear(k1_job *job);

typedef struct k1_worker k1_worker;

/* Start the thread and, on it, the runtime's compute threads. At most max_waiting jobs wait. */
k1_worker *k1_worker_new(k1_runtime *runtime, size_t max_waiting, k1_err *err);
/* Cancel everything, hand out the last replies, end the thread. */
void k1_worker_free(k1_worker *worker);

/* Becomes readable when k1_worker_poll has something to do. */
int k1_worker_fd(const k1_worker *worker);
void k1_worker_poll(k1_worker *worker);

/* false: the queue is full. */
bool k1_worker_submit(k1_worker *worker, k1_job *job);
/* Stop a job soon; its last reply still comes, at once if it was waiting. */
void k1_worker_cancel(k1_worker *worker, k1_job *job);
size_t k1_worker_n_waiting(const k1_worker *worker);
size_t k1_worker_n_running(const k1_worker *worker);

#endif
