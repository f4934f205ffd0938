/* SPDX-License-Identifier: Apache-2.0 */
/* Who makes up the next group, against all subsets. */
#include "comm/fault/quorum.h"

#include "comm/base/random.h"
#include "xm_test.h"

enum { MOST = 10, CASES = 4000 };

typedef struct {
    int ranks;
    int host[MOST];
    bool closed[MOST], out[MOST];
    bool cut[MOST][MOST]; /* both ways */
    uint8_t standing[MOST][MOST];
    const uint8_t *rows[MOST];
} case_t;

static int draw(xm_random_t *random, int below)
{
    return (int)(xm_random_next(random) % (uint64_t)below);
}

/* Ranks on hosts; pairs of hosts and pairs of ranks that are cut off from each other, processes
 * that have ended, ranks that the application leaves out. Those who live say what they see; of a
 * pair that is cut off one or both notice. */
static void make(xm_random_t *random, case_t *c)
{
    int cuts = draw(random, 4), hosts;

    *c = (case_t){.ranks = 2 + draw(random, MOST - 1)};
    hosts = 1 + draw(random, c->ranks);
    for (int r = 0; r < c->ranks; ++r) {
        c->host[r] = r * hosts / c->ranks;
        c->closed[r] = r > 0 && draw(random, 8) == 0;
        c->out[r] = r > 0 && draw(random, 10) == 0;
    }
    for (int i = 0; i < cuts; ++i) {
        int a = draw(random, hosts), b = draw(random, hosts), one = draw(random, c->ranks);

        for (int r = 0; r < c->ranks; ++r) {
            for (int s = 0; s < c->ranks; ++s) {
                bool pair = i % 2 == 0 ? c->host[r] == a && c->host[s] == b : r == one && s == b;

                if (pair && r != s) {
                    c->cut[r][s] = c->cut[s][r] = true;
                }
            }
        }
    }
    for (int r = 0; r < c->ranks; ++r) {
        for (int s = 0; s < c->ranks; ++s) {
            bool notices = r < s || draw(random, 2) == 0;

            c->standing[r][s] = c->out[s]                 ? XM_STANDING_OUT
                                : c->closed[s]            ? XM_STANDING_CLOSED
                                : c->cut[r][s] && notices ? XM_STANDING_CUT
                                                          : XM_STANDING_WELL;
        }
        c->rows[r] = r == 0 || (!c->closed[r] && !c->out[r]) ? c->standing[r] : NULL;
    }
}

static bool can_be(const case_t *c, unsigned set)
{
    for (int r = 0; r < c->ranks; ++r) {
        if ((set >> r & 1) != 0 && (c->closed[r] || c->out[r])) {
            return false;
        }
        for (int s = 0; s < c->ranks; ++s) {
            if ((set >> r & 1) != 0 && (set >> s & 1) != 0 && c->cut[r][s]) {
                return false;
            }
        }
    }
    return true;
}

START_TEST(the_largest_set_is_chosen)
{
    xm_random_t random = {.state = 16};
    int with_cuts = 0, resigned = 0;

    for (int i = 0; i < CASES; ++i) {
        bool chosen[MOST];
        unsigned set = 0;
        int best = 0, best_with_self = 0;
        case_t c;

        make(&random, &c);
        ck_assert_xm_ok(xm_quorum_choose(c.ranks, 0, c.rows, chosen));
        for (int r = 0; r < c.ranks; ++r) {
            set |= (unsigned)chosen[r] << r;
        }
        for (unsigned other = 1; other < 1u << c.ranks; ++other) {
            int count = __builtin_popcount(other);

            if (can_be(&c, other)) {
                best = count > best ? count : best;
                best_with_self =
                    (other & 1) != 0 && count > best_with_self ? count : best_with_self;
            }
        }
        ck_assert_msg(can_be(&c, set), "case %d: 0x%x cannot be a group", i, set);
        ck_assert_msg(__builtin_popcount(set) == best, "case %d: 0x%x, %d are possible", i, set,
                      best);
        ck_assert_msg((set & 1) != 0 || best_with_self < best, "case %d: 0x%x without reason", i,
                      set);
        with_cuts += best < c.ranks;
        resigned += (set & 1) == 0;
    }
    ck_assert_int_gt(with_cuts, CASES / 2);
    ck_assert_int_gt(resigned, CASES / 50);
}
END_TEST

/* Ranks that nothing is heard of do not outvote the one that chooses, and one that has said
 * something has not ended. */
START_TEST(who_says_nothing_has_no_vote)
{
    uint8_t own[] = {XM_STANDING_WELL, XM_STANDING_CUT, XM_STANDING_CUT, XM_STANDING_CLOSED};
    uint8_t other[] = {XM_STANDING_CUT, XM_STANDING_WELL, XM_STANDING_WELL, XM_STANDING_CLOSED};
    const uint8_t *rows[4] = {own};
    bool chosen[4];

    ck_assert_xm_ok(xm_quorum_choose(4, 0, rows, chosen));
    ck_assert(chosen[0] && !chosen[1] && !chosen[2] && !chosen[3]);
    rows[1] = other;
    ck_assert_xm_ok(xm_quorum_choose(4, 0, rows, chosen));
    ck_assert(!chosen[0] && chosen[1] && chosen[2] && !chosen[3]);
    own[1] = XM_STANDING_CLOSED;
    ck_assert_xm_ok(xm_quorum_choose(4, 0, rows, chosen));
    ck_assert(!chosen[0] && chosen[1] && chosen[2] && !chosen[3]);
}
END_TEST

/* Who could make another group: not what has ended or is left out, nor who hangs beside members. */
START_TEST(others_are_counted)
{
    static const int host[] = {0, 0, 0, 3, 3, 5, 5};
    static const uint8_t standing[] = {XM_STANDING_WELL, XM_STANDING_WELL,   XM_STANDING_CUT,
                                       XM_STANDING_CUT,  XM_STANDING_CLOSED, XM_STANDING_CUT,
                                       XM_STANDING_OUT};
    static const bool chosen[] = {true, true, false, false, false, false, false};

    ck_assert_int_eq(xm_quorum_others(7, standing, host, chosen), 2);
}
END_TEST

/* Whole hosts that are cut off, in a job as large as they get: the search has to stay small. */
START_TEST(large_groups_are_quick)
{
    enum { LARGE = 512, PER_HOST = 8 };
    uint8_t *all = calloc(LARGE, LARGE);
    const uint8_t *rows[LARGE];
    bool chosen[LARGE];
    int count = 0;

    ck_assert_ptr_nonnull(all);
    for (int r = 0; r < LARGE; ++r) {
        rows[r] = all + (size_t)r * LARGE;
        for (int s = 0; s < LARGE; ++s) {
            int a = r / PER_HOST, b = s / PER_HOST;

            /* Hosts 3 and 9 have lost each other, 20 has lost everybody. */
            if ((a == 3 && b == 9) || (a == 9 && b == 3) || ((a == 20) != (b == 20))) {
                all[(size_t)r * LARGE + (size_t)s] = XM_STANDING_CUT;
            }
        }
    }
    ck_assert_xm_ok(xm_quorum_choose(LARGE, 0, rows, chosen));
    for (int r = 0; r < LARGE; ++r) {
        count += chosen[r];
        ck_assert(!chosen[r] || r / PER_HOST != 20);
    }
    ck_assert_int_eq(count, LARGE - 2 * PER_HOST);
    free(all);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("quorum");
    TCase *tcase = tcase_create("groups");

    tcase_add_test(tcase, the_largest_set_is_chosen);
    tcase_add_test(tcase, who_says_nothing_has_no_vote);
    tcase_add_test(tcase, others_are_counted);
    tcase_add_test(tcase, large_groups_are_quick);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
