/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/pipeline/share.h"

#include <math.h>
#include <stdbool.h>

#include "xm_test.h"

enum { CHANNELS = 8, LINKS = 6, MOST_USES = CHANNELS * LINKS };

/* What was last told of each channel's message. */
typedef struct ends {
    int64_t end[CHANNELS];
    int told[CHANNELS];
} ends_t;

static void note(void *arg, int channel, int64_t end)
{
    ends_t *ends = arg;

    ends->end[channel] = end;
    ++ends->told[channel];
}

static ap_pipeline_share_t *make(const ap_pipeline_use_t *uses, int count)
{
    ap_pipeline_share_t *share;

    ck_assert_xm_ok(ap_pipeline_share_create(CHANNELS, uses, count, &share));
    return share;
}

START_TEST(one_that_is_alone_takes_its_own_time)
{
    const ap_pipeline_use_t uses[] = {{0, 3, 1.0}, {1, 3, 1.0}};
    ap_pipeline_share_t *share = make(uses, 2);
    ends_t ends = {0};

    ap_pipeline_share_begin(share, 0, 7, 100, note, &ends);
    ck_assert_int_eq(ends.end[0], 107);
    ap_pipeline_share_end(share, 0, 107, note, &ends);
    ap_pipeline_share_begin(share, 1, 107, 50, note, &ends);
    ck_assert_int_eq(ends.end[1], 157);
    ck_assert_int_eq(ends.told[0] + ends.told[1], 2);
    ap_pipeline_share_destroy(share);
}
END_TEST

/* Half the pace while both are there: the first has 60 of 100 to go when the second begins. */
START_TEST(two_on_a_full_link_go_at_half_the_pace)
{
    const ap_pipeline_use_t uses[] = {{0, 3, 1.0}, {1, 3, 1.0}};
    ap_pipeline_share_t *share = make(uses, 2);
    ends_t ends = {0};

    ap_pipeline_share_begin(share, 0, 0, 100, note, &ends);
    ap_pipeline_share_begin(share, 1, 40, 100, note, &ends);
    ck_assert_int_eq(ends.end[0], 160);
    ck_assert_int_eq(ends.end[1], 240);
    ap_pipeline_share_end(share, 0, 160, note, &ends);
    ck_assert_int_eq(ends.end[1], 200); /* 60 of 100 passed by 160 */
    ap_pipeline_share_end(share, 1, 200, note, &ends);
    ap_pipeline_share_destroy(share);
}
END_TEST

START_TEST(parts_that_fit_do_not_slow_each_other_down)
{
    const ap_pipeline_use_t uses[] = {
        {0, 0, 0.5}, {1, 0, 0.25}, {1, 0, 0.25}, {2, 1, 1.0}, {3, 0, 0.6}};
    ap_pipeline_share_t *share = make(uses, 5);
    ends_t ends = {0};

    ap_pipeline_share_begin(share, 0, 0, 100, note, &ends);
    ap_pipeline_share_begin(share, 1, 0, 200, note, &ends);
    ap_pipeline_share_begin(share, 2, 0, 300, note, &ends);
    ck_assert_int_eq(ends.end[0], 100);
    ck_assert_int_eq(ends.end[1], 200);
    /* Now 1.6 of a link: a pace of 0.625. Who is not on it is not told anything. */
    ap_pipeline_share_begin(share, 3, 50, 100, note, &ends);
    ck_assert_int_eq(ends.end[0], 130);
    ck_assert_int_eq(ends.end[1], 290);
    ck_assert_int_eq(ends.end[3], 210);
    ck_assert_int_eq(ends.end[2], 300);
    ck_assert_int_eq(ends.told[2], 1);
    ap_pipeline_share_destroy(share);
}
END_TEST

/* Link 0 allows its two a half; what one of them leaves on link 1 the third has. Link 2 allows its
 * three a third each. */
START_TEST(who_is_held_back_leaves_the_rest_to_the_others)
{
    const ap_pipeline_use_t uses[] = {{0, 0, 1.0}, {1, 0, 1.0}, {1, 1, 1.0}, {2, 1, 0.4},
                                      {3, 2, 1.0}, {4, 2, 1.0}, {4, 1, 0.2}, {5, 2, 2.0}};
    ap_pipeline_share_t *share = make(uses, 8);
    ends_t ends = {0};

    for (int c = 0; c < 3; ++c) {
        ap_pipeline_share_begin(share, c, 0, 300, note, &ends);
    }
    ck_assert_int_eq(ends.end[0], 600);
    ck_assert_int_eq(ends.end[1], 600);
    ck_assert_int_eq(ends.end[2], 300);
    for (int c = 3; c < 6; ++c) { /* a share above 1 is 1 */
        ap_pipeline_share_begin(share, c, 0, 300, note, &ends);
    }
    for (int c = 3; c < 6; ++c) {
        ck_assert_int_ge(ends.end[c], 900);
        ck_assert_int_le(ends.end[c], 901);
    }
    ck_assert_int_eq(ends.end[2], 300); /* 0.5 + 0.4 + 0.2 / 3 of link 1 */
    ap_pipeline_share_destroy(share);
}
END_TEST

/* A pace that is soon over may tell an end beyond all numbers. */
START_TEST(long_messages_do_not_overflow)
{
    ap_pipeline_use_t uses[CHANNELS];
    ap_pipeline_share_t *share;
    ends_t ends = {0};

    for (int c = 0; c < CHANNELS; ++c) {
        uses[c] = (ap_pipeline_use_t){c, 0, 1.0};
    }
    share = make(uses, CHANNELS);
    for (int c = 0; c < CHANNELS; ++c) {
        ap_pipeline_share_begin(share, c, 0, c == 0 ? INT64_MAX / 4 : 100, note, &ends);
    }
    ck_assert_int_eq(ends.end[0], INT64_MAX);
    for (int c = CHANNELS - 1; c > 0; --c) {
        ck_assert_int_eq(ends.end[c], 100 * CHANNELS);
        ap_pipeline_share_end(share, c, 100 * CHANNELS, note, &ends);
    }
    ck_assert_int_eq(ends.end[0], INT64_MAX / 4 + 100 * (CHANNELS - 1));
    ap_pipeline_share_destroy(share);
}
END_TEST

START_TEST(what_cannot_be_is_refused)
{
    const ap_pipeline_use_t bad[] = {
        {CHANNELS, 0, 0.5}, {-1, 0, 0.5}, {0, -1, 0.5}, {0, 0, -0.5}, {0, 0, NAN}};
    ap_pipeline_share_t *share;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); ++i) {
        ck_assert_xm_fails(ap_pipeline_share_create(CHANNELS, &bad[i], 1, &share),
                           XM_ERR_INVALID_ARGUMENT, "use 0: channel");
    }
    ap_pipeline_share_destroy(NULL);
}
END_TEST

/* The same in real numbers, all channels and links looked at every time. */
typedef struct model {
    double share[CHANNELS][LINKS];
    bool busy[CHANNELS];
    double left[CHANNELS], pace[CHANNELS];
    double now;
} model_t;

static void find_paces(model_t *model)
{
    bool settled[CHANNELS] = {false};
    double free[LINKS];

    for (int l = 0; l < LINKS; ++l) {
        free[l] = 1.0;
    }
    for (int round = 0; round < CHANNELS; ++round) {
        double least = 1.0;
        int tightest = -1;

        for (int l = 0; l < LINKS; ++l) {
            double wanting = 0.0;

            for (int c = 0; c < CHANNELS; ++c) {
                wanting += model->busy[c] && !settled[c] ? model->share[c][l] : 0.0;
            }
            if (wanting > 0.0 && free[l] / wanting < least) {
                least = free[l] / wanting;
                tightest = l;
            }
        }
        for (int c = 0; c < CHANNELS; ++c) {
            if (model->busy[c] && !settled[c] &&
                (tightest < 0 || model->share[c][tightest] > 0.0)) {
                settled[c] = true;
                model->pace[c] = least;
                for (int l = 0; l < LINKS; ++l) {
                    free[l] -= least * model->share[c][l];
                }
            }
        }
    }
}

static void go_to(model_t *model, double time)
{
    for (int c = 0; c < CHANNELS; ++c) {
        model->left[c] -= model->busy[c] ? model->pace[c] * (time - model->now) : 0.0;
    }
    model->now = time;
}

static uint64_t draw(uint64_t *state, uint64_t below)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (*state >> 33) % below;
}

static void check_ends(const model_t *model, const ends_t *ends)
{
    for (int c = 0; c < CHANNELS; ++c) {
        if (model->busy[c]) {
            /* Every change of pace rounds what has passed, of times up to 1e6, to whole numbers. */
            ck_assert_double_eq_tol((double)ends->end[c],
                                    model->now + model->left[c] / model->pace[c], 500.0);
        }
    }
}

/* Messages begin at random and end when they are said to. */
static void compare(uint64_t seed)
{
    ap_pipeline_use_t uses[MOST_USES];
    model_t model = {.now = 0.0};
    uint64_t state = seed;
    ends_t ends = {0};
    int64_t now = 0;
    int count = 0;
    ap_pipeline_share_t *share;

    for (int c = 0; c < CHANNELS; ++c) {
        for (int l = 0; l < LINKS; ++l) {
            if (draw(&state, 3) == 0) {
                double part = draw(&state, 2) == 0 ? 1.0 : (double)draw(&state, 100) / 100.0;

                uses[count++] = (ap_pipeline_use_t){c, 10 * l, part};
                model.share[c][l] = part;
            }
        }
    }
    share = make(uses, count);
    for (int step = 0; step < 60; ++step) {
        int channel = (int)draw(&state, CHANNELS), next = -1;
        int64_t start = now + (int64_t)draw(&state, 100000);

        for (int c = 0; c < CHANNELS; ++c) {
            next = model.busy[c] && (next < 0 || ends.end[c] < ends.end[next]) ? c : next;
        }
        if (next >= 0 && (model.busy[channel] || ends.end[next] <= start)) {
            now = ends.end[next];
            go_to(&model, (double)now);
            model.busy[next] = false;
            find_paces(&model);
            ap_pipeline_share_end(share, next, now, note, &ends);
        } else {
            int64_t time = (int64_t)draw(&state, 1000000);

            now = start;
            go_to(&model, (double)now);
            model.busy[channel] = true;
            model.left[channel] = (double)time;
            find_paces(&model);
            ap_pipeline_share_begin(share, channel, now, time, note, &ends);
        }
        check_ends(&model, &ends);
    }
    ap_pipeline_share_destroy(share);
}

START_TEST(random_messages_end_as_in_real_numbers)
{
    for (uint64_t seed = 1; seed <= 500; ++seed) {
        compare(seed);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pipeline_share");
    TCase *unit = tcase_create("unit");

    tcase_set_timeout(unit, 60);
    tcase_add_test(unit, one_that_is_alone_takes_its_own_time);
    tcase_add_test(unit, two_on_a_full_link_go_at_half_the_pace);
    tcase_add_test(unit, parts_that_fit_do_not_slow_each_other_down);
    tcase_add_test(unit, who_is_held_back_leaves_the_rest_to_the_others);
    tcase_add_test(unit, long_messages_do_not_overflow);
    tcase_add_test(unit, what_cannot_be_is_refused);
    tcase_add_test(unit, random_messages_end_as_in_real_numbers);
    suite_add_tcase(suite, unit);
    return xm_test_run(suite);
}
