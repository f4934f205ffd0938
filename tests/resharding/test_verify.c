#include <stdio.h>

#include "random_case.h"
#include "resharding/plan_private.h"
#include "xm_test.h"

static xm_plan_t *random_plan(random_t *random, random_case_t *c)
{
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
    xm_plan_t *plan;

    random_case_create(random, c);
    params.src = c->src;
    params.dst = c->dst;
    params.element_size = c->element_size;
    params.network = c->network;
    params.chunk_bytes = 32;
    params.strategy = (xm_strategy_t)random_int(random, 0, 1);
    params.scheduler = (xm_scheduler_t)random_int(random, 0, 1);
    ck_assert_xm_ok(xm_plan_create(&params, &plan));
    return plan;
}

static bool holds(const xm_plan_t *plan, int64_t task, int rank)
{
    return xm_layout_tile_of_rank(plan->src, rank) == plan->tasks[task].src_tile;
}

/* Breaks one thing; false when this plan offers no way to break it that way. */
static bool mutate(random_t *random, const random_case_t *c, xm_plan_t *plan, int how)
{
    int64_t at = plan->transfer_count > 0
                     ? (int64_t)(random_next(random) % (uint64_t)plan->transfer_count)
                     : -1;
    xm_transfer_t *transfer = at >= 0 ? &plan->transfers[at] : NULL;
    int64_t index;

    if (transfer == NULL) {
        return false;
    }
    switch (how) {
    case 0: /* dropped (the last one, so that parents stay where they are) */
        --plan->transfer_count;
        return true;
    case 1: /* duplicated */
        ck_assert_xm_ok(xm_plan_append(plan, transfer->task, transfer->sender, transfer->receiver,
                                       transfer->parent, &index));
        return true;
    case 2: /* a chunk short */
        --transfer->end_chunk;
        return true;
    case 3: /* shifted by a chunk */
        ++transfer->first_chunk;
        ++transfer->end_chunk;
        return true;
    case 4: { /* from a rank that does not hold it */
        int rank = random_int(random, 0, c->ranks - 1);

        if (transfer->parent >= 0 || holds(plan, transfer->task, rank)) {
            return false;
        }
        transfer->sender = rank;
        return true;
    }
    case 5: { /* to a rank that does not need it */
        int rank = random_int(random, 0, c->ranks - 1);

        if (xm_layout_tile_of_rank(plan->dst, rank) == plan->tasks[transfer->task].dst_tile) {
            return false;
        }
        transfer->receiver = rank;
        return true;
    }
    case 6: /* a relay that waits for itself */
        transfer->parent = at;
        return true;
    case 7: /* a relay that does not wait: it forwards what it has not got */
        if (transfer->parent < 0 || holds(plan, transfer->task, transfer->sender)) {
            return false;
        }
        transfer->parent = -1;
        return true;
    case 8: /* a box moved by one */
        if (plan->tasks[transfer->task].box.dims == 0) {
            return false;
        }
        ++plan->tasks[transfer->task].box.lo[0];
        ++plan->tasks[transfer->task].box.hi[0];
        return xm_layout_parts(plan->src, 0) > 0;
    case 9: /* two tasks for one intersection */
        plan->tasks[transfer->task] = plan->tasks[(transfer->task + 1) % plan->task_count];
        return plan->task_count > 1;
    default:
        return false;
    }
}

/* A task's box is the whole intersection of its tiles, so a moved one leaves one of them. */
START_TEST(every_mutation_is_caught)
{
    random_t random = {21};
    int caught = 0;

    while (caught < 300) {
        random_case_t c;
        xm_plan_t *plan = random_plan(&random, &c);

        if (mutate(&random, &c, plan, _i)) {
            ck_assert_msg(xm_plan_verify(plan) == XM_ERR_CORRUPT, "mutation %d passed: %s", _i,
                          random_case_text(&c));
            ++caught;
        }
        xm_plan_destroy(plan);
        random_case_destroy(&c);
    }
}
END_TEST

START_TEST(sentences_name_the_violation)
{
    random_t random = {1};
    random_case_t c;
    xm_plan_t *plan;
    char expected[64];

    do {
        plan = random_plan(&random, &c);
        if (plan->transfer_count >= 3 && plan->transfers[2].parent < 0) {
            break;
        }
        xm_plan_destroy(plan);
        random_case_destroy(&c);
    } while (true);
    plan->transfers[2].receiver = 1000;
    (void)snprintf(expected, sizeof(expected), "transfer 2 sends task %d to rank 1000",
                   (int)plan->transfers[2].task);
    ck_assert_xm_fails(xm_plan_verify(plan), XM_ERR_CORRUPT, expected);
    xm_plan_destroy(plan);
    random_case_destroy(&c);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("verify");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, every_mutation_is_caught, 0, 10);
    tcase_add_test(tcase, sentences_name_the_violation);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
