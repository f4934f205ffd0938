/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verifier: checks that a plan delivers every element exactly once, from ranks that
 * have it. It shares no code with the makers of plans and trusts no index in the plan,
 * since tests give it plans that they have mutated. All checks sort and scan, so its cost
 * is near linear in the size of the plan and it can run on every new one.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"

#include "resharding/plan/regular/regular.h"
#include "resharding/plan/verify/tiles.h"

/* Checks that a route is a tree over ranks of the job, each named once. Parents come
 * first, so there are no cycles. */
static xm_status_t verify_route(const xm_plan_t *plan, int index, int *seen)
{
    const xm_route_t *route = &plan->builder.routes[index];

    for (int i = 0; i < route->count; ++i) {
        int rank = route->ranks[i];

        if (rank < 0 || rank >= plan->ranks || route->parents[i] < -1 || route->parents[i] >= i) {
            return xm_error_set(XM_ERR_CORRUPT, "route %d: entry %d is rank %d, fed by entry %d",
                                index, i, rank, route->parents[i]);
        }
        if (seen[rank] == index + 1) {
            return xm_error_set(XM_ERR_CORRUPT, "route %d passes rank %d twice", index, rank);
        }
        seen[rank] = index + 1;
    }
    return XM_OK;
}

static bool on_route(const xm_route_t *route, int rank)
{
    for (int i = 0; i < route->count; ++i) {
        if (route->ranks[i] == rank) {
            return true;
        }
    }
    return false;
}

static bool is_receiver(const xm_plan_t *plan, const xm_unit_task_t *task, int rank)
{
    return xm_layout_tile_of_rank(plan->tensors[task->tensor].dst, rank) == task->dst_tile;
}

/* By task, then by first element. */
static int compare_kept(const xm_kept_t *a, const xm_kept_t *b)
{
    XM_ORDER_BY(a->task, b->task);
    return xm_order(a->first, b->first);
}

/* Checks that what stays is in order and names ranges and routes that there are, and that nobody
 * could send what is given up. Who has it is checked with the deliveries. */
static xm_status_t verify_kept(const xm_plan_t *plan)
{
    for (int64_t k = 0; k < plan->kept_count; ++k) {
        const xm_kept_t *kept = &plan->kept[k];
        const xm_unit_task_t *task;
        int holders = 0;
        const int *ranks;

        if (kept->task < 0 || kept->task >= plan->task_count || kept->first < 0 ||
            kept->first >= kept->end || kept->end > plan->tasks[kept->task].elements ||
            kept->route < -1 || kept->route >= plan->builder.route_count ||
            (k > 0 && compare_kept(kept - 1, kept) > 0)) {
            return xm_error_set(XM_ERR_CORRUPT,
                                "what stays, number %" PRId64 ": elements %" PRId64 " … %" PRId64
                                " of task %" PRId64 " on route %d do not exist or stand wrong",
                                k, kept->first, kept->end, kept->task, kept->route);
        }
        task = &plan->tasks[kept->task];
        ranks = xm_layout_replicas(plan->tensors[task->tensor].src, task->src_tile, &holders);
        for (int r = 0; kept->route < 0 && r < holders; ++r) {
            if (ranks[r] < plan->ranks) {
                return xm_error_set(XM_ERR_CORRUPT,
                                    "elements %" PRId64 " … %" PRId64 " of task %" PRId64
                                    " are given up, but rank %d holds them",
                                    kept->first, kept->end, kept->task, ranks[r]);
            }
        }
    }
    return XM_OK;
}

/* Whether the sender of a transfer has its range in its destination tile before the run. What stays
 * is in order, so the search for the task is by halves. */
static bool has_kept(const xm_plan_t *plan, const xm_transfer_t *transfer)
{
    int64_t low = 0;

    XM_BISECT(int64_t, i, low, plan->kept_count, plan->kept[i].task < transfer->task);
    for (; low < plan->kept_count && plan->kept[low].task == transfer->task; ++low) {
        const xm_kept_t *kept = &plan->kept[low];

        if (kept->route >= 0 && kept->first <= transfer->first && kept->end >= transfer->end &&
            on_route(&plan->builder.routes[kept->route], transfer->sender)) {
            return true;
        }
    }
    return false;
}

/*
 * Checks that the sender of a transfer has its range by the time it must send it: it
 * holds the source tile, or an earlier transfer of the same task brings it all of the
 * range, or it has kept that.
 */
static xm_status_t verify_source(const xm_plan_t *plan, int64_t index,
                                 const xm_transfer_t *transfer, const xm_unit_task_t *task)
{
    xm_transfer_t parent;

    if (transfer->parent == XM_PARENT_KEPT && has_kept(plan, transfer)) {
        return XM_OK;
    }
    if (transfer->parent == XM_PARENT_SOURCE) {
        if (transfer->sender >= plan->ranks ||
            xm_layout_tile_of_rank(plan->tensors[task->tensor].src, transfer->sender) !=
                task->src_tile) {
            return xm_error_set(XM_ERR_CORRUPT,
                                "transfer %" PRId64 ": rank %d sends task %" PRId64
                                ", which it does not hold",
                                index, transfer->sender, transfer->task);
        }
        return XM_OK;
    }
    if (transfer->parent < 0 || transfer->parent >= index) {
        return xm_error_set(XM_ERR_CORRUPT, "transfer %" PRId64 " waits for transfer %" PRId64,
                            index, transfer->parent);
    }
    parent = xm_plan_transfer(plan, transfer->parent);
    if (parent.task != transfer->task || parent.first > transfer->first ||
        parent.end < transfer->end ||
        !on_route(&plan->builder.routes[parent.route], transfer->sender) ||
        !is_receiver(plan, task, transfer->sender) ||
        xm_transfer_is_copy(&parent, &plan->builder.routes[parent.route])) {
        return xm_error_set(XM_ERR_CORRUPT,
                            "transfer %" PRId64 ": rank %d passes on elements %" PRId64
                            " … %" PRId64 " of task %" PRId64 ", which transfer %" PRId64
                            " does not bring to it",
                            index, transfer->sender, transfer->first, transfer->end, transfer->task,
                            transfer->parent);
    }
    return XM_OK;
}

/* What transfers bring of one task and what stays of it, earlier elements first. */
typedef struct {
    int64_t task, first;
    int64_t end;
    int route; /* −1: no rank has it, and none gets it */
} entry_t;

static int compare_entries(const void *a, const void *b)
{
    const entry_t *x = a, *y = b;

    XM_ORDER_BY(x->task, y->task);
    XM_ORDER_BY(x->first, y->first);
    return xm_order(x->end, y->end);
}

/* What of a plan's deliveries has to be added up. */
typedef struct {
    unsigned char *whole; /* by task: 1 when a single transfer delivers all of it */
    entry_t *entries;     /* all other transfers and what stays, by task */
    size_t count, room;
    bool sorted;
} deliveries_t;

static xm_status_t add_entry(deliveries_t *deliveries, entry_t entry)
{
    XM_NEED_MEMORY(XM_ARRAY_ROOM(deliveries->entries, deliveries->room, deliveries->count),
                   "verifying %zu transfers", deliveries->count);
    deliveries->sorted =
        deliveries->sorted &&
        (deliveries->count == 0 ||
         compare_entries(&deliveries->entries[deliveries->count - 1], &entry) <= 0);
    deliveries->entries[deliveries->count++] = entry;
    return XM_OK;
}

/* A route whose ranks all need a destination tile of a layout or pass on what comes. */
typedef struct {
    const xm_layout_t *dst; /* NULL: nothing is known */
    int route, tile;
    int receivers;
} proved_t;

enum { PROVED_BITS = 14 };

typedef struct {
    const xm_plan_t *plan;
    int *seen;        /* by rank */
    int64_t *covered; /* by rank: see verify_deliveries_of() */
    proved_t *proved; /* by hash: what has been checked last */
    deliveries_t deliveries;
} verifier_t;

/* True when an entry of the route feeds others. */
static bool feeds(const xm_route_t *route, int entry)
{
    for (int i = entry + 1; i < route->count; ++i) {
        if (route->parents[i] == entry) {
            return true;
        }
    }
    return false;
}

/* The number of ranks of a route that need the task, where all others pass it on; else −1, and
 * *stranger is one that does neither. The tensors of a model ask this of few routes and layouts,
 * again and again, so what has been proved is remembered for a while. */
static int count_receivers(const verifier_t *verifier, int index, const xm_unit_task_t *task,
                           int *stranger)
{
    const xm_route_t *route = &verifier->plan->builder.routes[index];
    const xm_layout_t *dst = verifier->plan->tensors[task->tensor].dst;
    uint64_t hash = xm_hash_pair(index, task->dst_tile) + ((uintptr_t)dst >> 4);
    proved_t *proved = &verifier->proved[hash * UINT64_C(0x9e3779b97f4a7c15) >> (64 - PROVED_BITS)];
    int receivers = 0;

    if (proved->dst == dst && proved->route == index && proved->tile == task->dst_tile) {
        return proved->receivers;
    }
    for (int i = 0; i < route->count; ++i) {
        if (is_receiver(verifier->plan, task, route->ranks[i])) {
            ++receivers;
        } else if (!feeds(route, i)) {
            *stranger = route->ranks[i];
            return -1;
        }
    }
    *proved = (proved_t){dst, index, task->dst_tile, receivers};
    return receivers;
}

/* Notes what a transfer delivers. Most plans deliver most tasks with one transfer each, to all
 * receivers, as routes name each rank once: then nothing is left to add up. */
static xm_status_t note_delivery(verifier_t *verifier, const xm_transfer_t *transfer,
                                 const xm_unit_task_t *task, int reached)
{
    unsigned char *whole = &verifier->deliveries.whole[transfer->task];
    int receivers;

    (void)xm_layout_replicas(verifier->plan->tensors[task->tensor].dst, task->dst_tile, &receivers);
    if (*whole == 0 && transfer->first == 0 && transfer->end == task->elements &&
        reached == receivers) {
        *whole = 1;
        return XM_OK;
    }
    return add_entry(&verifier->deliveries,
                     (entry_t){transfer->task, transfer->first, transfer->end, transfer->route});
}

/* Checks one transfer: its indices, its range, and that every rank of its route needs the
 * task or passes it on along the route. Parents are earlier transfers, which have been checked
 * already. */
static xm_status_t verify_transfer(verifier_t *verifier, int64_t index)
{
    const xm_plan_t *plan = verifier->plan;
    const xm_transfer_t transfer = xm_plan_transfer(plan, index);
    const xm_route_t *route;
    xm_unit_task_t task;
    int receivers, stranger = -1;

    if (transfer.task < 0 || transfer.task >= plan->task_count || transfer.route < 0 ||
        transfer.route >= plan->builder.route_count) {
        return xm_error_set(XM_ERR_CORRUPT,
                            "transfer %" PRId64 " is of task %" PRId64
                            " along route %d, which do not exist",
                            index, transfer.task, transfer.route);
    }
    task = xm_plan_task(plan, transfer.task);
    route = &plan->builder.routes[transfer.route];
    if (transfer.first < 0 || transfer.first >= transfer.end || transfer.end > task.elements) {
        return xm_error_set(XM_ERR_CORRUPT,
                            "transfer %" PRId64 " moves elements %" PRId64 " … %" PRId64
                            " of task %" PRId64 ", which has %" PRId64,
                            index, transfer.first, transfer.end, transfer.task, task.elements);
    }
    receivers = count_receivers(verifier, transfer.route, &task, &stranger);
    if (receivers < 0) {
        return xm_error_set(XM_ERR_CORRUPT,
                            "transfer %" PRId64 " sends task %" PRId64
                            " to rank %d, which does not need it and passes it on to nobody",
                            index, transfer.task, stranger);
    }
    /* Where all ranks of the route need the task, a sender who does not is not among them. */
    if ((receivers < route->count || is_receiver(plan, &task, transfer.sender)) &&
        on_route(route, transfer.sender) && !xm_transfer_is_copy(&transfer, route)) {
        return xm_error_set(XM_ERR_CORRUPT,
                            "transfer %" PRId64 " comes back to its sender, rank %d", index,
                            transfer.sender);
    }
    XM_TRY(verify_source(plan, index, &transfer, &task));
    return note_delivery(verifier, &transfer, &task, receivers);
}

/* Moves on to where a receiver's elements end. It is one when `covered` is not negative. */
static xm_status_t cover(const entry_t *entry, int rank, int64_t *covered)
{
    int64_t next = covered[rank];

    if (next < 0) {
        return xm_error_set(XM_ERR_CORRUPT,
                            "rank %d keeps elements of task %" PRId64 ", which it does not need",
                            rank, entry->task);
    }
    if (next != entry->first) {
        return xm_error_set(
            XM_ERR_CORRUPT,
            "rank %d gets elements %" PRId64 " … %" PRId64 " of task %" PRId64 " %s", rank,
            next < entry->first ? next : entry->first, next < entry->first ? entry->first : next,
            entry->task, next < entry->first ? "from no transfer" : "twice");
    }
    covered[rank] = entry->end;
    return XM_OK;
}

/*
 * Checks that every living receiver of a task gets elements 0 … n, each once: taken by
 * first element, the ranges that reach a rank follow each other without gap or overlap.
 * `covered` says up to where, by rank; it is −1 for all before and after. `whole` says that
 * another transfer has brought all to all.
 */
static xm_status_t verify_deliveries_of(const xm_plan_t *plan, int64_t task, bool whole,
                                        const entry_t *entries, int64_t count, int64_t *covered)
{
    const xm_unit_task_t unit = xm_plan_task(plan, task);
    xm_status_t status = XM_OK;
    int receivers;
    const int *ranks =
        xm_layout_replicas(plan->tensors[unit.tensor].dst, unit.dst_tile, &receivers);

    for (int r = 0; r < receivers; ++r) {
        if (ranks[r] < plan->ranks) {
            covered[ranks[r]] = whole ? unit.elements : 0;
        }
    }
    for (int64_t e = 0; status == XM_OK && e < count; ++e) {
        const xm_route_t *route =
            entries[e].route >= 0 ? &plan->builder.routes[entries[e].route] : NULL;
        int reached = route != NULL ? route->count : receivers;

        for (int i = 0; status == XM_OK && i < reached; ++i) {
            int rank = route != NULL ? route->ranks[i] : ranks[i];

            if (route != NULL && !is_receiver(plan, &unit, rank)) {
                continue; /* it only passes on */
            }
            status = rank < plan->ranks ? cover(&entries[e], rank, covered) : XM_OK;
        }
    }
    for (int r = 0; r < receivers; ++r) {
        if (ranks[r] >= plan->ranks) {
            continue;
        }
        if (status == XM_OK && covered[ranks[r]] != unit.elements) {
            status = xm_error_set(XM_ERR_CORRUPT,
                                  "rank %d gets elements %" PRId64 " … %" PRId64 " of task %" PRId64
                                  " from no transfer",
                                  ranks[r], covered[ranks[r]], unit.elements, task);
        }
        covered[ranks[r]] = -1;
    }
    return status;
}

/* Checks the deliveries of the next task that is looked at; those of its transfers that had to be
 * added up begin at *at. */
static xm_status_t verify_next(const verifier_t *verifier, int64_t task, size_t *at)
{
    const deliveries_t *deliveries = &verifier->deliveries;
    size_t first = *at;

    while (*at < deliveries->count && deliveries->entries[*at].task == task) {
        ++*at;
    }
    return *at == first && deliveries->whole[task] != 0
               ? XM_OK
               : verify_deliveries_of(verifier->plan, task, deliveries->whole[task] != 0,
                                      *at > first ? deliveries->entries + first : NULL,
                                      (int64_t)(*at - first), verifier->covered);
}

/* Puts the entries of each task together in time linear in both, and sorts them by themselves. */
static xm_status_t sort_by_task(deliveries_t *deliveries, size_t tasks)
{
    size_t *end = calloc(tasks + 1, sizeof(*end));
    entry_t *sorted = malloc(deliveries->count * sizeof(*sorted));

    if (end == NULL || sorted == NULL) {
        free(sorted);
        free(end);
        return XM_NO_MEMORY("verifying %zu transfers", deliveries->count);
    }
    for (size_t i = 0; i < deliveries->count; ++i) {
        ++end[deliveries->entries[i].task + 1];
    }
    for (size_t t = 0; t < tasks; ++t) {
        end[t + 1] += end[t];
    }
    for (size_t i = 0; i < deliveries->count; ++i) {
        sorted[end[deliveries->entries[i].task]++] = deliveries->entries[i];
    }
    for (size_t t = 0, first = 0; t < tasks; first = end[t++]) {
        qsort(sorted + first, end[t] - first, sizeof(*sorted), compare_entries);
    }
    free(end);
    free(deliveries->entries);
    deliveries->entries = sorted;
    return XM_OK;
}

static xm_status_t sort_deliveries(deliveries_t *deliveries, int64_t tasks)
{
    if (deliveries->sorted) {
        return XM_OK;
    }
    if (deliveries->count > (size_t)tasks) {
        return sort_by_task(deliveries, (size_t)tasks);
    }
    qsort(deliveries->entries, deliveries->count, sizeof(entry_t), compare_entries);
    return XM_OK;
}

/* Goes through all transfers and then through all tasks. */
static xm_status_t verify_list(verifier_t *verifier)
{
    const xm_plan_t *plan = verifier->plan;
    size_t at = 0;
    XM_TRY(verify_kept(plan));

    for (int64_t i = 0; i < plan->builder.transfer_count; ++i) {
        XM_TRY(verify_transfer(verifier, i));
    }
    for (int64_t k = 0; k < plan->kept_count; ++k) {
        const xm_kept_t *kept = &plan->kept[k];

        XM_TRY(add_entry(&verifier->deliveries,
                         (entry_t){kept->task, kept->first, kept->end, kept->route}));
    }
    XM_TRY(sort_deliveries(&verifier->deliveries, plan->task_count));
    for (int64_t t = 0; t < plan->task_count; ++t) {
        XM_TRY(verify_next(verifier, t, &at));
    }
    return XM_OK;
}

/* Checks the transfers between the first two hosts of a regular plan, whose formula is known to be
 * right, and that all of their tasks are delivered. */
static xm_status_t verify_first_hosts(verifier_t *verifier)
{
    const xm_regular_t *regular = verifier->plan->regular;
    const xm_side_t *src = &regular->src, *dst = &regular->dst;
    int64_t blocks = (int64_t)regular->turns * regular->pieces, width = regular->devices;
    size_t at = 0;

    for (int64_t i = 0; i < blocks * width; ++i) {
        XM_TRY(verify_transfer(verifier, i / width * regular->hosts * width + i % width));
    }
    XM_TRY(sort_deliveries(&verifier->deliveries, verifier->plan->task_count));
    for (int r = 0; r < (dst->whole ? 1 : dst->devices); ++r) {
        for (int s = 0; s < (src->whole ? 1 : src->devices); ++s) {
            XM_TRY(verify_next(verifier, (int64_t)dst->tile[r] * regular->src_tiles + src->tile[s],
                               &at));
        }
    }
    return XM_OK;
}

/* Later checks rely on what earlier ones have established, so the first failure ends it. */
xm_status_t xm_plan_verify(const xm_plan_t *plan)
{
    XM_NEED_ARGUMENTS(plan);
    verifier_t verifier = {
        .plan = plan,
        .seen = calloc((size_t)plan->ranks + 1, sizeof(*verifier.seen)),
        .covered = malloc((size_t)(plan->ranks + 1) * sizeof(*verifier.covered)),
        .proved = calloc(1 << PROVED_BITS, sizeof(*verifier.proved)),
        .deliveries = {.whole = calloc((size_t)plan->task_count + 1, 1), .sorted = true}};
    xm_status_t status = XM_OK;

    if (verifier.seen == NULL || verifier.covered == NULL || verifier.proved == NULL ||
        verifier.deliveries.whole == NULL) {
        status = XM_NO_MEMORY("verifying a plan for %d ranks", plan->ranks);
    } else {
        memset(verifier.covered, -1, ((size_t)plan->ranks + 1) * sizeof(*verifier.covered));
    }
    XM_THEN(status, xm_verify_tasks(plan));
    for (int r = 0; status == XM_OK && r < plan->builder.route_count; ++r) {
        status = verify_route(plan, r, verifier.seen);
    }
    if (status == XM_OK) {
        status =
            plan->regular != NULL ? xm_verify_formula(plan, verifier.seen) : verify_list(&verifier);
    }
    if (status == XM_OK && plan->regular != NULL) {
        status = verify_first_hosts(&verifier);
    }
    free(verifier.deliveries.entries);
    free(verifier.deliveries.whole);
    free(verifier.proved);
    free(verifier.covered);
    free(verifier.seen);
    return status;
}
