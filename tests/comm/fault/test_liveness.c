/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/fault/liveness.h"

#include "xm_test.h"

enum { RANKS = 5 };
static const int64_t second = 1000000000;

/* A watcher on a virtual clock, and ranks that answer at once as long as they live. */
typedef struct {
    xm_liveness_t *liveness;
    int64_t now;
    int64_t stops_at[RANKS]; /* answers nothing from then on */
    int asked[RANKS];
    int64_t found_at[RANKS], silent[RANKS];
} lab_t;

static void ask(void *arg, int rank, uint64_t question)
{
    lab_t *lab = arg;

    ++lab->asked[rank];
    if (lab->now < lab->stops_at[rank]) {
        ck_assert(xm_liveness_answered(lab->liveness, rank, question, lab->now));
        ck_assert(!xm_liveness_answered(lab->liveness, rank, question, lab->now));
    }
}

static void silent(void *arg, int rank, int64_t silent_ns)
{
    lab_t *lab = arg;

    ck_assert_int_eq(lab->found_at[rank], 0);
    lab->found_at[rank] = lab->now;
    lab->silent[rank] = silent_ns;
}

static void lab_create(lab_t *lab)
{
    *lab = (lab_t){0};
    ck_assert_xm_ok(xm_liveness_create(RANKS, second, &lab->liveness));
    for (int rank = 0; rank < RANKS; ++rank) {
        lab->stops_at[rank] = INT64_MAX;
    }
}

/* Ticks exactly when asked to, until `end`. */
static void run_until(lab_t *lab, int64_t end)
{
    xm_liveness_actions_t actions = {.ask = ask, .silent = silent, .arg = lab};

    for (;;) {
        int64_t next = xm_liveness_tick(lab->liveness, lab->now, &actions);

        ck_assert_int_gt(next, lab->now);
        if (next > end) {
            lab->now = end;
            return;
        }
        lab->now = next;
    }
}

/* Whenever a rank falls silent, it is found after 2.5 to 3.5 intervals, once; others are not. */
START_TEST(silence_is_found_in_time)
{
    for (int64_t offset = 0; offset < second; offset += second / 16) {
        lab_t lab;

        lab_create(&lab);
        for (int rank = 1; rank < 4; ++rank) {
            xm_liveness_watch(lab.liveness, rank, true, 0);
        }
        lab.stops_at[2] = 10 * second + offset;
        run_until(&lab, 60 * second);
        ck_assert_int_ge(lab.found_at[2] - lab.stops_at[2], 5 * second / 2);
        ck_assert_int_le(lab.found_at[2] - lab.stops_at[2], 7 * second / 2);
        ck_assert_int_ge(lab.silent[2], 7 * second / 2);
        ck_assert_int_eq(lab.found_at[1], 0);
        ck_assert_int_eq(lab.found_at[3], 0);
        ck_assert_int_eq(lab.asked[0], 0);
        ck_assert_int_eq(lab.asked[4], 0);
        ck_assert_int_ge(lab.asked[1], 59);
        ck_assert_int_le(lab.asked[1], 61);
        xm_liveness_destroy(lab.liveness);
    }
}
END_TEST

/* Two questions that got lost are no silence. */
START_TEST(loss_is_no_silence)
{
    lab_t lab;

    lab_create(&lab);
    xm_liveness_watch(lab.liveness, 1, true, 0);
    for (int64_t round = 0; round < 20; ++round) {
        lab.stops_at[1] = 0;
        run_until(&lab, lab.now + 19 * second / 10);
        lab.stops_at[1] = INT64_MAX;
        run_until(&lab, lab.now + 3 * second / 2);
    }
    ck_assert_int_eq(lab.found_at[1], 0);
    xm_liveness_destroy(lab.liveness);
}
END_TEST

/* A watcher that was held up blames nobody for it, but still finds who is really silent. */
START_TEST(a_late_watcher_blames_nobody)
{
    lab_t lab;

    lab_create(&lab);
    for (int rank = 1; rank < RANKS; ++rank) {
        xm_liveness_watch(lab.liveness, rank, true, 0);
    }
    run_until(&lab, 5 * second);
    lab.stops_at[3] = 0;
    lab.now += 100 * second;
    run_until(&lab, lab.now + 2 * second);
    for (int rank = 1; rank < RANKS; ++rank) {
        ck_assert_int_eq(lab.found_at[rank], 0);
    }
    run_until(&lab, lab.now + 2 * second);
    ck_assert_int_ne(lab.found_at[3], 0);
    ck_assert_int_eq(lab.found_at[1] + lab.found_at[2] + lab.found_at[4], 0);
    xm_liveness_destroy(lab.liveness);
}
END_TEST

START_TEST(old_and_made_up_answers_count_nothing)
{
    lab_t lab;
    xm_liveness_actions_t actions = {.ask = ask, .silent = silent, .arg = &lab};

    lab_create(&lab);
    lab.stops_at[1] = 0;
    ck_assert_int_eq(xm_liveness_tick(lab.liveness, 0, &actions), INT64_MAX);
    xm_liveness_watch(lab.liveness, 1, true, 0);
    ck_assert(xm_liveness_watches(lab.liveness, 1));
    run_until(&lab, 2 * second);
    ck_assert(!xm_liveness_answered(lab.liveness, 1, 0, lab.now));
    ck_assert(!xm_liveness_answered(lab.liveness, 1, (uint64_t)lab.asked[1] + 1, lab.now));
    ck_assert(xm_liveness_answered(lab.liveness, 1, (uint64_t)lab.asked[1], lab.now));
    ck_assert(!xm_liveness_answered(lab.liveness, 1, 1, lab.now));
    run_until(&lab, 5 * second);
    ck_assert_int_eq(lab.found_at[1], 0);
    run_until(&lab, 6 * second);
    ck_assert_int_ne(lab.found_at[1], 0);
    /* Watched anew, it has never been silent. */
    xm_liveness_watch(lab.liveness, 1, false, lab.now);
    xm_liveness_watch(lab.liveness, 1, true, lab.now);
    lab.found_at[1] = 0;
    run_until(&lab, lab.now + 3 * second);
    ck_assert_int_eq(lab.found_at[1], 0);
    run_until(&lab, lab.now + second);
    ck_assert_int_ne(lab.found_at[1], 0);
    xm_liveness_destroy(lab.liveness);
    xm_liveness_destroy(NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("liveness");
    TCase *tcase = tcase_create("virtual clock");

    tcase_add_test(tcase, silence_is_found_in_time);
    tcase_add_test(tcase, loss_is_no_silence);
    tcase_add_test(tcase, a_late_watcher_blames_nobody);
    tcase_add_test(tcase, old_and_made_up_answers_count_nothing);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
