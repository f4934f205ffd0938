/* SPDX-License-Identifier: Apache-2.0 */
/* Searches of neighbourhoods, by themselves: what they find from where they are, in counted work.
 */
#include "planner/solver/local.h"

#include <string.h>

#include "xm_test.h"

enum {
    VARIABLES = 1500,
    DEGREE = 4,
    PATHS = 4,
    LENGTH = 16, /* of a path */
    CAPACITY = 10,
    APART = 1000, /* what a path costs whose variables are not all alike */
    SEEDS = 10
};
#define WORK INT64_C(50000000)

/* What a path uses when it is on, and what it costs to leave it off. */
static const struct {
    int usage, cost;
} paths[PATHS] = {{10, 100}, {5, 80}, {5, 80}, {5, 70}};

static uint64_t state;

static int random_below(int limit)
{
    return (int)((ap_cfn_random(&state) >> 33) % (uint64_t)limit);
}

/* Variables of two values, each linked with those at three distances. Four random paths are on or
 * off as a whole, have the usage at their one end and save costs at the other. All else stays off.
 */
static ap_cfn_core_t *make_core(int path[PATHS][LENGTH])
{
    const ap_cfn_core_size_t size = {.variables = VARIABLES,
                                     .links = VARIABLES * DEGREE,
                                     .times = 1,
                                     .values = 2 * VARIABLES,
                                     .segments = PATHS,
                                     .usages = 2 * PATHS,
                                     .cells = 4 * VARIABLES * DEGREE};
    static int of[VARIABLES], place[VARIABLES];
    ap_cfn_core_maker_t maker;

    for (int v = 0; v < VARIABLES; ++v) {
        of[v] = -1;
    }
    for (int p = 0; p < PATHS; ++p) {
        for (int k = 0; k < LENGTH; ++k) {
            int v = random_below(VARIABLES);

            while (of[v] >= 0) {
                v = (v + 1) % VARIABLES;
            }
            path[p][k] = v;
            of[v] = p;
            place[v] = k;
        }
    }
    ck_assert_xm_ok(ap_cfn_core_begin(&size, &maker));
    for (int v = 0; v < VARIABLES; ++v) {
        double *cost = ap_cfn_core_add_variable(&maker, 2);

        cost[0] = of[v] >= 0 && place[v] == 0 ? paths[of[v]].cost : 0;
        cost[1] = of[v] >= 0 ? 0 : APART;
        if (of[v] >= 0 && place[v] == LENGTH - 1) {
            double *usage = ap_cfn_core_add_segment(&maker, 0, 1);

            usage[0] = 0;
            usage[1] = paths[of[v]].usage;
        }
    }
    for (int p = 0; p < PATHS; ++p) {
        for (int k = 0; k + 1 < LENGTH; ++k) {
            int a = path[p][k], b = path[p][k + 1];
            double *table = ap_cfn_core_add_link(&maker, a < b ? a : b, a < b ? b : a);

            table[0] = table[3] = 0;
            table[1] = table[2] = APART;
        }
    }
    for (int k = 1; k < DEGREE; ++k) {
        int distance = k * 100 + random_below(100);

        for (int v = 0; v < VARIABLES; ++v) {
            int other = (v + distance) % VARIABLES;

            if (of[v] < 0 || of[v] != of[other]) {
                double *table =
                    ap_cfn_core_add_link(&maker, v < other ? v : other, v < other ? other : v);

                table[0] = table[1] = table[2] = 0;
                table[3] = 1;
            }
        }
    }
    maker.capacity[0] = CAPACITY;
    maker.when[0] = 0;
    return ap_cfn_core_finish(&maker);
}

static void turn_on(int value[VARIABLES], const int path[LENGTH])
{
    for (int k = 0; k < LENGTH; ++k) {
        value[path[k]] = 1;
    }
}

/* The first path has taken all the room, and the second and third would make more of it. The dual
 * has them on, and the fourth as well, which does not fit. No ball around a variable has three
 * whole paths in it. */
START_TEST(pieces_are_exchanged_together)
{
    for (int seed = 0; seed < SEEDS; ++seed) {
        int path[PATHS][LENGTH], value[VARIABLES] = {0}, dual[VARIABLES] = {0};
        const double price = 15;
        ap_cfn_search_t *search;
        ap_cfn_shared_t shared;
        ap_cfn_core_t *core;
        double bad, best;

        state = (uint64_t)seed + 1;
        core = make_core(path);
        turn_on(value, path[1]);
        turn_on(value, path[2]);
        best = ap_cfn_core_cost(core, value);
        memset(value, 0, sizeof(value));
        turn_on(value, path[0]);
        bad = ap_cfn_core_cost(core, value);
        ck_assert_double_gt(bad, best);
        for (int p = 1; p < PATHS; ++p) {
            turn_on(dual, path[p]);
        }
        ck_assert_xm_ok(ap_cfn_shared_create(core, INT64_MAX, &shared));
        shared.counted = shared.warm = true;
        shared.most = INT64_MAX;
        (void)ap_cfn_shared_offer(&shared, value, bad);
        ap_cfn_shared_raise(&shared, 0);
        ap_cfn_shared_publish(&shared, &price, dual);
        ck_assert_xm_ok(ap_cfn_search_create(&shared, (uint64_t)seed, &search));
        ck_assert_xm_ok(ap_cfn_search_run(search, WORK));
        ck_assert_double_eq(shared.cost, best);
        ap_cfn_search_destroy(search);
        ap_cfn_shared_destroy(&shared);
        ap_cfn_core_destroy(core);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cfn_search");
    TCase *all = tcase_create("all");

    tcase_set_timeout(all, 120);
    tcase_add_test(all, pieces_are_exchanged_together);
    suite_add_tcase(suite, all);
    return xm_test_run(suite);
}
