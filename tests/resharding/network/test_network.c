/* SPDX-License-Identifier: Apache-2.0 */
#include "resharding/network.h"

#include "xm_test.h"

enum { RANKS = 9 };

/* Hosts of four, two and three ranks, not in order. */
static const int host_of_rank[RANKS] = {0, 1, 0, 2, 0, 0, 2, 1, 2};
static const double host_egress[] = {8e9, 6e9, 4e9}, host_ingress[] = {4e9, 9e9, 4e9};

static xm_network_params_t make(int nics, const double *weights)
{
    xm_network_params_t params = XM_NETWORK_PARAMS_INIT;

    params.ranks = RANKS;
    params.host_of_rank = host_of_rank;
    params.egress = host_egress;
    params.ingress = host_ingress;
    params.host_bandwidth = 1e10;
    params.nics_per_host = nics;
    params.nic_weights = weights;
    return params;
}

/* Rates by rail, said by hand; ranks of one entry share a rail. */
typedef struct {
    int nics;
    double weights[4]; /* all 0: none given */
    int rails;
    int rail[RANKS];
    double egress[RANKS], ingress[RANKS];
} row_t;

static const row_t rows[] = {
    {0, {0}, 3, {0, 1, 0, 2, 0, 0, 2, 1, 2}, {8e9, 6e9, 4e9}, {4e9, 9e9, 4e9}},
    {1, {0}, 3, {0, 1, 0, 2, 0, 0, 2, 1, 2}, {8e9, 6e9, 4e9}, {4e9, 9e9, 4e9}},
    /* Two NICs: the ranks of a host take them in turn. */
    {2,
     {0},
     6,
     {0, 2, 1, 4, 0, 1, 5, 3, 4},
     {4e9, 4e9, 3e9, 3e9, 2e9, 2e9},
     {2e9, 2e9, 4.5e9, 4.5e9, 2e9, 2e9}},
    {2,
     {1, 3},
     6,
     {0, 2, 1, 4, 0, 1, 5, 3, 4},
     {2e9, 6e9, 1.5e9, 4.5e9, 1e9, 3e9},
     {1e9, 3e9, 2.25e9, 6.75e9, 1e9, 3e9}},
    /* Four NICs: the two ranks of host 1 have two each, and of the three of host 2 the first has.
     */
    {4,
     {0},
     9,
     {0, 4, 1, 6, 2, 3, 7, 5, 8},
     {2e9, 2e9, 2e9, 2e9, 3e9, 3e9, 2e9, 1e9, 1e9},
     {1e9, 1e9, 1e9, 1e9, 4.5e9, 4.5e9, 2e9, 1e9, 1e9}},
    {4,
     {1, 2, 3, 4},
     9,
     {0, 4, 1, 6, 2, 3, 7, 5, 8},
     {8e8, 16e8, 24e8, 32e8, 24e8, 36e8, 2e9, 8e8, 12e8},
     {4e8, 8e8, 12e8, 16e8, 36e8, 54e8, 2e9, 8e8, 12e8}},
};

START_TEST(nics_are_dealt_to_the_ranks_of_a_host_in_turn)
{
    const row_t *row = &rows[_i];
    xm_network_params_t params = make(row->nics, row->weights[0] > 0 ? row->weights : NULL);
    xm_network_t *network;

    ck_assert_xm_ok(xm_network_create(&params, &network));
    ck_assert_int_eq(xm_network_rails(network), row->rails);
    for (int r = 0; r < RANKS; ++r) {
        ck_assert_int_eq(xm_network_rail_of(network, r), row->rail[r]);
    }
    for (int r = 0; r < row->rails; ++r) {
        ck_assert_double_eq_tol(xm_network_rail_egress(network, r), row->egress[r], 1);
        ck_assert_double_eq_tol(xm_network_rail_ingress(network, r), row->ingress[r], 1);
    }
    for (int h = 0; h < 3; ++h) {
        ck_assert_double_eq_tol(xm_network_egress(network, h), host_egress[h], 1);
        ck_assert_double_eq_tol(xm_network_ingress(network, h), host_ingress[h], 1);
    }
    xm_network_destroy(network);
}
END_TEST

START_TEST(nics_that_cannot_be_are_refused)
{
    const double weights[] = {1, -1};
    xm_network_params_t params = make(-1, NULL);
    xm_network_t *network;

    ck_assert_xm_fails(xm_network_create(&params, &network), XM_ERR_INVALID_ARGUMENT,
                       "-1 NICs a host; from 0 to 65536 can be told of");
    params = make(2, weights);
    ck_assert_xm_fails(xm_network_create(&params, &network), XM_ERR_INVALID_ARGUMENT,
                       "NIC 1 of every host has the weight -1, which is not positive");
    params = make(2, NULL);
    params.rail_of_rank = host_of_rank;
    ck_assert_xm_fails(xm_network_create(&params, &network), XM_ERR_INVALID_ARGUMENT,
                       "nics_per_host and rails both say which NICs ranks have; give one");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("network");
    TCase *tcase = tcase_create("all");

    tcase_add_loop_test(tcase, nics_are_dealt_to_the_ranks_of_a_host_in_turn, 0,
                        sizeof(rows) / sizeof(rows[0]));
    tcase_add_test(tcase, nics_that_cannot_be_are_refused);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
