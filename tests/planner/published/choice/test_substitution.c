/* SPDX-License-Identifier: Apache-2.0 */
/* The search over substitutions against trying all that moves can reach. */
#include "planner/published/choice/substitution.h"

#include <math.h>
#include <string.h>

#include "tests/planner/published/choice_fixture.h"
#include "xm_test.h"

enum { PARTS = 3, MOVES = CHOICE_VARIABLES * 2 * PARTS };

typedef struct moves {
    ap_choice_move_t move[MOVES];
    int variable[MOVES];
    bool fixed[CHOICE_VARIABLES];
    ap_choice_moves_t all;
} moves_t;

static uint8_t part(const ap_choice_network_t *network, int v, int value, int axis)
{
    return network->part[v][value * AP_CHOICE_LEVELS + axis];
}

/* Every variable by itself may do anything with either axis. */
static void list_moves(const ap_choice_network_t *network, moves_t *moves)
{
    int count = 0;

    for (int v = 0; v < network->core->variables; ++v) {
        moves->fixed[v] = true;
        for (int i = 0; i < 2 * PARTS; ++i) {
            moves->variable[count] = v;
            moves->move[count] = (ap_choice_move_t){i / PARTS, (uint8_t)(i % PARTS), count, 1};
            ++count;
        }
    }
    moves->all = (ap_choice_moves_t){count, moves->move, moves->variable, moves->fixed};
}

/* Marks the values that changing one axis after the other leads to; of values that do the same, the
 * cheapest. */
static void mark_reached(const ap_choice_network_t *network, int v, bool *reached)
{
    const ap_cfn_variable_t *of = &network->core->variable[v];
    bool more = true;

    memset(reached, 0, CHOICE_VALUES * sizeof(*reached));
    reached[0] = true;
    while (more) {
        more = false;
        for (int m = 0; m < of->size * 2 * PARTS; ++m) {
            int from = m / (2 * PARTS), axis = m / PARTS % 2, to = -1;

            for (int x = 0; x < of->size && reached[from]; ++x) {
                if (part(network, v, x, axis) == m % PARTS &&
                    part(network, v, x, 1 - axis) == part(network, v, from, 1 - axis) &&
                    (to < 0 || of->cost[x] < of->cost[to])) {
                    to = x;
                }
            }
            more = more || (to >= 0 && !reached[to]);
            if (to >= 0) {
                reached[to] = true;
            }
        }
    }
}

static double least_reached(const ap_choice_network_t *network)
{
    bool reached[CHOICE_VARIABLES][CHOICE_VALUES];
    int assignment[CHOICE_VARIABLES] = {0};
    double least = INFINITY;

    for (int v = 0; v < network->core->variables; ++v) {
        mark_reached(network, v, reached[v]);
    }
    do {
        bool within = true;

        for (int v = 0; v < network->core->variables; ++v) {
            within = within && reached[v][assignment[v]];
        }
        least = within ? fmin(least, ap_choice_network_seconds(network, assignment)) : least;
    } while (choice_fixture_next(network, assignment));
    return least;
}

START_TEST(finds_the_best_that_moves_reach)
{
    int better = 0, greedy_is_worse = 0;

    for (unsigned seed = 1; seed <= 60; ++seed) {
        ap_substitution_params_t params = {.budget = 4000, .alpha = 100};
        choice_fixture_t f;
        moves_t moves;
        int found[CHOICE_VARIABLES] = {0}, greedy[CHOICE_VARIABLES] = {0},
            start[CHOICE_VARIABLES] = {0};
        double least;

        choice_fixture_random(&f, seed, 2);
        list_moves(f.network, &moves);
        least = least_reached(f.network);
        ck_assert_xm_ok(
            ap_search_substitution(f.network->core, f.network->part, &moves.all, &params, found));
        ck_assert_double_eq(ap_choice_network_seconds(f.network, found), least);
        params.alpha = 1;
        ck_assert_xm_ok(
            ap_search_substitution(f.network->core, f.network->part, &moves.all, &params, greedy));
        ck_assert_double_ge(ap_choice_network_seconds(f.network, greedy), least);
        ck_assert_double_le(ap_choice_network_seconds(f.network, greedy),
                            ap_choice_network_seconds(f.network, start));
        better += least < ap_choice_network_seconds(f.network, start);
        greedy_is_worse += ap_choice_network_seconds(f.network, greedy) > least;
        ap_choice_network_destroy(f.network);
    }
    ck_assert_int_gt(better, 30);
    ck_assert_int_gt(greedy_is_worse, 0); /* or alpha would be of no use */
}
END_TEST

START_TEST(refuses_an_alpha_below_one)
{
    ap_substitution_params_t params = {.budget = 1, .alpha = 0.5};
    choice_fixture_t f;
    moves_t moves;
    int assignment[CHOICE_VARIABLES] = {0};

    choice_fixture_random(&f, 1, 0);
    list_moves(f.network, &moves);
    ck_assert_int_eq(
        ap_search_substitution(f.network->core, f.network->part, &moves.all, &params, assignment),
        XM_ERR_INVALID_ARGUMENT);
    ap_choice_network_destroy(f.network);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("substitution");
    TCase *tcase = tcase_create("search");

    tcase_add_test(tcase, finds_the_best_that_moves_reach);
    tcase_add_test(tcase, refuses_an_alpha_below_one);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
