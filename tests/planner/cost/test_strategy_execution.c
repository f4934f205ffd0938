/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strategies checked by running them: every device computes an einsum on its tiles of the operands;
 * summed over the axes that the strategy calls partial, the results must be the tiles of the whole
 * einsum that the strategy promises.
 */
#include "tests/planner/cost/profile_fixture.h"

#include "planner/cost/strategy.h"

enum { MAX_ELEMENTS = 4096, MOST_DEVICES = 16 };

/* The logical meshes that every rule is tried on. */
typedef struct shape {
    int rank, devices;
    int size[AP_MAX_MESH_RANK];
} shape_t;

static const shape_t meshes[] = {
    {1, 8, {8}}, {2, 8, {2, 4}}, {2, 8, {4, 2}}, {3, 8, {2, 2, 2}}, {4, 16, {2, 2, 2, 2}}};

static int64_t elements(const ap_shape_t *shape)
{
    int64_t count = 1;

    for (int d = 0; d < shape->rank; ++d) {
        count *= shape->dims[d];
    }
    return count;
}

/* Where a device is on an axis; devices are numbered row-major. */
static int position_of(const shape_t *mesh, int device, int axis)
{
    for (int a = mesh->rank - 1; a > axis; --a) {
        device /= mesh->size[a];
    }
    return device % mesh->size[axis];
}

/* Index of the block of a dimension that a device holds: the axes ascending, major first. */
static int64_t block_of(const shape_t *mesh, unsigned axes, int device)
{
    int64_t block = 0;

    for (int a = 0; a < mesh->rank; ++a) {
        if ((axes >> a & 1U) != 0) {
            block = block * mesh->size[a] + position_of(mesh, device, a);
        }
    }
    return block;
}

/* Elements of a block, the last ones shorter or empty. */
static int64_t block_size(const shape_t *mesh, unsigned axes, int64_t extent)
{
    int64_t shards = 1;

    for (int a = 0; a < mesh->rank; ++a) {
        shards *= (axes >> a & 1U) != 0 ? mesh->size[a] : 1;
    }
    return (extent + shards - 1) / shards;
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
        if (extent[i] == 0) {
            return; /* nothing but padding */
        }
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
static void device_box(const shape_t *mesh, const ap_sharding_rule_t *rule,
                       const ap_strategy_t *strategy, int device, int64_t *origin, int64_t *extent)
{
    for (int f = 0; f < rule->factors; ++f) {
        extent[f] = rule->factor[f].size;
        origin[f] = 0;
    }
    for (int o = 0; o < rule->operands; ++o) {
        for (int d = 0; d < rule->rank[o]; ++d) {
            unsigned axes = ap_spec_axes(strategy->spec[o], d);
            int f = rule->dim[o][d].factor[0];
            int64_t size = block_size(mesh, axes, rule->factor[f].size), left;

            origin[f] = size * block_of(mesh, axes, device);
            left = rule->factor[f].size - origin[f];
            extent[f] = left < 0 ? 0 : left < size ? left : size;
        }
    }
}

static bool in_tile(const shape_t *mesh, const ap_shape_t *shape, ap_spec_t spec, int device,
                    int64_t index)
{
    for (int d = shape->rank - 1; d >= 0; --d) {
        unsigned axes = ap_spec_axes(spec, d);
        int64_t size = block_size(mesh, axes, shape->dims[d]), at = index % shape->dims[d];

        if (at / size != block_of(mesh, axes, device)) {
            return false;
        }
        index /= shape->dims[d];
    }
    return true;
}

/* Same coordinates on all axes outside `axes`. */
static bool same_group(const shape_t *mesh, int a, int b, unsigned axes)
{
    for (int axis = 0; axis < mesh->rank; ++axis) {
        if ((axes >> axis & 1U) == 0 && position_of(mesh, a, axis) != position_of(mesh, b, axis)) {
            return false;
        }
    }
    return true;
}

static void check_strategy(const shape_t *mesh, const ap_sharding_rule_t *rule,
                           const ap_strategy_t *strategy, double operands[][MAX_ELEMENTS],
                           const double *whole)
{
    static double local[MOST_DEVICES][MAX_ELEMENTS];
    ap_shape_t shape = ap_sharding_rule_shape(rule, rule->operands);
    int64_t count = elements(&shape), origin[AP_MAX_FACTORS], extent[AP_MAX_FACTORS], held = 0;

    memset(local, 0, sizeof(local));
    for (int device = 0; device < mesh->devices; ++device) {
        device_box(mesh, rule, strategy, device, origin, extent);
        einsum(rule, operands, origin, extent, local[device]);
    }
    for (int device = 0; device < mesh->devices; ++device) {
        for (int64_t i = 0; i < count; ++i) {
            double sum = 0;

            if (!in_tile(mesh, &shape, strategy->spec[rule->operands], device, i)) {
                continue;
            }
            for (int other = 0; other < mesh->devices; ++other) {
                sum += same_group(mesh, device, other, strategy->partial[0]) ? local[other][i] : 0;
            }
            ck_assert_double_eq_tol(sum, whole[i], 1e-9);
            ++held;
        }
    }
    ck_assert_int_ge(held, count); /* somebody has every element */
}

/* Rules, their operands, and what a factor's extents are on meshes that cut unevenly. */
static const struct {
    const char *rule;
    ap_shape_t operands[2];
    int count;
    bool uneven;
} cases[] = {
    {"bik,bkj->bij", {{3, {8, 2, 4}}, {3, {8, 4, 8}}}, 2, false},
    {"bsh,hne->bsne", {{3, {4, 2, 8}}, {3, {8, 4, 3}}}, 2, false},
    {"bsne,hne->bsh", {{4, {4, 2, 4, 2}}, {3, {8, 4, 2}}}, 2, false},
    {"bn,bk->kn", {{2, {8, 8}}, {2, {8, 16}}}, 2, false},
    {"bsnd,btnd->bnst", {{4, {2, 4, 4, 2}}, {4, {2, 8, 4, 2}}}, 2, false},
    {"bsne->ne", {{4, {4, 4, 8, 2}}, {0, {0}}}, 1, false},
    {"bs->", {{2, {8, 8}}, {0, {0}}}, 1, false},
    {"bik,bkj->bij", {{3, {5, 3, 11}}, {3, {5, 11, 7}}}, 2, true},
    {"bn,bk->kn", {{2, {13, 9}}, {2, {13, 11}}}, 2, true},
    {"bsh,hne->bsne", {{3, {3, 2, 10}}, {3, {10, 5, 3}}}, 2, true},
    {"bs->b", {{2, {11, 23}}, {0, {0}}}, 1, true},
    {"bs,s->bs", {{2, {15, 17}}, {1, {17}}}, 2, true},
};

enum { CASES = sizeof(cases) / sizeof(cases[0]), MESHES = sizeof(meshes) / sizeof(meshes[0]) };

/* Every strategy of a case on a mesh; returns how many of them pad. */
static int check_case(int which, const shape_t *shape)
{
    const ap_strategy_options_t options = {.scatter = true};
    ap_alpa_params_t alpa = AP_ALPA_PARAMS_INIT;
    static double operands[2][MAX_ELEMENTS], whole[MAX_ELEMENTS];
    const int64_t origin[AP_MAX_FACTORS] = {0};
    int64_t extent[AP_MAX_FACTORS];
    ap_strategy_context_t site = {0};
    ap_sharding_rule_t rule;
    ap_strategy_list_t list;
    ap_cost_model_t *model;
    ap_cost_mesh_t *mesh;
    unsigned seed = 5;
    int padded = 0;

    ck_assert_xm_ok(ap_cost_model_create_alpa(&alpa, &model));
    ck_assert_xm_ok(ap_cost_mesh_create(model, 1, shape->devices, shape->size, shape->rank, &mesh));
    if (cases[which].uneven) {
        ap_cost_mesh_allow_uneven(mesh);
    }
    ck_assert_xm_ok(ap_sharding_rule_create(cases[which].rule, NULL, NULL, NULL,
                                            cases[which].operands, cases[which].count, &rule));
    for (int o = 0; o < rule.operands; ++o) {
        for (int64_t i = 0; i < elements(&cases[which].operands[o]); ++i) {
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
    ck_assert_int_gt(list.count, 1);
    /* Of the many on four axes one in seven, which meets every choice of each axis. */
    for (int s = 0; s<list.count; s += shape->rank> 3 ? 7 : 1) {
        double devices = 1;

        check_strategy(shape, &rule, &list.items[s], operands, whole);
        for (int f = 0; f < rule.factors; ++f) {
            devices *= ap_cost_mesh_devices(mesh, list.items[s].axes[f]);
        }
        /* Padding is work too. */
        ck_assert_double_le(list.items[s].devices, devices * (1 + 1e-12));
        padded += list.items[s].devices < devices * (1 - 1e-12);
    }
    ap_strategy_list_free(&list);
    ap_cost_mesh_destroy(mesh);
    ap_cost_model_destroy(model);
    return padded;
}

START_TEST(every_strategy_computes_the_einsum)
{
    int padded = 0;

    for (int m = 0; m < MESHES; ++m) {
        padded += check_case(_i, &meshes[m]);
    }
    ck_assert((padded > 0) == cases[_i].uneven);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("strategy_execution");
    TCase *tcase = tcase_create("all");

    tcase_add_loop_test(tcase, every_strategy_computes_the_einsum, 0, CASES);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
