/* SPDX-License-Identifier: Apache-2.0 */
/* A thousand ranks on a virtual clock, of whose messages one in a hundred is lost each way: an hour
 * of them in ./test, a week in ./test long. Nobody may be found dead who is not. At the end one
 * rank stops, and exactly that one is found. */
#include "comm/fault/liveness.h"

#include <stdlib.h>

#include "comm/base/random.h"
#include "xm_test.h"

enum { RANKS = 1000, PER_HOST = 8, VICTIM = 707 };
static const int64_t second = 1000000000;
/* A rank looks after its messages so often at most: its thread is not the only one. */
static const int64_t slot = 10000000;

typedef struct node {
    struct week *week;
    int rank;
    xm_liveness_t *liveness;
    int64_t next, last;
} node_t;

typedef struct week {
    double loss;
    xm_random_t random;
    int64_t now;
    bool stopped;
    int64_t asked, lost;
    int findings, found;
    int64_t found_at;
    node_t nodes[RANKS];
} week_t;

static bool arrives(week_t *week, int to)
{
    if ((double)(xm_random_next(&week->random) >> 11) * 0x1p-53 < week->loss) {
        ++week->lost;
        return false;
    }
    return !week->stopped || to != VICTIM;
}

static void wake(week_t *week, int rank)
{
    node_t *node = &week->nodes[rank];
    int64_t at = node->last + slot > week->now ? node->last + slot : week->now;

    node->next = at < node->next ? at : node->next;
}

static void on_ask(void *arg, int rank, uint64_t question, int about, bool urgent)
{
    node_t *node = arg;
    week_t *week = node->week;
    xm_liveness_t *other = week->nodes[rank].liveness;
    bool hears = xm_liveness_hears(node->liveness, rank, week->now);

    (void)urgent;
    ++week->asked;
    if (arrives(week, rank)) {
        xm_opinion_t opinion = XM_OPINION_NONE;

        xm_liveness_asked(other, node->rank, hears, week->now);
        if (about >= 0) {
            opinion = xm_liveness_testify(other, about, week->now);
            wake(week, rank);
        }
        if (arrives(week, node->rank)) {
            (void)xm_liveness_answered(node->liveness, rank, question, about, opinion, week->now);
        }
    }
}

static void on_call(void *arg, int rank)
{
    (void)arg;
    (void)rank;
}

static void on_finding(void *arg, int rank, xm_finding_t finding, int64_t silent_ns, int witness)
{
    node_t *node = arg;

    (void)silent_ns;
    (void)witness;
    ++node->week->findings;
    node->week->found = finding == XM_FINDING_SILENT ? rank : -1;
    node->week->found_at = node->week->now;
}

/* Slot after slot, for the ranks that have something to do by then. All but the lowest rank do so
 * about once a second. */
static void run_until(week_t *week, int64_t end)
{
    while (week->now < end) {
        int64_t next = end;

        for (int rank = 0; rank < RANKS; ++rank) {
            node_t *node = &week->nodes[rank];

            if (node->next <= week->now && !(week->stopped && rank == VICTIM)) {
                xm_liveness_actions_t actions = {on_ask, on_call, on_finding, node};

                node->last = week->now;
                node->next = INT64_MAX;
                {
                    int64_t due = xm_liveness_tick(node->liveness, week->now, &actions);

                    node->next = due < node->next ? due : node->next;
                }
            }
        }
        for (int rank = 0; rank < RANKS; ++rank) {
            if (!(week->stopped && rank == VICTIM) && week->nodes[rank].next < next) {
                next = week->nodes[rank].next;
            }
        }
        week->now = next > week->now + slot ? next : week->now + slot;
    }
    week->now = end;
}

START_TEST(a_thousand_ranks_lose_nobody)
{
    week_t *week = calloc(1, sizeof *week);
    int hours = xm_test_rounds(2) == 2 ? 7 * 24 : 1;

    ck_assert_ptr_nonnull(week);
    week->loss = 0.01;
    week->random.state = 1;
    for (int rank = 0; rank < RANKS; ++rank) {
        node_t *node = &week->nodes[rank];

        node->week = week;
        node->rank = rank;
        ck_assert_xm_ok(xm_liveness_create(RANKS, rank, second, true, &node->liveness));
        for (int other = 0; other < RANKS; ++other) {
            xm_liveness_set_host(node->liveness, other, other / PER_HOST);
        }
    }
    for (int rank = 1; rank < RANKS; ++rank) {
        xm_liveness_watch(week->nodes[0].liveness, rank, true, 0);
        xm_liveness_watch(week->nodes[rank].liveness, 0, true, 0);
    }
    run_until(week, hours * 3600 * second);
    (void)printf("%d hours: %lld questions, %lld messages lost, %d findings\n", hours,
                 (long long)week->asked, (long long)week->lost, week->findings);
    ck_assert_int_eq(week->findings, 0);
    /* Each of 999 pairs asks both ways once a second, and loses one in a hundred of what it says.
     */
    ck_assert(week->asked > 2LL * 999 * 3600 * hours * 9 / 10);
    ck_assert(week->lost > week->asked / 60 && week->lost < week->asked / 40);

    week->stopped = true;
    run_until(week, week->now + 10 * second);
    ck_assert_int_eq(week->findings, 1);
    ck_assert_int_eq(week->found, VICTIM);
    ck_assert(week->found_at - hours * 3600 * second < 4 * second);
    for (int rank = 0; rank < RANKS; ++rank) {
        xm_liveness_destroy(week->nodes[rank].liveness);
    }
    free(week);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("liveness for a week");
    TCase *tcase = tcase_create("virtual clock");

    tcase_set_timeout(tcase, 9000);
    tcase_add_test(tcase, a_thousand_ranks_lose_nobody);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
