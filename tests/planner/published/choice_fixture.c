/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/planner/published/choice_fixture.h"

#include <math.h>
#include <string.h>

#include "tests/planner/cost/profile_fixture.h"
#include "xm_test.h"

static ap_choice_variable_t random_variable(choice_fixture_t *fixture, int v)
{
    int domain = 1 + (int)(fixture_random(&fixture->random) % 5);

    for (int x = 0; x < domain; ++x) {
        fixture->seconds[v][x] = 1 + fixture_random(&fixture->random) % 20;
        fixture->bytes[v][x] = 1 + fixture_random(&fixture->random) % 20;
        for (int a = 0; a < AP_CHOICE_LEVELS; ++a) {
            fixture->part[v][x * AP_CHOICE_LEVELS + a] =
                x == 0 || a > 1 ? 0 : (uint8_t)(fixture_random(&fixture->random) % 3);
        }
    }
    return (ap_choice_variable_t){domain, fixture->seconds[v], fixture->bytes[v], fixture->part[v]};
}

static void connect(choice_fixture_t *fixture, int variables, int (*ends)[2], int edges)
{
    ap_choice_variable_t variable[CHOICE_VARIABLES];
    ap_choice_edge_t edge[CHOICE_EDGES];

    for (int v = 0; v < variables; ++v) {
        variable[v] = random_variable(fixture, v);
    }
    for (int e = 0; e < edges; ++e) {
        edge[e] = (ap_choice_edge_t){ends[e][0], ends[e][1], fixture->table[e]};
        for (int i = 0; i < variable[ends[e][0]].domain * variable[ends[e][1]].domain; ++i) {
            fixture->table[e][i] = fixture_random(&fixture->random) % 15;
        }
    }
    ck_assert_xm_ok(ap_choice_network_create(variable, variables, edge, edges, &fixture->network));
}

void choice_fixture_random(choice_fixture_t *fixture, unsigned seed, int more)
{
    int ends[CHOICE_EDGES][2], edges = 0, variables;

    memset(fixture, 0, sizeof(*fixture));
    fixture->random = seed;
    variables = 2 + (int)(fixture_random(&fixture->random) % 6);
    for (int v = 1; v < variables; ++v, ++edges) {
        ends[edges][0] = (int)(fixture_random(&fixture->random) % (unsigned)v);
        ends[edges][1] = v;
    }
    for (int i = 0; i < more; ++i, ++edges) {
        int a = (int)(fixture_random(&fixture->random) % (unsigned)variables);

        ends[edges][0] = a;
        ends[edges][1] =
            (a + 1 + (int)(fixture_random(&fixture->random) % (unsigned)(variables - 1))) %
            variables;
    }
    connect(fixture, variables, ends, edges);
}

void choice_fixture_residual(choice_fixture_t *fixture, unsigned seed)
{
    int ends[][2] = {{0, 1}, {1, 2}, {2, 3}, {0, 3}, {3, 4}, {4, 5}, {5, 6}, {3, 6}};

    memset(fixture, 0, sizeof(*fixture));
    fixture->random = seed;
    connect(fixture, 7, ends, 8);
}

bool choice_fixture_next(const ap_choice_network_t *network, int *assignment)
{
    for (int v = network->core->variables - 1; v >= 0; --v) {
        if (++assignment[v] < network->core->variable[v].size) {
            return true;
        }
        assignment[v] = 0;
    }
    return false;
}

double choice_fixture_least(const ap_choice_network_t *network)
{
    int assignment[CHOICE_VARIABLES] = {0};
    double least = INFINITY;

    do {
        least = fmin(least, ap_choice_network_seconds(network, assignment));
    } while (choice_fixture_next(network, assignment));
    return least;
}
