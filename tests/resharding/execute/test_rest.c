/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks die in the middle of random runs, and in the middle of the rest of those; the others plan
 * what is missing and run it. The test keeps a book of its own, element by element, of who has
 * what: it reads the records by itself, holds them against the buffers, and expects of the rest's
 * plan that each missing element that somebody has comes once and no other comes at all.
 */
#include <stdio.h>

#include "resharding/plan/plan_private.h"
#include "tests/resharding/execute/sim_job.h"
#include "xm_test.h"

enum { CASES = 100, FAILURES = 3, TEXT = 512 };

/* By rank, tensor and element of the rank's destination tile. */
typedef struct {
    bool *has[SIM_MAX_RANKS][SIM_MAX_TENSORS];
} book_t;

static int64_t tile_box(const xm_layout_t *layout, int rank, xm_box_t *box)
{
    int tile = xm_layout_tile_of_rank(layout, rank);

    if (tile < 0) {
        return 0;
    }
    xm_layout_tile_box(layout, tile, box);
    return xm_box_volume(box);
}

static void book_open(const xm_plan_t *plan, book_t *book)
{
    xm_box_t box;

    memset(book, 0, sizeof(*book));
    for (int r = 0; r < xm_plan_ranks(plan); ++r) {
        for (int t = 0; t < xm_plan_tensors(plan); ++t) {
            int64_t elements = tile_box(xm_plan_tensor_dst(plan, t), r, &box);

            book->has[r][t] = calloc((size_t)elements + 1, sizeof(bool));
        }
    }
}

static void book_close(book_t *book)
{
    for (int r = 0; r < SIM_MAX_RANKS; ++r) {
        for (int t = 0; t < SIM_MAX_TENSORS; ++t) {
            free(book->has[r][t]);
        }
    }
}

/* Coordinates of an element of a box, row-major. */
static void locate(const xm_box_t *box, int64_t element, int64_t *at)
{
    for (int d = box->dims - 1; d >= 0; --d) {
        int64_t extent = box->hi[d] - box->lo[d];

        at[d] = box->lo[d] + element % extent;
        element /= extent;
    }
}

/* The number of the element at some coordinates; −1: it is not in the box. */
static int64_t number_in(const xm_box_t *box, const int64_t *at)
{
    int64_t number = 0;

    for (int d = 0; d < box->dims; ++d) {
        if (at[d] < box->lo[d] || at[d] >= box->hi[d]) {
            return -1;
        }
        number = number * (box->hi[d] - box->lo[d]) + at[d] - box->lo[d];
    }
    return number;
}

/* Enters elements [first, end) of a task at a rank, which may not have any of them. */
static void enter(const xm_plan_t *plan, book_t *book, int rank, int64_t task, int64_t first,
                  int64_t end, const char *text)
{
    int tensor = plan_task_at(plan, task)->tensor;
    int64_t at[XM_MAX_DIMS];
    xm_box_t box, tile;

    xm_plan_task_box(plan, task, &box);
    (void)tile_box(xm_plan_tensor_dst(plan, tensor), rank, &tile);
    for (int64_t e = first; e < end; ++e) {
        bool *has;

        locate(&box, e, at);
        if (number_in(&tile, at) < 0) {
            ck_abort_msg("rank %d does not need task %lld: %s", rank, (long long)task, text);
        }
        has = &book->has[rank][tensor][number_in(&tile, at)];
        if (*has) {
            ck_abort_msg("rank %d gets element %lld of task %lld twice: %s", rank, (long long)e,
                         (long long)task, text);
        }
        *has = true;
    }
}

static int64_t read_number(const unsigned char *bytes)
{
    uint64_t value = 0;

    for (int i = 7; i >= 0; --i) {
        value = value << 8 | bytes[i];
    }
    return (int64_t)value;
}

/* What a record says of one transfer: 45 bytes of head and length, then triples. */
static int64_t recorded(const unsigned char *record, size_t length, int64_t transfer, int64_t whole)
{
    for (size_t at = 53; at + 24 <= length; at += 24) {
        int64_t first = read_number(record + at), end = read_number(record + at + 8);

        if (transfer >= first && transfer < end) {
            return whole;
        }
        if (transfer == end) {
            return read_number(record + at + 16);
        }
    }
    return 0;
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

/* Enters what a record says. */
static void enter_record(const xm_plan_t *plan, book_t *book, int rank,
                         const xm_delivered_t *record, const char *text)
{
    for (int64_t t = 0; t < plan_transfer_count(plan); ++t) {
        const xm_transfer_t *transfer = plan_transfer_at(plan, t);

        const xm_unit_task_t *task = plan_task_at(plan, transfer->task);

        /* Who only passes it on does not keep it. */
        if (on_route(xm_plan_route(plan, transfer->route), rank) &&
            xm_layout_tile_of_rank(xm_plan_tensor_dst(plan, task->tensor), rank) ==
                task->dst_tile) {
            int64_t count =
                recorded(record->bytes, record->length, t, transfer->end - transfer->first);

            enter(plan, book, rank, transfer->task, transfer->first, transfer->first + count, text);
        }
    }
}

/* Holds a rank's destinations against the book: what is there is right. */
static void check_buffers(const sim_job_t *job, const book_t *book, int rank, const char *text)
{
    for (int t = 0; t < job->tensors; ++t) {
        const xm_layout_t *layout = xm_plan_tensor_dst(job->plan, t);
        size_t size = (size_t)xm_plan_tensor_element_size(job->plan, t);
        const char *found = job->buffers[rank][t].dst;
        size_t bytes = job->buffers[rank][t].dst_bytes;
        char *expected = malloc(bytes + 1);

        pattern_fill(layout, rank, (int64_t)size, job->seed * SIM_MAX_TENSORS + (uint64_t)t,
                     expected);
        for (size_t e = 0; e < bytes / size; ++e) {
            if (book->has[rank][t][e] && memcmp(found + e * size, expected + e * size, size) != 0) {
                ck_abort_msg("rank %d, tensor %d: element %zu is wrong: %s", rank, t, e, text);
            }
        }
        free(expected);
    }
}

/* ---- one failure -------------------------------------------------------------------------------
 */

typedef struct {
    int lost[SIM_MAX_RANKS], lost_count;
    int old_rank[SIM_MAX_RANKS], living; /* by new rank */
    xm_delivered_t records[SIM_MAX_RANKS];
} failure_t;

static void progress(sim_job_t *job, xm_status_t *results, bool step)
{
    for (int r = 0; r < xm_plan_living(job->plan); ++r) {
        if (results[r] == XM_IN_PROGRESS) {
            (void)xm_transport_progress(job->transport[r]);
            results[r] = xm_executor_advance(job->executor[r]);
        }
    }
    if (step) {
        (void)xm_sim_fabric_step(job->fabric);
    }
}

/* Posts a run, kills one or two ranks, or a host, after some steps, and ends it on all others. */
static void break_run(sim_job_t *job, random_t *random, failure_t *failure)
{
    int living = xm_plan_living(job->plan), victim = random_int(random, 0, living - 1);
    int host = xm_network_host_of(xm_plan_network(job->plan), victim),
        how = random_int(random, 0, 2);
    int other = random_int(random, 0, living - 1);
    xm_status_t results[SIM_MAX_RANKS];

    memset(failure, 0, sizeof(*failure));
    for (int r = 0; r < living; ++r) {
        bool same = xm_network_host_of(xm_plan_network(job->plan), r) == host;

        if (r == victim || (how == 1 && r == other) || (how == 2 && same)) {
            failure->lost[failure->lost_count++] = r;
        } else {
            failure->old_rank[failure->living++] = r;
        }
        ck_assert_xm_ok(xm_executor_post(job->executor[r]));
        results[r] = XM_IN_PROGRESS;
    }
    for (int left = random_int(random, 0, random_int(random, 1, 24)); left > 0; --left) {
        progress(job, results, true);
    }
    for (int i = 0; i < failure->lost_count; ++i) {
        xm_sim_fabric_kill(job->fabric, failure->lost[i]);
        xm_transport_fence(job->transport[failure->lost[i]]);
        results[failure->lost[i]] = XM_ERR_PEER_DIED;
    }
    for (int left = random_int(random, 0, 4); left > 0; --left) {
        progress(job, results, true);
    }
    for (int i = 0; i < failure->living; ++i) {
        void *bytes = NULL;

        xm_transport_fence(job->transport[failure->old_rank[i]]);
        progress(job, results, false);
        ck_assert_xm_ok(xm_executor_delivered(job->executor[failure->old_rank[i]], &bytes,
                                              &failure->records[i].length));
        failure->records[i].bytes = bytes;
    }
}

/* Whether a living rank has the element at some coordinates. Ranks are those of the old plan. */
static bool somebody_has(const xm_plan_t *plan, const book_t *book, const failure_t *failure,
                         int tensor, const int64_t *at)
{
    xm_box_t box;

    for (int i = 0; i < failure->living; ++i) {
        int rank = failure->old_rank[i];

        if (rank >= xm_plan_ranks(plan)) {
            continue;
        }
        if (tile_box(xm_plan_tensor_src(plan, tensor), rank, &box) > 0 &&
            number_in(&box, at) >= 0) {
            return true;
        }
        if (tile_box(xm_plan_tensor_dst(plan, tensor), rank, &box) > 0 &&
            number_in(&box, at) >= 0 && book->has[rank][tensor][number_in(&box, at)]) {
            return true;
        }
    }
    return false;
}

/* What a plan for the rest should be, in elements and in bytes. */
typedef struct {
    book_t kept, missing; /* by new rank; missing ones that somebody has */
    uint64_t kept_bytes, missing_bytes, gone_bytes;
} expected_t;

static void expect_rest(const xm_plan_t *plan, const book_t *book, const failure_t *failure,
                        expected_t *expected)
{
    memset(expected, 0, sizeof(*expected));
    for (int i = 0; i < failure->living && failure->old_rank[i] < xm_plan_ranks(plan); ++i) {
        int rank = failure->old_rank[i];

        for (int t = 0; t < xm_plan_tensors(plan); ++t) {
            uint64_t size = (uint64_t)xm_plan_tensor_element_size(plan, t);
            xm_box_t box;
            int64_t at[XM_MAX_DIMS];
            int64_t elements = tile_box(xm_plan_tensor_dst(plan, t), rank, &box);

            expected->kept.has[i][t] = calloc((size_t)elements + 1, sizeof(bool));
            expected->missing.has[i][t] = calloc((size_t)elements + 1, sizeof(bool));
            for (int64_t e = 0; e < elements; ++e) {
                locate(&box, e, at);
                if (book->has[rank][t][e]) {
                    expected->kept.has[i][t][e] = true;
                    expected->kept_bytes += size;
                } else if (somebody_has(plan, book, failure, t, at)) {
                    expected->missing.has[i][t][e] = true;
                    expected->missing_bytes += size;
                } else {
                    expected->gone_bytes += size;
                }
            }
        }
    }
}

/* Every hop brings missing elements, each once, and in the end none is missing. */
static void check_plan(const xm_plan_t *rest, const expected_t *expected, const char *text)
{
    xm_plan_info_t info = XM_PLAN_INFO_INIT;
    uint64_t moved = 0;
    book_t brought;
    xm_box_t box;

    ck_assert_xm_ok(xm_plan_verify(rest));
    book_open(rest, &brought);
    for (int64_t i = 0; i < plan_transfer_count(rest); ++i) {
        const xm_transfer_t *transfer = plan_transfer_at(rest, i);
        const xm_route_t *route = xm_plan_route(rest, transfer->route);

        moved += xm_plan_transfer_bytes(rest, i) * (uint64_t)route->count;
        for (int h = 0; h < route->count; ++h) {
            enter(rest, &brought, route->ranks[h], transfer->task, transfer->first, transfer->end,
                  text);
        }
    }
    for (int r = 0; r < xm_plan_ranks(rest); ++r) {
        for (int t = 0; t < xm_plan_tensors(rest); ++t) {
            int64_t elements = tile_box(xm_plan_tensor_dst(rest, t), r, &box);

            ck_assert_msg(memcmp(brought.has[r][t], expected->missing.has[r][t],
                                 (size_t)elements * sizeof(bool)) == 0,
                          "rank %d does not get of tensor %d what it misses: %s", r, t, text);
        }
    }
    book_close(&brought);
    ck_assert_xm_ok(xm_plan_get_info(rest, &info));
    ck_assert_uint_eq(moved, expected->missing_bytes);
    ck_assert_uint_eq(info.kept_bytes, expected->kept_bytes);
    ck_assert_uint_eq(info.gone_bytes, expected->gone_bytes);
}

/* The bytes of gaps, as the callback tells them. */
typedef struct {
    const xm_plan_t *plan;
    const failure_t *failure;
    uint64_t bytes;
} told_t;

static void add_gap(void *arg, const xm_plan_gap_t *gap)
{
    told_t *told = arg;
    const xm_layout_t *layout = xm_plan_tensor_dst(told->plan, gap->tensor);
    int64_t elements = gap->end - gap->first;

    for (int i = 0; i < told->failure->living; ++i) {
        xm_box_t box, common;

        if (tile_box(layout, told->failure->old_rank[i], &box) > 0 &&
            xm_box_intersect(&box, &gap->box, &common)) {
            told->bytes +=
                (uint64_t)(elements * xm_plan_tensor_element_size(told->plan, gap->tensor));
        }
    }
}

/* The plan for the rest; refused by a sentence first when something is gone. */
static xm_plan_t *plan_rest(const xm_plan_t *plan, const failure_t *failure,
                            const expected_t *expected)
{
    xm_plan_without_params_t params = XM_PLAN_WITHOUT_PARAMS_INIT;
    xm_plan_t *rest = NULL, *same = NULL;
    told_t told = {plan, failure, 0};

    params.lost = failure->lost;
    params.lost_count = failure->lost_count;
    params.delivered = failure->records;
    params.delivered_count = failure->living;
    if (expected->gone_bytes > 0) {
        ck_assert_xm_fails(xm_plan_without(plan, &params, &rest), XM_ERR_NO_SOLUTION,
                           "no rank that is left holds");
    }
    params.gap = add_gap;
    params.arg = &told;
    ck_assert_xm_ok(xm_plan_without(plan, &params, &rest));
    ck_assert_uint_eq(told.bytes, expected->gone_bytes);
    ck_assert_xm_ok(xm_plan_without(plan, &params, &same));
    ck_assert_str_eq(xm_plan_digest(rest), xm_plan_digest(same));
    xm_plan_destroy(same);
    return rest;
}

/* What stays is part of what the verifier proves: a range too long, too short, forgotten, of other
 * ranks or given up is found, and so is a sender that has kept nothing. */
static void break_kept(xm_plan_t *rest, random_t *random, const char *text)
{
    int64_t count = rest->kept_count;
    xm_kept_t *kept = &rest->kept[random_int(random, 0, (int)count - 1)], right = *kept;
    const xm_kept_t last = rest->kept[count - 1];
    int how = random_int(random, 0, 4);

    if (how == 0) {
        ++kept->end;
    } else if (how == 1) {
        ++kept->first;
    } else if (how == 2) {
        *kept = rest->kept[--rest->kept_count];
    } else if (how == 3) {
        kept->route = rest->builder.route_count;
    } else {
        kept->task = rest->task_count;
    }
    ck_assert_msg(xm_plan_verify(rest) == XM_ERR_CORRUPT, "what stays is wrong in way %d: %s", how,
                  text);
    rest->kept_count = count;
    rest->kept[count - 1] = last;
    *kept = right;
    for (int64_t i = 0; i < rest->builder.transfer_count; ++i) {
        xm_transfer_t *transfer = &rest->builder.transfers[i];

        if (transfer->parent == XM_PARENT_KEPT) {
            transfer->parent = XM_PARENT_SOURCE;
            ck_assert_msg(xm_plan_verify(rest) == XM_ERR_CORRUPT, "no source: %s", text);
            transfer->parent = XM_PARENT_KEPT;
        } else if (transfer->parent == XM_PARENT_SOURCE &&
                   xm_layout_tile_of_rank(rest->tensors[rest->tasks[transfer->task].tensor].dst,
                                          transfer->sender) !=
                       rest->tasks[transfer->task].dst_tile) {
            transfer->parent = XM_PARENT_KEPT;
            ck_assert_msg(xm_plan_verify(rest) == XM_ERR_CORRUPT, "nothing kept: %s", text);
            transfer->parent = XM_PARENT_SOURCE;
        }
    }
    ck_assert_xm_ok(xm_plan_verify(rest));
}

/* The job of the rest: the survivors' buffers as the failure left them. */
static void move_buffers(const sim_job_t *from, const failure_t *failure, sim_job_t *to)
{
    sim_job_fill(to, from->seed);
    for (int i = 0; i < failure->living; ++i) {
        for (int t = 0; t < to->tensors; ++t) {
            const xm_tensor_buffers_t *old = &from->buffers[failure->old_rank[i]][t];

            ck_assert_uint_eq(old->dst_bytes, to->buffers[i][t].dst_bytes);
            if (old->dst_bytes > 0) {
                memcpy(to->buffers[i][t].dst, old->dst, old->dst_bytes);
            }
        }
    }
}

/* Runs a plan that nobody dies in: all that has been kept or is missing is right then. */
static void run_to_the_end(sim_job_t *job, book_t *book, const char *text)
{
    xm_status_t results[SIM_MAX_RANKS];

    ck_assert_msg(sim_job_run(job, results), "stands still: %s", text);
    for (int r = 0; r < xm_plan_living(job->plan); ++r) {
        void *bytes;
        xm_delivered_t record;

        ck_assert_msg(results[r] == XM_OK, "rank %d: %s: %s", r, xm_status_string(results[r]),
                      text);
        ck_assert_xm_ok(xm_executor_delivered(job->executor[r], &bytes, &record.length));
        record.bytes = bytes;
        enter_record(job->plan, book, r, &record, text);
        free(bytes);
        check_buffers(job, book, r, text);
    }
}

static void check_gaps(const xm_plan_t *plan, const book_t *book, const book_t *kept_then_missing,
                       const char *text)
{
    for (int r = 0; r < xm_plan_ranks(plan); ++r) {
        for (int t = 0; t < xm_plan_tensors(plan); ++t) {
            xm_box_t box;
            int64_t elements = tile_box(xm_plan_tensor_dst(plan, t), r, &box);

            ck_assert_msg(memcmp(book->has[r][t], kept_then_missing->has[r][t],
                                 (size_t)elements * sizeof(bool)) == 0,
                          "rank %d has not got all of tensor %d: %s", r, t, text);
        }
    }
}

/* `kept` becomes all that a rank should have in the end. */
static void merge(const xm_plan_t *plan, const expected_t *expected, book_t *all)
{
    xm_box_t box;

    book_open(plan, all);
    for (int r = 0; r < xm_plan_ranks(plan); ++r) {
        for (int t = 0; t < xm_plan_tensors(plan); ++t) {
            int64_t elements = tile_box(xm_plan_tensor_dst(plan, t), r, &box);

            for (int64_t e = 0; e < elements; ++e) {
                all->has[r][t][e] = expected->kept.has[r][t][e] || expected->missing.has[r][t][e];
            }
        }
    }
}

static void check_case(uint64_t seed)
{
    random_t random = {seed};
    sim_options_t options = {0};
    xm_plan_t *rest[FAILURES] = {NULL};
    const xm_plan_t *plan;
    int failures = random_int(&random, 1, FAILURES), left = 1;
    sim_job_t jobs[2], *job = &jobs[0];
    batch_t batch;
    book_t book, all = {0};
    char text[TEXT];

    batch_create(&random, &batch);
    (void)snprintf(text, sizeof(text), "case %llu: %s", (unsigned long long)seed,
                   random_batch_text(&batch.random));
    options.turns = random_int(&random, 0, 3) == 0;
    options.window = random_int(&random, 0, 4);
    plan = batch.plan;
    sim_job_create(job, plan, batch.random.network, &options, &random);
    sim_job_fill(job, seed);
    book_open(plan, &book);
    for (int f = 0; f < failures && left > 0; ++f) {
        sim_job_t *next = &jobs[(f + 1) % 2];
        failure_t failure;
        expected_t expected;

        break_run(job, &random, &failure);
        left = failure.living;
        for (int i = 0; i < failure.living; ++i) {
            if (failure.old_rank[i] < xm_plan_ranks(plan)) {
                enter_record(plan, &book, failure.old_rank[i], &failure.records[i], text);
                check_buffers(job, &book, failure.old_rank[i], text);
            }
        }
        if (left > 0) {
            expect_rest(plan, &book, &failure, &expected);
            rest[f] = plan_rest(plan, &failure, &expected);
            check_plan(rest[f], &expected, text);
            if (rest[f]->kept_count > 0) {
                break_kept(rest[f], &random, text);
            }
            sim_job_create(next, rest[f], xm_plan_network(rest[f]), &options, &random);
            move_buffers(job, &failure, next);
            book_close(&all);
            merge(rest[f], &expected, &all);
            book_close(&expected.missing);
            book_close(&book);
            book = expected.kept;
            sim_job_destroy(job);
            job = next;
            plan = rest[f];
        }
        for (int i = 0; i < failure.living; ++i) {
            free((void *)(uintptr_t)failure.records[i].bytes);
        }
    }
    if (left > 0) {
        run_to_the_end(job, &book, text);
        check_gaps(plan, &book, &all, text);
    }
    book_close(&all);
    book_close(&book);
    sim_job_destroy(job);
    for (int f = 0; f < FAILURES; ++f) {
        xm_plan_destroy(rest[f]);
    }
    batch_destroy(&batch);
}

START_TEST(survivors_bring_what_is_missing)
{
    for (int i = 0; i < xm_test_rounds(CASES); ++i) {
        check_case((uint64_t)i + 1);
    }
}
END_TEST

/* A record of rank 1 after a run that nobody left. */
static xm_delivered_t whole_record(sim_job_t *job, int rank)
{
    xm_delivered_t record;
    void *bytes;

    ck_assert_xm_ok(xm_executor_delivered(job->executor[rank], &bytes, &record.length));
    record.bytes = bytes;
    return record;
}

static void expect_refusal(const xm_plan_t *plan, const xm_plan_without_params_t *params,
                           xm_status_t status, const char *sentence)
{
    xm_plan_t *rest = NULL;

    ck_assert_xm_fails(xm_plan_without(plan, params, &rest), status, sentence);
    ck_assert_ptr_null(rest);
}

START_TEST(wrong_records_are_refused)
{
    xm_plan_without_params_t params = XM_PLAN_WITHOUT_PARAMS_INIT;
    sim_options_t options = {0};
    xm_status_t results[SIM_MAX_RANKS];
    xm_delivered_t records[2];
    int lost[SIM_MAX_RANKS] = {16};
    random_t random = {5};
    unsigned char *bytes;
    xm_plan_t *rest;
    fixed_t fixed, other;
    sim_job_t job;

    fixed_default(&fixed);
    fixed_create(&other, "2x4", "S0R", "2x4", 8, "RS0", 16, 64, 48);
    sim_job_create(&job, fixed.plan, fixed.network, &options, &random);
    sim_job_fill(&job, 1);
    ck_assert(sim_job_run(&job, results));
    records[0] = whole_record(&job, 9);
    params.delivered = records;
    params.delivered_count = 1;
    expect_refusal(other.plan, &params, XM_ERR_MISMATCH, "received is of plan");
    params.lost = lost;
    params.lost_count = 1;
    expect_refusal(fixed.plan, &params, XM_ERR_INVALID_ARGUMENT, "rank 16 cannot be lost");
    lost[0] = 9;
    expect_refusal(fixed.plan, &params, XM_ERR_INVALID_ARGUMENT, "record 0 is of rank 9, which");
    params.lost_count = 0;
    ck_assert(sim_job_run(&job, results));
    records[1] = whole_record(&job, 10);
    params.delivered_count = 2;
    expect_refusal(fixed.plan, &params, XM_ERR_MISMATCH, "rank 10 has a record of run 2, rank 9");
    free((void *)(uintptr_t)records[0].bytes);
    records[0] = records[1];
    expect_refusal(fixed.plan, &params, XM_ERR_INVALID_ARGUMENT, "record 1 is of rank 10, which");
    params.delivered_count = 1;
    ck_assert_xm_ok(xm_plan_without(fixed.plan, &params, &rest));
    xm_plan_destroy(rest);
    /* Each byte behind the head damaged in turn: refused, or another record, never anything else.
     */
    bytes = (unsigned char *)(uintptr_t)records[0].bytes;
    for (size_t at = 0; at < records[0].length; ++at) {
        bytes[at] ^= 0x81;
        if (xm_plan_without(fixed.plan, &params, &rest) == XM_OK) {
            ck_assert_xm_ok(xm_plan_verify(rest));
            xm_plan_destroy(rest);
        }
        bytes[at] ^= 0x81;
    }
    --records[0].length;
    expect_refusal(fixed.plan, &params, XM_ERR_CORRUPT, "is damaged");
    records[0].length = 3;
    expect_refusal(fixed.plan, &params, XM_ERR_CORRUPT, "are no record");
    params.delivered_count = 0;
    for (int r = 0; r < 16; ++r) {
        lost[r] = r;
    }
    params.lost_count = 16;
    expect_refusal(fixed.plan, &params, XM_ERR_INVALID_ARGUMENT, "no rank of the plan is left");
    params.lost_count = 4; /* a host, which has the first half of the columns alone */
    params.network = other.network;
    ck_assert_xm_fails(xm_plan_without(fixed.plan, &params, &rest), XM_ERR_NO_SOLUTION,
                       "tensor 0: no rank that is left holds box");
    free(bytes);
    sim_job_destroy(&job);
    fixed_destroy(&other);
    fixed_destroy(&fixed);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rest");
    TCase *tcase = tcase_create("plans");

    tcase_set_timeout(tcase, 300);
    tcase_add_test(tcase, survivors_bring_what_is_missing);
    tcase_add_test(tcase, wrong_records_are_refused);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
