/*
 * Strategies checked by running them: every device computes an einsum on its tiles of the operands;
 * summed over the axes that the strategy calls partial, the results must be the tiles of the whole
 * einsum that the strategy promises.
 */
#include "profile_fixture.h"

#include "planner/strategy.h"

enum { MAX_ELEMENTS = 4096, DEVICES = 8 };

static const int mesh_shape[] = {2, 4};

static int64_t elements(const ap_shape_t *shape)
{
    int64_t count = 1;

    for (int d = 0; d < shape->rank; ++d) {
        count *= shape->dims[d];
    }
    return count;
}

/* Index of the block of a dimension that a device holds: the axes ascending, major first. */
static int64_t block_of(unsigned axes, int device)
{
    const int position[] = {device / mesh_shape[1], device % mesh_shape[1]};
    int64_t block = 0;

    for (int a = 0; a < 2; ++a) {
        block = (axes >> a & 1U) != 0 ? block * mesh_shape[a] + position[a] : block;
    }
    return block;
}

static int64_t shards_of(unsigned axes)
{
    return ((axes & 1U) != 0 ? mesh_shape[0] : 1) * ((axes & 2U) != 0 ? mesh_shape[1] : 1);
}

/* Flat index of a term's element at a point of the iteration space. */
static int64_t index_at(const ap_sharding_rule_t *rule, int term, const int64_t *point,
                        const int64_t *sizes)
{
    int64_t index = 0;

    for (int d = 0; d < rule->rank[term]; ++d) {
        int f = rule->dim[term][d].factor[0];

        index = index * sizes[f] + point[f];
    }
    return index;
}

/* Sums the product of all operands over the box of factors [origin, origin + extent). */
static void einsum(const ap_sharding_rule_t *rule, double operands[][MAX_ELEMENTS],
                   const int64_t *origin, const int64_t *extent, double *result)
{
    int64_t sizes[AP_MAX_FACTORS], point[AP_MAX_FACTORS];
    int f = 0;

    for (int i = 0; i < rule->factors; ++i) {
        sizes[i] = rule->factor[i].size;
        point[i] = origin[i];
    }
    while (f < rule->factors) {
        double product = 1;

        for (int o = 0; o < rule->operands; ++o) {
            product *= operands[o][index_at(rule, o, point, sizes)];
        }
        result[index_at(rule, rule->operands, point, sizes)] += product;
        for (f = 0; f < rule->factors && ++point[f] == origin[f] + extent[f]; ++f) {
            point[f] = origin[f];
        }
    }
}

/* The box of the iteration space that a device's operand tiles cover. */
static void device_box(const ap_sharding_rule_t *rule, const ap_strategy_t *strategy, int device,
                       int64_t *origin, int64_t *extent)
{
    for (int f = 0; f < rule->factors; ++f) {
        extent[f] = rule->factor[f].size;
        origin[f] = 0;
    }
    for (int o = 0; o < rule->operands; ++o) {
        for (int d = 0; d < rule->rank[o]; ++d) {
            unsigned axes = ap_spec_axes(strategy->spec[o], d);
            int f = rule->dim[o][d].factor[0];

            extent[f] = rule->factor[f].size / shards_of(axes);
            origin[f] = extent[f] * block_of(axes, device);
        }
    }
}

static bool in_tile(const ap_shape_t *shape, ap_spec_t spec, int device, int64_t index)
{
    for (int d = shape->rank - 1; d >= 0; --d) {
        unsigned axes = ap_spec_axes(spec, d);
        int64_t size = shape->dims[d] / shards_of(axes), at = index % shape->dims[d];

        if (at / size != block_of(axes, device)) {
            return false;
        }
        index /= shape->dims[d];
    }
    return true;
}

/* Same coordinates on all axes outside `axes`. */
static bool same_group(int a, int b, unsigned axes)
{
    return ((axes & 1U) != 0 || a / mesh_shape[1] == b / mesh_shape[1]) &&
           ((axes & 2U) != 0 || a % mesh_shape[1] == b % mesh_shape[1]);
}

static void check_strategy(const ap_sharding_rule_t *rule, const ap_strategy_t *strategy,
                           double operands[][MAX_ELEMENTS], const double *whole)
{
    static double local[DEVICES][MAX_ELEMENTS];
    ap_shape_t shape = ap_sharding_rule_shape(rule, rule->operands);
    int64_t count = elements(&shape), origin[AP_MAX_FACTORS], extent[AP_MAX_FACTORS];

    memset(local, 0, sizeof(local));
    for (int device = 0; device < DEVICES; ++device) {
        device_box(rule, strategy, device, origin, extent);
        einsum(rule, operands, origin, extent, local[device]);
    }
    for (int device = 0; device < DEVICES; ++device) {
        for (int64_t i = 0; i < count; ++i) {
            double sum = 0;

            if (!in_tile(&shape, strategy->spec[rule->operands], device, i)) {
                continue;
            }
            for (int other = 0; other < DEVICES; ++other) {
                sum += same_group(device, other, strategy->partial[0]) ? local[other][i] : 0;
            }
            ck_assert_double_eq_tol(sum, whole[i], 1e-9);
        }
    }
}

START_TEST(every_strategy_computes_the_einsum)
{
    static const struct {
        const char *rule;
        ap_shape_t operands[2];
        int count;
    } cases[] = {
        {"bik,bkj->bij", {{3, {8, 2, 4}}, {3, {8, 4, 8}}}, 2},
        {"bsh,hne->bsne", {{3, {4, 2, 8}}, {3, {8, 4, 3}}}, 2},
        {"bsne,hne->bsh", {{4, {4, 2, 4, 2}}, {3, {8, 4, 2}}}, 2},
        {"bn,bk->kn", {{2, {8, 8}}, {2, {8, 16}}}, 2},
        {"bsnd,btnd->bnst", {{4, {2, 4, 4, 2}}, {4, {2, 8, 4, 2}}}, 2},
        {"bsne->ne", {{4, {4, 4, 8, 2}}, {0, {0}}}, 1},
        {"bs->", {{2, {8, 8}}, {0, {0}}}, 1},
    };
    const ap_strategy_options_t options = {0};
    ap_alpa_params_t alpa = AP_ALPA_PARAMS_INIT;
    static double operands[2][MAX_ELEMENTS], whole[MAX_ELEMENTS];
    const int64_t origin[AP_MAX_FACTORS] = {0};
    int64_t extent[AP_MAX_FACTORS];
    ap_strategy_site_t site = {0};
    ap_sharding_rule_t rule;
    ap_strategy_list_t list;
    ap_cost_model_t *model;
    ap_cost_mesh_t *mesh;
    unsigned seed = 5;

    ck_assert_xm_ok(ap_cost_model_create_alpa(&alpa, &model));
    ck_assert_xm_ok(ap_cost_mesh_create(model, 2, 4, mesh_shape, 2, &mesh));
    ck_assert_xm_ok(ap_sharding_rule_create(cases[_i].rule, NULL, NULL, NULL, cases[_i].operands,
                                            cases[_i].count, &rule));
    for (int o = 0; o < rule.operands; ++o) {
        for (int64_t i = 0; i < elements(&cases[_i].operands[o]); ++i) {
            operands[o][i] = fixture_random(&seed) % 17;
        }
    }
    for (int f = 0; f < rule.factors; ++f) {
        extent[f] = rule.factor[f].size;
    }
    memset(whole, 0, sizeof(whole));
    einsum(&rule, operands, origin, extent, whole);
    site.rule = &rule;
    site.mesh = mesh;
    ck_assert_xm_ok(ap_strategy_enumerate(&site, &options, &list));
    ck_assert_int_gt(list.count, 3);
    for (int s = 0; s < list.count; ++s) {
        check_strategy(&rule, &list.items[s], operands, whole);
    }
    ap_strategy_list_free(&list);
    ap_cost_mesh_destroy(mesh);
    ap_cost_model_destroy(model);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("strategy_execution");
    TCase *tcase = tcase_create("all");

    tcase_add_loop_test(tcase, every_strategy_computes_the_einsum, 0, 7);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
