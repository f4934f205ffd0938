/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When tensors are in memory, and which of them can be given up and computed again. The order of
 * operators is fixed, so a tensor's live range is an interval, and rematerialisation cuts a gap
 * into it: from its last use in the forward part to just before its segment's backward part. One
 * gap per tensor at one known time keeps memory a sum over intervals, which is what the network's
 * solver understands; free choices of when to compute again would make the schedule itself a
 * variable.
 *
 * Segments follow the idea of Chen et al. ("Training deep nets with sublinear memory cost", 2016):
 * what is computed again begins from what crosses a cut.
 */

#include "planner/intra_op/live_range.h"

#include "planner/intra_op/fusion.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What finding the live ranges needs besides its result. An epoch is the moment at which the
 * backward part first reads from a segment; what is computed again must be there by then. */
typedef struct maker {
    const ap_shard_problem_t *p;
    const ap_shard_symmetric_t *alike;
    ap_shard_live_ranges_t *live_ranges;
    xm_arena_t *arena;
    int *first;                  /* per tensor: its users in `user` */
    int *user;                   /* operators */
    bool *barred;                /* per class: may not be computed again */
    bool *absent;                /* per tensor: has no buffer, see planner/intra_op/fusion.h */
    int *epoch;                  /* per segment: when its backward part begins */
    int *loop_first, *loop_last; /* per operator: see find_loops() */
    int ops, segments;
} maker_t;

/* Lists the operators that read each tensor, by a counting sort over the edges. An edge that only
 * passes storage on is no reading. */
static xm_status_t list_users(maker_t *m)
{
    const ap_graph_t *graph = m->p->params.graph;
    int tensors = ap_graph_tensors(graph);

    m->first = xm_arena_get(m->arena, (size_t)tensors + 2, sizeof(int));
    m->user = xm_arena_take(m->arena, (size_t)m->p->wires * sizeof(int));
    XM_NEED_MEMORY(!m->arena->failed, "the live ranges of tensors");
    for (int w = 0; w < m->p->wires; ++w) {
        m->first[m->p->wire[w].tensor + 2] += !m->p->wire[w].alias;
    }
    for (int t = 0; t < tensors; ++t) {
        m->first[t + 2] += m->first[t + 1];
    }
    for (int w = 0; w < m->p->wires; ++w) {
        const ap_shard_wire_t *wire = &m->p->wire[w];

        if (!wire->alias) {
            m->user[m->first[wire->tensor + 1]++] = m->p->node[wire->to].op;
        }
    }
    return XM_OK;
}

/* Finds, after each operator, the bytes that later operators of the forward part still read, as
 * prefix sums of changes. */
static xm_status_t find_crossing(const maker_t *m, double **crossing)
{
    const ap_graph_t *graph = m->p->params.graph;
    double sum = 0, *change = xm_arena_get(m->arena, (size_t)m->ops + 2, sizeof(*change));

    XM_NEED_MEMORY(change, "the live ranges of tensors");
    for (int t = 0; t < ap_graph_tensors(graph); ++t) {
        int producer = ap_graph_tensor(graph, t)->producer, last = producer;

        for (int u = m->first[t]; u < m->first[t + 1] && producer >= 0; ++u) {
            last = m->user[u] < m->live_ranges->turn && m->user[u] > last ? m->user[u] : last;
        }
        if (last > producer) {
            change[producer] += ap_graph_tensor_bytes(graph, t);
            change[last] -= ap_graph_tensor_bytes(graph, t);
        }
    }
    for (int o = 0; o < m->ops; ++o) {
        sum += change[o];
        change[o] = sum;
    }
    *crossing = change;
    return XM_OK;
}

/* Cuts the forward part into segments of about the length of a layer, or of the square root of the
 * whole where nothing repeats, each cut where the fewest bytes cross. With about as many segments
 * as operators in one, what is kept between segments and what is live within one are balanced. */
static xm_status_t cut_segments(maker_t *m)
{
    int turn = m->live_ranges->turn, wanted = m->alike->period, start = 0;
    double *crossing = NULL;

    XM_TRY(find_crossing(m, &crossing));
    wanted = wanted > 0 ? wanted : (int)ceil(sqrt(turn));
    while (start < turn) {
        int cut = start + wanted - 1;

        /* Cuts are looked for from half to one and a half of the wanted length; of equal ones the
         * nearest to the wanted length wins. A last piece that would be too short goes to the
         * segment before it. */
        for (int o = start + wanted / 2; o < start + wanted + wanted / 2 && o < turn; ++o) {
            bool nearer = abs(o - start - wanted + 1) < abs(cut - start - wanted + 1);

            if (cut >= turn || crossing[o] < crossing[cut] ||
                (nearer && crossing[o] <= crossing[cut])) {
                cut = o;
            }
        }
        cut = cut < turn && turn - cut - 1 >= wanted / 2 ? cut : turn - 1;
        for (int o = start; o <= cut; ++o) {
            m->live_ranges->segment[o] = m->segments;
        }
        ++m->segments;
        start = cut + 1;
    }
    return XM_OK;
}

/* Finds when the backward part first reads what a segment makes. A segment that nothing there reads
 * has an epoch behind the end, and is never computed again. */
static xm_status_t find_epochs(maker_t *m)
{
    const ap_graph_t *graph = m->p->params.graph;

    m->epoch = xm_arena_take(m->arena, ((size_t)m->segments + 1) * sizeof(int));
    XM_NEED_MEMORY(m->epoch, "the live ranges of tensors");
    for (int s = 0; s < m->segments; ++s) {
        m->epoch[s] = m->ops;
    }
    for (int o = 0; o < m->live_ranges->turn; ++o) {
        const ap_op_t *op = ap_graph_op(graph, o);
        int *epoch = &m->epoch[m->live_ranges->segment[o]];

        for (int r = 0; r < op->result_count; ++r) {
            for (int u = m->first[op->results[r]]; u < m->first[op->results[r] + 1]; ++u) {
                if (m->user[u] >= m->live_ranges->turn && m->user[u] < *epoch) {
                    *epoch = m->user[u];
                }
            }
        }
    }
    return XM_OK;
}

/* Finds, per operator, the first and the last one of the loop that it stands in: of its neighbours
 * that run several times, too. Outside of loops, both are the operator itself. */
static xm_status_t find_loops(maker_t *m)
{
    const ap_graph_t *graph = m->p->params.graph;

    m->loop_first = xm_arena_take(m->arena, (size_t)m->ops * sizeof(int));
    m->loop_last = xm_arena_take(m->arena, (size_t)m->ops * sizeof(int));
    XM_NEED_MEMORY(!m->arena->failed, "the live ranges of tensors");
    for (int o = 0; o < m->ops; ++o) {
        bool inside =
            o > 0 && ap_graph_op(graph, o)->repeat > 1 && ap_graph_op(graph, o - 1)->repeat > 1;

        m->loop_first[o] = inside ? m->loop_first[o - 1] : o;
    }
    for (int o = m->ops - 1; o >= 0; --o) {
        bool inside = o + 1 < m->ops && m->loop_first[o + 1] == m->loop_first[o];

        m->loop_last[o] = inside ? m->loop_last[o + 1] : o;
    }
    return XM_OK;
}

/* When a reader is through with a tensor: behind the loop that it stands in, unless the tensor is
 * made in every round of it. */
static int read_until(const maker_t *m, int user, int producer)
{
    return m->loop_last[producer] == m->loop_last[user] ? user : m->loop_last[user];
}

/* Whether what an operator makes lies where a tensor is: what a loop carries on, or a stack or a
 * table of which some rows are written. It needs no second buffer if nobody else reads the
 * tensor. */
static bool takes_over(const ap_op_t *op, int tensor)
{
    return ap_op_passes_on(op) ||
           (op->operands[0] == tensor && op->touched[op->operand_count] > AP_TOUCHES_ALL);
}

/* A reader whose result has no buffer reads when that would be read. Returns its last reading in
 * the part that it stands in; what the result is needed for behind a gap counts for the operand. */
static int read_through(const maker_t *m, int result, int user, ap_shard_live_range_t *live_range,
                        int *last, bool *wanted_again)
{
    const ap_shard_live_range_t *through = &m->live_ranges->of[result];

    live_range->needed = live_range->needed || through->needed;
    if (through->end > through->pause) {
        *last = through->end - 1 > *last ? through->end - 1 : *last;
        *wanted_again = true;
    }
    return through->pause - 1 > user ? through->pause - 1 : user;
}

/* The live range of what an operator makes, when it is known which of its readers may be computed
 * again. *wanted_again tells whether it is of any use to compute it again: the backward part reads
 * it, or a reader of the same segment needs it when it is computed again. */
static ap_shard_live_range_t live_range_of(const maker_t *m, int op, int tensor, bool *wanted_again)
{
    const ap_graph_t *graph = m->p->params.graph;
    ap_shard_live_range_t live_range = {.begin = op, .pause = op + 1};
    bool forward = op < m->live_ranges->turn;
    int last = -1;

    *wanted_again = false;
    for (int u = m->first[tensor]; u < m->first[tensor + 1]; ++u) {
        int reader = m->user[u], user = read_until(m, reader, op);

        if (m->absent[ap_graph_op(graph, reader)->results[0]]) {
            user = read_through(m, ap_graph_op(graph, reader)->results[0], user, &live_range, &last,
                                wanted_again);
        }
        /* Only readers in the backward part make a gap; all others need the tensor before it. */
        if (forward && reader >= m->live_ranges->turn) {
            live_range.needed = true;
            last = user > last ? user : last;
        } else {
            int end = user + !takes_over(ap_graph_op(graph, user), tensor);

            live_range.pause = end > live_range.pause ? end : live_range.pause;
        }
        /* A reader that may be computed again reads this tensor again, when its segment is. */
        if (m->live_ranges->again[reader]) {
            int epoch = m->epoch[m->live_ranges->segment[reader]];

            last = epoch > last ? epoch : last;
            *wanted_again =
                *wanted_again || m->live_ranges->segment[reader] == m->live_ranges->segment[op];
        }
    }
    *wanted_again = *wanted_again || live_range.needed;
    live_range.end = last + 1 > live_range.pause ? last + 1 : live_range.pause;
    /* Nobody reads it: it is a result of the graph. */
    if (m->first[tensor] == m->first[tensor + 1] && ap_graph_tensor(graph, tensor)->alias_of < 0) {
        live_range.end = live_range.pause = m->ops; /* a result of the graph */
    }
    live_range.resume = live_range.end;
    return live_range;
}

/* One pass from the last operator to the first, since the range of a tensor depends on which of its
 * readers may be computed again. True when no operator lost its chance. Operators of one class
 * share one choice, so if one cannot be computed again, none of its class may, and the ranges must
 * be found once more. */
static bool find_live_ranges(maker_t *m)
{
    const ap_graph_t *graph = m->p->params.graph;
    bool settled = true;

    for (int o = m->ops - 1; o >= 0; --o) {
        const ap_op_t *op = ap_graph_op(graph, o);
        bool again = m->live_ranges->again[o], wanted = false;

        for (int r = 0; r < op->result_count; ++r) {
            m->live_ranges->of[op->results[r]] = live_range_of(m, o, op->results[r], &wanted);
        }
        if (again) {
            ap_shard_live_range_t *live_range = &m->live_ranges->of[op->results[0]];
            /* A gap must have some length and end before the tensor's last use; otherwise giving up
             * buys nothing. */
            int epoch = m->epoch[m->live_ranges->segment[o]];

            m->live_ranges->again[o] =
                wanted && epoch > live_range->pause && epoch < live_range->end;
            /* Nothing but recomputed readers would need it, so in such a plan it may be dropped. */
            m->live_ranges->spare[o] = !wanted && live_range->end > live_range->pause;
            live_range->resume = m->live_ranges->again[o] ? epoch : live_range->end;
        }
    }
    for (int o = 0; o < m->live_ranges->turn; ++o) {
        int class = m->alike->class_of[m->p->op_node[o]];

        m->barred[class] = m->barred[class] || !m->live_ranges->again[o];
    }
    for (int o = 0; o < m->live_ranges->turn; ++o) {
        if (m->live_ranges->again[o] && m->barred[m->alike->class_of[m->p->op_node[o]]]) {
            m->live_ranges->again[o] = false;
            settled = false;
        }
    }
    return settled;
}

/* Operators of one class can all be dropped or none of them. What is neither computed again nor
 * dropped is live in one stretch, so its gap is closed. */
static void settle_spare(maker_t *m)
{
    const ap_graph_t *graph = m->p->params.graph;

    memset(m->barred, 0, (size_t)m->alike->classes * sizeof(*m->barred));
    for (int o = 0; o < m->live_ranges->turn; ++o) {
        int class = m->alike->class_of[m->p->op_node[o]];

        m->barred[class] = m->barred[class] || !m->live_ranges->spare[o];
    }
    for (int o = 0; o < m->ops; ++o) {
        const ap_op_t *op = ap_graph_op(graph, o);

        m->live_ranges->spare[o] = o < m->live_ranges->turn && m->live_ranges->spare[o] &&
                                   !m->live_ranges->again[o] &&
                                   !m->barred[m->alike->class_of[m->p->op_node[o]]];
        for (int r = 0;
             r < op->result_count && !m->live_ranges->again[o] && !m->live_ranges->spare[o]; ++r) {
            m->live_ranges->of[op->results[r]].pause = m->live_ranges->of[op->results[r]].end;
        }
    }
}

/* Marks the operators that could be worth computing again: one result, of its own storage, and
 * enough bytes in all nodes of the class together. Views pass storage on and cost nothing
 * anyway. */
static xm_status_t find_candidates(maker_t *m, double least_bytes)
{
    const ap_graph_t *graph = m->p->params.graph;
    double *bytes = xm_arena_get(m->arena, (size_t)m->alike->classes, sizeof(*bytes));

    XM_NEED_MEMORY(bytes, "the live ranges of tensors");
    for (int o = 0; o < m->ops; ++o) {
        bytes[m->alike->class_of[m->p->op_node[o]]] +=
            ap_graph_tensor_bytes(graph, ap_graph_op(graph, o)->results[0]);
    }
    for (int o = 0; o < m->live_ranges->turn; ++o) {
        const ap_op_t *op = ap_graph_op(graph, o);

        m->live_ranges->again[o] = op->result_count == 1 && !ap_op_passes_on(op) &&
                                   !m->absent[op->results[0]] &&
                                   ap_graph_tensor(graph, op->results[0])->alias_of < 0 &&
                                   bytes[m->alike->class_of[m->p->op_node[o]]] >= least_bytes;
    }
    return XM_OK;
}

/* Stretches a range over all uses of a tensor. What only passes its storage on takes it over. */
static void cover_uses(const maker_t *m, int tensor, ap_shard_live_range_t *live_range)
{
    for (int u = m->first[tensor]; u < m->first[tensor + 1]; ++u) {
        int user = m->user[u];
        int end = m->loop_last[user] + 1, begin = m->loop_first[user];
        int made = ap_graph_op(m->p->params.graph, user)->results[0];

        if (end == user + 1) {
            end -= takes_over(ap_graph_op(m->p->params.graph, user), tensor);
        }
        if (m->absent[made]) {
            end = m->live_ranges->of[made].end > end ? m->live_ranges->of[made].end : end;
        }
        live_range->begin = begin < live_range->begin ? begin : live_range->begin;
        live_range->end = end > live_range->end ? end : live_range->end;
    }
}

/* What is written into a loop's state and handed on as the state of the next round is nothing
 * beside it. */
static void find_written(const maker_t *m, int state)
{
    const ap_graph_t *graph = m->p->params.graph;

    for (int u = m->first[state]; u < m->first[state + 1]; ++u) {
        const ap_op_t *op = ap_graph_op(graph, m->user[u]);
        int made = op->results[0];
        bool handed_on = takes_over(op, state) && !m->live_ranges->again[m->user[u]];

        for (int v = m->first[made]; v < m->first[made + 1]; ++v) {
            handed_on = handed_on && ap_op_passes_on(ap_graph_op(graph, m->user[v]));
        }
        if (handed_on && m->first[made] < m->first[made + 1]) {
            m->live_ranges->of[made] = (ap_shard_live_range_t){0};
        }
    }
}

/* What starts a loop without data is an input of the graph, and replaced there; nobody holds it
 * before the loop, and behind it others have what the loop made. */
static void find_started(const maker_t *m)
{
    const ap_graph_t *graph = m->p->params.graph;

    for (int t = 0; t < ap_graph_tensors(graph); ++t) {
        int start = ap_graph_tensor(graph, t)->alias_of;
        ap_shard_live_range_t live_range = {.begin = m->ops};

        if (start < 0 || ap_graph_tensor(graph, start)->producer >= 0 ||
            ap_graph_tensor(graph, start)->kind != AP_TENSOR_INPUT ||
            m->first[t] == m->first[t + 1]) {
            continue;
        }
        cover_uses(m, start, &live_range);
        cover_uses(m, t, &live_range);
        live_range.pause = live_range.resume = live_range.end;
        m->live_ranges->of[start] = live_range;
        find_written(m, start);
    }
}

/* Inputs, parameters, and what the gradients of several micro-batches are summed into are live all
 * the time; what starts a loop without data is no such input. */
static void find_lasting(maker_t *m)
{
    const ap_graph_t *graph = m->p->params.graph;

    for (int t = 0; t < ap_graph_tensors(graph); ++t) {
        const ap_tensor_t *tensor = ap_graph_tensor(graph, t);
        bool sum = m->p->params.micro_batches > 1 && tensor->gradient_of >= 0 &&
                   ap_graph_tensor(graph, tensor->gradient_of)->kind == AP_TENSOR_PARAMETER;

        if (tensor->producer < 0 || sum) {
            m->live_ranges->of[t] =
                (ap_shard_live_range_t){.end = m->ops, .pause = m->ops, .resume = m->ops};
        }
    }
}

static ap_shard_readers_t readers_of(const maker_t *m)
{
    return (ap_shard_readers_t){m->p->params.graph, m->first, m->user, m->loop_first};
}

static xm_status_t find_absent(maker_t *m)
{
    const ap_shard_readers_t readers = readers_of(m);

    m->absent = xm_arena_get(m->arena, (size_t)ap_graph_tensors(m->p->params.graph), sizeof(bool));
    XM_NEED_MEMORY(m->absent, "the live ranges of tensors");
    ap_shard_find_absent(&readers, m->absent);
    return XM_OK;
}

/* Whether the buffer of a tensor is free behind the operator at whose time it is last read. */
typedef struct reading {
    const maker_t *m;
    int op;
} reading_t;

static bool is_free(const void *arg, int tensor)
{
    const reading_t *reading = arg;
    const ap_shard_live_range_t *live_range = &reading->m->live_ranges->of[tensor];

    return ap_graph_tensor(reading->m->p->params.graph, tensor)->producer >= 0 &&
           live_range->end == reading->op + 1 && live_range->begin < reading->op &&
           live_range->pause == live_range->end;
}

/* What has no buffer lives never, and what is written over ends when that is. */
static void share_buffers(const maker_t *m)
{
    const ap_graph_t *graph = m->p->params.graph;
    const ap_shard_readers_t readers = readers_of(m);

    for (int t = 0; t < ap_graph_tensors(graph); ++t) {
        if (m->absent[t]) {
            m->live_ranges->of[t] = (ap_shard_live_range_t){0};
        }
    }
    for (int o = 0; o < m->ops; ++o) {
        reading_t reading = {m, o};
        int tensor = m->absent[ap_graph_op(graph, o)->results[0]]
                         ? -1
                         : ap_shard_overwrites(&readers, m->absent, o, is_free, &reading);

        if (tensor >= 0) {
            ap_shard_live_range_t *live_range = &m->live_ranges->of[tensor];

            live_range->end = live_range->pause = live_range->resume = o;
        }
    }
}

/* The forward part ends where the first backward operator comes. Each pass of find_live_ranges()
 * that is not the last takes the chance from at least one class, so the loop ends. */
xm_status_t ap_shard_live_ranges_create(const ap_shard_problem_t *problem,
                                        const ap_shard_symmetric_t *alike, double least_bytes,
                                        xm_arena_t *arena, ap_shard_live_ranges_t *live_ranges)
{
    const ap_graph_t *graph = problem->params.graph;
    maker_t m = {.p = problem,
                 .alike = alike,
                 .live_ranges = live_ranges,
                 .arena = arena,
                 .ops = ap_graph_ops(graph)};
    xm_status_t status;

    live_ranges->of =
        xm_arena_get(arena, (size_t)ap_graph_tensors(graph), sizeof(*live_ranges->of));
    live_ranges->again = xm_arena_get(arena, (size_t)m.ops, sizeof(bool));
    live_ranges->spare = xm_arena_get(arena, (size_t)m.ops, sizeof(bool));
    live_ranges->segment = xm_arena_get(arena, (size_t)m.ops, sizeof(int));
    m.barred = xm_arena_get(arena, (size_t)alike->classes, sizeof(bool));
    XM_TRY(arena->failed ? XM_NO_MEMORY("the live ranges of tensors") : list_users(&m));
    for (live_ranges->turn = 0; live_ranges->turn < m.ops; ++live_ranges->turn) {
        if (ap_graph_op(graph, live_ranges->turn)->phase == AP_PHASE_BACKWARD) {
            break;
        }
    }
    status = find_loops(&m);
    XM_THEN(status, find_absent(&m));
    XM_THEN(status, cut_segments(&m));
    XM_THEN(status, find_epochs(&m));
    XM_THEN(status, find_candidates(&m, least_bytes));
    while (status == XM_OK && !find_live_ranges(&m)) {
    }
    if (status == XM_OK) {
        settle_spare(&m);
        find_lasting(&m);
        find_started(&m);
        share_buffers(&m);
    }
    return status;
}
