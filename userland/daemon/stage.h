/* One rank's part of the pipeline: slots with their KV caches, and what a step or a message does to them. It belongs to
 * the engine's thread and knows nothing of threads and sockets; what leaves goes through k1_stage_ways. A node of its
 * own is a pipeline of one rank. */
#ifndef K1_STAGE_H
#define K1_STAGE_H

#include "k1/rpc.h"
#include "k1/runtime.h"
#include "worker.h"

#define K1_MAX_SLOTS 32

typedef struct k1_stage_ways {
    void *arg;
    /* A job's answer; every kind but TEXT is its last. */
    void (*reply)(void *arg, k1_job *job, k1_reply_kind kind, const char *text, size_t n);
    /* An empty frame to send; NULL: none is free now. */
    k1_frame *(*take)(void *arg);
    void (*send)(void *arg, k1_frame *frame);
    /* Whether a request's cancel has come already, though other messages wait before it. */
    bool (*is_cancelled)(void *arg, uint32_t slot, uint32_t slot_gen);
    /* A batch of a pipeline of several ranks was computed, or dropped because its request is cancelled. */
    void (*count_batch)(void *arg, bool computed);
} k1_stage_ways;

typedef struct k1_stage k1_stage;

/* NULL: out of memory. runtime must be started. */
k1_stage *k1_stage_new(k1_runtime *runtime, const k1_stage_ways *ways);
void k1_stage_free(k1_stage *stage);

/* Forget everything, and make the caches that a plan wants from this rank. -1 and err: they do not fit; the stage has
 * no plan then and drops every message. */
int k1_stage_plan(k1_stage *stage, const k1_plan *plan, uint32_t rank, uint64_t session, uint32_t epoch, k1_err *err);

/* Rank 0: begin a job in a free slot; there must be one, or no plan. false: no frame is free; try again. */
bool k1_stage_begin(k1_stage *stage, k1_job *job);
/* Rank 0: one step of one slot. false: there is nothing to do until a message or a job comes or a frame is free. */
bool k1_stage_step(k1_stage *stage);
/* Rank 0: end all jobs with a last reply of a kind, and forget the plan. */
void k1_stage_end(k1_stage *stage, k1_reply_kind kind, const char *why);

/* A message from another rank. false: no frame is free to answer or pass on; try again. Those of another session, plan
 * or slot generation are dropped. */
bool k1_stage_take_frame(k1_stage *stage, const k1_frame *frame);
/* Tell rank 0 that the plan's caches stand (err NULL), or why not. false: as above. */
bool k1_stage_send_sync(k1_stage *stage, uint64_t session, uint32_t epoch, const k1_err *err);

#endif
