/* The engine's thread and the way to it. All functions but the thread itself belong to the event thread: jobs, messages
 * and orders go down, replies and messages come back up through rings, and an eventfd wakes each side. */
#ifndef K1_WORKER_H
#define K1_WORKER_H

#include <stdatomic.h>

#include "k1/request.h"
#include "k1/rpc.h"
#include "k1/runtime.h"

typedef enum k1_reply_kind {
    K1_REPLY_TEXT,        /* more text is visible */
    K1_REPLY_DONE,        /* the request's tokens, finish and times may be read */
    K1_REPLY_REFUSED,     /* text says what is wrong with the request */
    K1_REPLY_FAILED,      /* text says what went wrong here */
    K1_REPLY_CANCELLED,   /* as asked for */
    K1_REPLY_UNAVAILABLE, /* it was not begun: text says what is missing */
} k1_reply_kind;

typedef struct k1_job k1_job;

/* text: NUL-terminated, n bytes. Every kind but TEXT is the last of its job. */
typedef struct k1_reply {
    k1_job *job;
    k1_reply_kind kind;
    size_t n;
    char text[];
} k1_reply;

/* What the generated tokens but the first cost on each rank, in sums. */
typedef struct k1_stage_times {
    uint32_t n_ranks;
    uint64_t n_tokens;
    uint64_t run_us[K1_RPC_MAX_RANKS];
    uint64_t wait_us[K1_RPC_MAX_RANKS]; /* from a message's receipt to the start */
    uint64_t hops_us;                   /* on the way between ranks, all hops together */
} k1_stage_times;

/* One request on its way. Zero-initialise, then set params, on_reply and owner. It must stay until its last reply. */
struct k1_job {
    k1_request_params params;
    void (*on_reply)(k1_job *job, const k1_reply *reply); /* called by the event thread; may free the job at the last */
    void *owner;
    k1_request request; /* the worker's until the last reply, as are the times */
    k1_stage_times times;
    atomic_bool cancelled;
    bool started; /* given to the worker */
    k1_job *next; /* in the queue */
};

/* Free what a job holds, after its last reply. */
void k1_job_clear(k1_job *job);

typedef struct k1_worker_config {
    k1_runtime *runtime;
    size_t max_waiting; /* jobs that may wait */
    uint32_t n_slots;   /* jobs that run at once */
    uint32_t rank, n_ranks;
    void *arg; /* of the following, which the event thread calls; not used with one rank */
    void (*on_frame)(void *arg, k1_frame *frame); /* a message to send; comes back by k1_worker_sent */
    void (*on_room)(void *arg);                   /* frames may be free again to receive into */
} k1_worker_config;

typedef struct k1_worker k1_worker;

/* Start the thread and, on it, the runtime's compute threads; one rank alone makes its caches too. */
k1_worker *k1_worker_new(const k1_worker_config *config, k1_err *err);
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

/* Batches of a pipeline of several ranks that this one has computed, and those that it left out because their requests'
 * cancels had come. */
typedef struct k1_batches {
    uint64_t computed, dropped;
} k1_batches;
k1_batches k1_worker_batches(const k1_worker *worker);

/* Frames to receive into; each goes to k1_worker_take_frame. */
k1_frames *k1_worker_rx(k1_worker *worker);
void k1_worker_take_frame(k1_worker *worker, k1_frame *frame);
void k1_worker_sent(k1_worker *worker, k1_frame *frame);
/* Make the caches of a plan; a sync to rank 0 comes out by on_frame. A later plan replaces one not yet begun. */
void k1_worker_plan(k1_worker *worker, const k1_plan *plan, uint64_t session, uint32_t epoch);
/* Rank 0: end all jobs with an error, and take none until the next plan. */
void k1_worker_lost(k1_worker *worker, const char *why);

#endif
