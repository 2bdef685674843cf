#include "stage.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct slot {
    k1_seq *seq;
    uint32_t gen;
    uint64_t request_id;
    bool open;
    /* rank 0 */
    k1_job *job;
    bool waiting; /* for the last rank's token */
    int64_t sent_ns;
    /* the last rank of several */
    k1_sampling sampling;
    k1_tokens tokens;
} slot;

struct k1_stage {
    k1_runtime *runtime;
    k1_stage_ways ways;
    k1_plan plan; /* n_ranks 0: none */
    uint32_t rank;
    uint64_t session;
    uint32_t epoch;
    slot slots[K1_MAX_SLOTS];
    uint32_t turn;         /* the slot to step next */
    uint64_t last_request; /* the last request_id given out */
    uint32_t last_gen;
    k1_frame *spare; /* to send */
    k1_text text;
    char why[K1_RPC_TEXT + 1]; /* there is no plan */
};

static uint32_t elapsed_us(int64_t since_ns) { return (uint32_t)((k1_now_ns() - since_ns) / 1000); }

static const k1_hparams *hparams(const k1_stage *stage) { return k1_model_hparams(stage->runtime->model); }

static bool is_last(const k1_stage *stage) { return stage->rank + 1 == stage->plan.n_ranks; }

k1_stage *k1_stage_new(k1_runtime *runtime, const k1_stage_ways *ways) {
    k1_stage *stage = calloc(1, sizeof *stage);
    if (stage != NULL) {
        stage->runtime = runtime;
        stage->ways = *ways;
    }
    return stage;
}

static void clear_slot(slot *s) {
    if (s->seq != NULL) {
        k1_seq_free(s->seq);
    }
    free(s->tokens.ids);
    *s = (slot){0};
}

static void drop_plan(k1_stage *stage) {
    for (uint32_t i = 0; i < K1_MAX_SLOTS; i++) {
        clear_slot(&stage->slots[i]);
    }
    stage->plan.n_ranks = 0;
}

void k1_stage_free(k1_stage *stage) {
    if (stage != NULL) {
        drop_plan(stage);
        free(stage->text.data);
        free(stage);
    }
}

/* ---- plans ---- */

static int make_slots(k1_stage *stage, const k1_plan *plan, uint32_t rank, k1_err *err) {
    k1_model *model = stage->runtime->model;
    uint32_t first = plan->layers[rank].first;
    uint32_t end = plan->layers[rank].end;
    if (plan->n_slots == 0 || plan->n_slots > K1_MAX_SLOTS) {
        return k1_fail(err, "n_parallel is %" PRIu32 ", outside 1 to %d", plan->n_slots, K1_MAX_SLOTS);
    }
    /* Each cache is checked when it is made, but takes its memory only when it fills. */
    uint64_t one = k1_memory_needed(model, plan->n_ctx, plan->n_batch, first, end);
    uint64_t more = k1_memory_more(model, plan->n_ctx, plan->n_batch, first, end);
    uint64_t budget;
    if (k1_memory_budget(NULL, &budget, err) != 0) {
        return -1;
    }
    if (plan->n_slots > 1 && (one > budget || more > (budget - one) / (plan->n_slots - 1))) {
        return k1_fail(err,
                       "%" PRIu32 " requests at once, with a cache of %" PRIu64 " MiB each for the layers %" PRIu32
                       " to %" PRIu32 ", do not fit into memory: choose a smaller --n_parallel or --n_ctx",
                       plan->n_slots, more >> 20, first, end - 1);
    }
    for (uint32_t i = 0; i < plan->n_slots; i++) {
        stage->slots[i].seq = k1_seq_new(model, plan->n_ctx, plan->n_batch, first, end, err);
        if (stage->slots[i].seq == NULL) {
            return -1;
        }
    }
    return 0;
}

int k1_stage_plan(k1_stage *stage, const k1_plan *plan, uint32_t rank, uint64_t session, uint32_t epoch, k1_err *err) {
    drop_plan(stage);
    stage->rank = rank;
    stage->session = session;
    stage->epoch = epoch;
    if (make_slots(stage, plan, rank, err) != 0) {
        drop_plan(stage);
        return -1;
    }
    stage->plan = *plan;
    return 0;
}

/* ---- frames out ---- */

/* Have a frame in hand, so that what follows can send one without fail. */
static bool reserve(k1_stage *stage) {
    if (stage->spare == NULL) {
        stage->spare = stage->ways.take(stage->ways.arg);
    }
    return stage->spare != NULL;
}

static void send_spare(k1_stage *stage, uint32_t to) {
    k1_frame *frame = stage->spare;
    stage->spare = NULL;
    frame->to = to;
    frame->header.session = stage->session;
    frame->header.plan_epoch = stage->epoch;
    stage->ways.send(stage->ways.arg, frame);
}

static void address_slot(k1_stage *stage, const slot *s, k1_msg type) {
    k1_header *h = &stage->spare->header;
    h->msg_type = (uint16_t)type;
    h->slot = (uint32_t)(s - stage->slots);
    h->slot_gen = s->gen;
    h->request_id = s->request_id;
}

static void put_text(k1_frame *frame, const char *text) {
    size_t n = strnlen(text, K1_RPC_TEXT);
    memcpy(k1_frame_payload(frame), text, n);
    frame->header.payload_size = (uint32_t)n;
    frame->header.flags |= K1_FLAG_ERROR;
}

bool k1_stage_send_sync(k1_stage *stage, uint64_t session, uint32_t epoch, const k1_err *err) {
    if (!reserve(stage)) {
        return false;
    }
    stage->session = session;
    stage->epoch = epoch;
    stage->spare->header.msg_type = K1_MSG_SYNC;
    if (err != NULL) {
        put_text(stage->spare, err->text);
    }
    send_spare(stage, 0);
    return true;
}

/* What comes after for this slot is dropped. */
static void send_failure(k1_stage *stage, slot *s, const char *why) {
    address_slot(stage, s, K1_MSG_BACKWARD);
    put_text(stage->spare, why);
    send_spare(stage, 0);
    s->open = false;
}

/* Open, truncate or cancel, down the pipeline. */
static void pass_on(k1_stage *stage, const k1_frame *in) {
    if (!is_last(stage)) {
        k1_frame *out = stage->spare;
        out->header = in->header;
        memcpy(k1_frame_payload(out), k1_frame_payload(in), in->header.payload_size);
        send_spare(stage, stage->rank + 1);
    }
}

/* ---- rank 0: jobs ---- */

static void reply(k1_stage *stage, k1_job *job, k1_reply_kind kind, const char *text, size_t n) {
    stage->ways.reply(stage->ways.arg, job, kind, text, n);
}

static void close_slot(k1_stage *stage, slot *s, k1_reply_kind kind, const char *text) {
    k1_job *job = s->job;
    if (stage->plan.n_ranks > 1) {
        address_slot(stage, s, K1_MSG_CANCEL);
        send_spare(stage, 1);
    }
    s->open = s->waiting = false;
    s->job = NULL;
    reply(stage, job, kind, text, strlen(text));
}

static void send_open(k1_stage *stage, const slot *s) {
    address_slot(stage, s, K1_MSG_OPEN);
    k1_sampling_encode(&s->job->params.sampling, k1_frame_payload(stage->spare));
    stage->spare->header.payload_size = K1_SAMPLING_BYTES;
    send_spare(stage, 1);
}

static slot *free_slot(k1_stage *stage) {
    slot *s = stage->slots;
    while (s->open) {
        s++;
    }
    return s;
}

bool k1_stage_begin(k1_stage *stage, k1_job *job) {
    k1_err err;
    if (stage->plan.n_ranks == 0) {
        reply(stage, job, K1_REPLY_UNAVAILABLE, stage->why, strlen(stage->why));
        return true;
    }
    if (stage->plan.n_ranks > 1 && !reserve(stage)) {
        return false;
    }
    if (k1_request_begin(&job->request, stage->runtime->tokenizer, &job->params, stage->plan.n_ctx, &err) != 0) {
        reply(stage, job, K1_REPLY_REFUSED, err.text, strlen(err.text));
        return true;
    }
    slot *s = free_slot(stage);
    s->open = true;
    s->gen = ++stage->last_gen;
    s->request_id = ++stage->last_request;
    s->job = job;
    job->times = (k1_stage_times){.n_ranks = stage->plan.n_ranks};
    k1_seq_truncate(s->seq, 0);
    if (stage->plan.n_ranks > 1) {
        send_open(stage, s);
    }
    return true;
}

/* What has become visible, and the end if this was it. */
static void show(k1_stage *stage, slot *s) {
    if (stage->text.n > 0) {
        reply(stage, s->job, K1_REPLY_TEXT, stage->text.data, stage->text.n);
    }
    if (s->job->request.finish != K1_FINISH_NONE) {
        close_slot(stage, s, K1_REPLY_DONE, "");
    }
}

static bool is_token(const k1_stage *stage, int32_t id) { return id >= 0 && (uint32_t)id < hparams(stage)->n_vocab; }

static void accept_token(k1_stage *stage, slot *s, int32_t token) {
    k1_err err;
    stage->text.n = 0;
    if (!is_token(stage, token)) {
        close_slot(stage, s, K1_REPLY_FAILED, k1_no_logits);
    } else if (k1_request_accept(&s->job->request, token, &stage->text, &err) != 0) {
        close_slot(stage, s, K1_REPLY_FAILED, err.text);
    } else {
        show(stage, s);
    }
}

/* What a token cost on each rank; prompts are left out. */
static void add_times(k1_job *job, const k1_trace *trace, uint32_t round_us) {
    k1_stage_times *times = &job->times;
    uint64_t inside = 0;
    for (uint32_t r = 0; r < times->n_ranks; r++) {
        times->run_us[r] += trace->rank[r].run_us;
        times->wait_us[r] += trace->rank[r].wait_us;
        inside += r == 0 ? 0 : trace->rank[r].run_us + trace->rank[r].wait_us;
    }
    times->hops_us += round_us > inside ? round_us - inside : 0;
    times->n_tokens++;
}

/* All layers are here. */
static void step_alone(k1_stage *stage, slot *s) {
    k1_err err;
    k1_request *request = &s->job->request;
    int64_t begun = k1_now_ns();
    bool decode = k1_request_n_generated(request) > 0;
    stage->text.n = 0;
    if (k1_runtime_step(stage->runtime, s->seq, request, &stage->text, &err) != 0) {
        close_slot(stage, s, K1_REPLY_FAILED, err.text);
        return;
    }
    if (decode) {
        add_times(s->job, &(k1_trace){.rank[0].run_us = elapsed_us(begun)}, 0);
    }
    show(stage, s);
}

/* The first layers are here: the rest of the pipeline gets what they make of it. */
static void step_first(k1_stage *stage, slot *s, const int32_t *ids, uint32_t n, bool last) {
    k1_err err;
    k1_frame *frame = stage->spare;
    k1_forward_parts parts = k1_forward_layout(n, hparams(stage)->n_embd);
    uint8_t *payload = k1_frame_payload(frame);
    k1_trace trace = {.token = -1, .n_ranks = stage->plan.n_ranks};
    int64_t begun = k1_now_ns();
    address_slot(stage, s, K1_MSG_FORWARD);
    frame->header.first_pos = k1_seq_n_past(s->seq);
    if (k1_forward(s->seq, stage->runtime->pool, ids, NULL, n, (float *)(void *)(payload + parts.activations),
                   K1_LOGITS_NONE, NULL, &err) != 0) {
        close_slot(stage, s, K1_REPLY_FAILED, err.text);
        return;
    }
    stage->ways.count_batch(stage->ways.arg, true);
    trace.rank[0].run_us = elapsed_us(begun);
    memset(payload, 0, parts.trace);
    memcpy(payload, ids, n * sizeof *ids);
    k1_trace_encode(&trace, payload + parts.trace);
    frame->header.layer_id = stage->plan.layers[1].first;
    frame->header.n_tokens = n;
    frame->header.payload_size = (uint32_t)parts.size;
    frame->header.flags = last ? K1_FLAG_LAST : 0;
    s->waiting = last;
    s->sent_ns = k1_now_ns();
    send_spare(stage, 1);
    k1_request_fed(&s->job->request, n);
}

static void step_slot(k1_stage *stage, slot *s) {
    const int32_t *ids;
    bool last;
    if (stage->plan.n_ranks == 1) {
        step_alone(stage, s);
        return;
    }
    size_t n = k1_request_feed(&s->job->request, stage->plan.n_batch, &ids, &last);
    if (n > 0) {
        step_first(stage, s, ids, (uint32_t)n, last);
    } else { /* no token was wanted, and the prompt is through */
        close_slot(stage, s, K1_REPLY_DONE, "");
    }
}

static bool has_work(const slot *s) {
    return s->open && s->job != NULL && (!s->waiting || atomic_load_explicit(&s->job->cancelled, memory_order_relaxed));
}

bool k1_stage_step(k1_stage *stage) {
    for (uint32_t i = 0; stage->rank == 0 && i < stage->plan.n_slots && stage->plan.n_ranks > 0; i++) {
        slot *s = &stage->slots[(stage->turn + i) % stage->plan.n_slots];
        if (!has_work(s)) {
            continue;
        }
        if (stage->plan.n_ranks > 1 && !reserve(stage)) {
            return false;
        }
        stage->turn = (uint32_t)(s - stage->slots) + 1;
        if (atomic_load_explicit(&s->job->cancelled, memory_order_relaxed)) {
            close_slot(stage, s, K1_REPLY_CANCELLED, "");
        } else {
            step_slot(stage, s);
        }
        return true;
    }
    return false;
}

void k1_stage_end(k1_stage *stage, k1_reply_kind kind, const char *why) {
    for (uint32_t i = 0; i < K1_MAX_SLOTS; i++) {
        slot *s = &stage->slots[i];
        if (s->open && s->job != NULL) {
            k1_job *job = s->job;
            s->open = s->waiting = false;
            s->job = NULL;
            reply(stage, job, kind, why, strlen(why));
        }
    }
    drop_plan(stage);
    snprintf(stage->why, sizeof stage->why, "%s", why);
}

/* ---- messages ---- */

static void take_backward(k1_stage *stage, slot *s, const k1_frame *in) {
    k1_err err;
    k1_trace trace;
    bool failed = (in->header.flags & K1_FLAG_ERROR) != 0;
    if (s->job == NULL || (!failed && (!s->waiting || in->header.rank + 1 != stage->plan.n_ranks))) {
        return;
    }
    if (failed) {
        char text[K1_RPC_TEXT + 1];
        size_t n = in->header.payload_size < K1_RPC_TEXT ? in->header.payload_size : K1_RPC_TEXT;
        memcpy(text, k1_frame_payload(in), n);
        text[n] = '\0';
        close_slot(stage, s, K1_REPLY_FAILED, text);
    } else if (k1_trace_decode(k1_frame_payload(in), in->header.payload_size, &trace, &err) != 0) {
        close_slot(stage, s, K1_REPLY_FAILED, err.text);
    } else {
        s->waiting = false;
        if (k1_request_n_generated(&s->job->request) > 0) {
            add_times(s->job, &trace, elapsed_us(s->sent_ns));
        }
        accept_token(stage, s, trace.token);
    }
}

static void take_open(k1_stage *stage, slot *s, const k1_frame *in) {
    k1_err err;
    s->open = true;
    s->gen = in->header.slot_gen;
    s->request_id = in->header.request_id;
    s->tokens.n = 0;
    k1_seq_truncate(s->seq, 0);
    if (k1_sampling_decode(k1_frame_payload(in), in->header.payload_size, &s->sampling, &err) != 0) {
        send_failure(stage, s, err.text);
    } else {
        pass_on(stage, in);
    }
}

static int check_forward(const k1_stage *stage, const slot *s, const k1_header *h, k1_err *err) {
    uint32_t n_past = k1_seq_n_past(s->seq);
    if (h->n_tokens == 0 || h->n_tokens > K1_RPC_MAX_TOKENS || h->dtype != 0 ||
        h->layer_id != stage->plan.layers[stage->rank].first || h->first_pos != n_past ||
        h->payload_size != k1_forward_layout(h->n_tokens, hparams(stage)->n_embd).size) {
        return k1_fail(err,
                       "rank %" PRIu32 " got %" PRIu32 " tokens from position %" PRIu32 " on for layer %" PRIu32
                       " (%" PRIu32 " bytes, dtype %u), which does not follow on position %" PRIu32,
                       stage->rank, h->n_tokens, h->first_pos, h->layer_id, h->payload_size, (unsigned)h->dtype,
                       n_past);
    }
    return 0;
}

static int keep_tokens(const k1_stage *stage, slot *s, const int32_t *ids, uint32_t n, k1_err *err) {
    for (uint32_t i = 0; i < n; i++) {
        if (!is_token(stage, ids[i])) {
            return k1_fail(err, "rank %" PRIu32 " got token %" PRId32 ", which the model does not have", stage->rank,
                           ids[i]);
        }
        if (k1_tokens_add(&s->tokens, ids[i]) != 0) {
            return k1_fail(err, "out of memory for tokens");
        }
    }
    return 0;
}

static void send_token(k1_stage *stage, const slot *s, const k1_trace *trace) {
    address_slot(stage, s, K1_MSG_BACKWARD);
    k1_trace_encode(trace, k1_frame_payload(stage->spare));
    stage->spare->header.payload_size = K1_TRACE_BYTES;
    send_spare(stage, 0);
}

/* The last layers: the token, when it is wanted. ids: int32[n]; hidden: float[n][n_embd] */
static int run_last(k1_stage *stage, slot *s, const k1_header *h, const int32_t *ids, const float *hidden,
                    int32_t *token, k1_err *err) {
    k1_runtime *runtime = stage->runtime;
    bool wanted = (h->flags & K1_FLAG_LAST) != 0;
    if (keep_tokens(stage, s, ids, h->n_tokens, err) != 0 ||
        k1_forward(s->seq, runtime->pool, NULL, hidden, h->n_tokens, NULL, wanted ? K1_LOGITS_LAST : K1_LOGITS_NONE,
                   runtime->logits, err) != 0) {
        return -1;
    }
    *token = wanted ? k1_sample(&s->sampling, runtime->logits, hparams(stage)->n_vocab, s->tokens.ids, s->tokens.n,
                                s->tokens.n, runtime->scratch)
                    : -1;
    return 0;
}

static void take_forward(k1_stage *stage, slot *s, const k1_frame *in) {
    k1_err err;
    k1_trace trace;
    const k1_header *h = &in->header;
    int64_t begun = k1_now_ns();
    if (check_forward(stage, s, h, &err) != 0) {
        send_failure(stage, s, err.text);
        return;
    }
    k1_forward_parts parts = k1_forward_layout(h->n_tokens, hparams(stage)->n_embd);
    uint8_t *from = k1_frame_payload(in);
    const int32_t *ids = (const int32_t *)(const void *)from;
    const float *hidden = (const float *)(const void *)(from + parts.activations);
    k1_frame *out = stage->spare;
    uint8_t *to = k1_frame_payload(out);
    int failed = k1_trace_decode(from + parts.trace, K1_TRACE_BYTES, &trace, &err);
    if (failed == 0) {
        failed = is_last(stage) ? run_last(stage, s, h, ids, hidden, &trace.token, &err)
                                : k1_forward(s->seq, stage->runtime->pool, NULL, hidden, h->n_tokens,
                                             (float *)(void *)(to + parts.activations), K1_LOGITS_NONE, NULL, &err);
    }
    if (failed != 0) {
        send_failure(stage, s, err.text);
        return;
    }
    stage->ways.count_batch(stage->ways.arg, true);
    trace.rank[stage->rank].wait_us = (uint32_t)((begun - in->received_ns) / 1000);
    trace.rank[stage->rank].run_us = elapsed_us(begun);
    if (!is_last(stage)) {
        out->header = *h;
        out->header.layer_id = stage->plan.layers[stage->rank + 1].first;
        memcpy(to, from, parts.trace);
        k1_trace_encode(&trace, to + parts.trace);
        send_spare(stage, stage->rank + 1);
    } else if (h->flags & K1_FLAG_LAST) {
        send_token(stage, s, &trace);
    }
}

static bool is_current(const k1_stage *stage, const k1_header *h) {
    return stage->plan.n_ranks > 1 && h->session == stage->session && h->plan_epoch == stage->epoch &&
           h->slot < stage->plan.n_slots;
}

bool k1_stage_take_frame(k1_stage *stage, const k1_frame *in) {
    const k1_header *h = &in->header;
    if (!is_current(stage, h)) {
        return true;
    }
    slot *s = &stage->slots[h->slot];
    bool opens = h->msg_type == K1_MSG_OPEN && stage->rank > 0;
    if (stage->rank > 0 && h->rank + 1 != stage->rank) { /* requests come from the rank before */
        return true;
    }
    if (!opens && (!s->open || s->gen != h->slot_gen)) {
        return true;
    }
    if (h->msg_type == K1_MSG_FORWARD && stage->ways.is_cancelled(stage->ways.arg, h->slot, h->slot_gen)) {
        stage->ways.count_batch(stage->ways.arg, false);
        return true;
    }
    if (!reserve(stage)) {
        return false;
    }
    if (opens) {
        take_open(stage, s, in);
    } else if (stage->rank == 0) {
        if (h->msg_type == K1_MSG_BACKWARD) {
            take_backward(stage, s, in);
        }
    } else if (h->msg_type == K1_MSG_FORWARD) {
        take_forward(stage, s, in);
    } else if (h->msg_type == K1_MSG_TRUNCATE) {
        k1_seq_truncate(s->seq, h->first_pos);
        s->tokens.n = s->tokens.n < h->first_pos ? s->tokens.n : h->first_pos;
        pass_on(stage, in);
    } else if (h->msg_type == K1_MSG_CANCEL) {
        s->open = false;
        pass_on(stage, in);
    }
    return true;
}
