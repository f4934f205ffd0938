/* SPDX-License-Identifier: Apache-2.0 */
#include "resharding/flow/flow.h"

#include "tests/resharding/plan/random_case.h"
#include "xm_test.h"

enum { NODES = 8 };

/* Minimum cut by trying all sets that hold the source and not the sink. */
static int64_t smallest_cut(int64_t capacity[NODES][NODES])
{
    int64_t best = INT64_MAX;

    for (unsigned set = 0; set < 1u << NODES; ++set) {
        int64_t cut = 0;

        if ((set & 1) == 0 || (set >> (NODES - 1) & 1) != 0) {
            continue;
        }
        for (int a = 0; a < NODES; ++a) {
            for (int b = 0; b < NODES; ++b) {
                cut += (set >> a & 1) && !(set >> b & 1) ? capacity[a][b] : 0;
            }
        }
        best = cut < best ? cut : best;
    }
    return best;
}

START_TEST(flow_equals_the_smallest_cut)
{
    random_t random = {9};

    for (int i = 0; i < 1000; ++i) {
        int64_t capacity[NODES][NODES] = {{0}}, crossing = 0;
        xm_flow_t *flow;
        uint64_t value;

        ck_assert_xm_ok(xm_flow_create(NODES, &flow));
        for (int e = random_int(&random, 0, 40); e > 0; --e) {
            int a = random_int(&random, 0, NODES - 1), b = random_int(&random, 0, NODES - 1);
            int64_t c = random_int(&random, 0, 20);

            if (a != b) {
                ck_assert_xm_ok(xm_flow_add_edge(flow, a, b, c));
                capacity[a][b] += c;
            }
        }
        ck_assert_xm_ok(xm_flow_maximise(flow, 0, NODES - 1, &value));
        ck_assert_int_eq((int64_t)value, smallest_cut(capacity));
        for (int a = 0; a < NODES; ++a) {
            for (int b = 0; b < NODES; ++b) {
                crossing += xm_flow_on_source_side(flow, a) && !xm_flow_on_source_side(flow, b)
                                ? capacity[a][b]
                                : 0;
            }
        }
        ck_assert_int_eq(crossing, (int64_t)value);
        xm_flow_destroy(flow);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("flow");
    TCase *tcase = tcase_create("all");

    tcase_add_test(tcase, flow_equals_the_smallest_cut);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
