/* SPDX-License-Identifier: Apache-2.0 */
/* Random small problems: the plan that the search chooses against all plans that there are, each
 * simulated. Nothing is left out by any bound of the search: stages are tried on all places of all
 * orders of the hosts, in all logical shapes, with all specs at their ends. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/plan/schedule.h"
#include "planner/search/case.h"
#include "planner/search/planner.h"
#include "tests/planner/search/planner_fixture.h"
#include "xm_test.h"

enum { LAYERS = 6, HOSTS = 4, DEVICES = 8, PLACES = 8, SPECS = 9, MODES = 2, SHAPES = 12 };

static const ap_schedule_kind_t kinds[] = {
    AP_SCHEDULE_1F1B,         AP_SCHEDULE_GPIPE,  AP_SCHEDULE_EAGER_1F1B,
    AP_SCHEDULE_EAGER_1F1B_W, AP_SCHEDULE_ZB_H1,  AP_SCHEDULE_ZB_H2,
    AP_SCHEDULE_PIPEDREAM_2BW};

enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

static uint32_t next_random(uint64_t *state, uint32_t limit)
{
    *state = *state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(*state >> 33) % limit;
}

typedef struct problem {
    ap_planner_params_t params;
    ap_graph_t *graph;
    xm_cluster_profile_t *profile;
    int hosts, devices;
    int64_t counts[2];
    bool skips;
} problem_t;

static int add_tensor(ap_graph_t *graph, ap_tensor_kind_t kind, const char *name, int64_t rows,
                      int64_t columns)
{
    const ap_shape_t shape = {2, {rows, columns}};
    int tensor;

    ck_assert_xm_ok(ap_graph_add_tensor(graph, name, kind, &shape, AP_DTYPE_F32, &tensor));
    return tensor;
}

static int add_op(ap_graph_t *graph, ap_op_kind_t kind, const char *name, const char *rule, int a,
                  int b)
{
    ap_op_params_t op = AP_OP_PARAMS_INIT;
    int result;

    op.kind = kind;
    op.name = name;
    op.rule = rule;
    op.operand_count = 2;
    op.operands[0] = a;
    op.operands[1] = b;
    op.result_dtype = AP_DTYPE_F32;
    op.flops_per_point = kind == AP_OP_EINSUM ? 2 : 1;
    op.linear = kind != AP_OP_EINSUM;
    ck_assert_xm_ok(ap_graph_add_op(graph, &op, &result));
    return result;
}

/* Layers of one or two products of matrices each; some add what an earlier layer has made. */
static ap_graph_t *random_graph(uint64_t *state, int layers, bool skips)
{
    static const int64_t widths[] = {64, 128, 256, 512};
    int64_t width = widths[next_random(state, 4)], outer = widths[next_random(state, 4)];
    int made[LAYERS], x;
    ap_graph_t *graph;

    ck_assert_xm_ok(ap_graph_create("random", &graph));
    x = add_tensor(graph, AP_TENSOR_INPUT, "x", 64, width);
    for (int layer = 0; layer < layers; ++layer) {
        int64_t middle = next_random(state, 2) == 0 ? width : widths[next_random(state, 4)];
        char name[32];

        ck_assert_xm_ok(ap_graph_set_layer(graph, layer));
        (void)snprintf(name, sizeof(name), "w%d", layer);
        x = add_op(graph, AP_OP_EINSUM, "up", "bk,kn->bn", x,
                   add_tensor(graph, AP_TENSOR_PARAMETER, name, width, middle));
        (void)snprintf(name, sizeof(name), "v%d", layer);
        width = next_random(state, 3) == 0 ? outer : width;
        x = add_op(graph, AP_OP_EINSUM, "down", "bk,kn->bn", x,
                   add_tensor(graph, AP_TENSOR_PARAMETER, name, middle, width));
        for (int from = 0; skips && from + 1 < layer; ++from) {
            if (next_random(state, 2) == 0 &&
                ap_graph_tensor(graph, made[from])->shape.dims[1] == width) {
                x = add_op(graph, AP_OP_ELEMENTWISE, "add", "bn,bn->bn", x, made[from]);
            }
        }
        made[layer] = x;
    }
    ck_assert_xm_ok(ap_graph_set_loss(graph, x, true));
    ck_assert_xm_ok(ap_graph_finish(graph));
    return graph;
}

/* Clusters of up to eight devices whose NICs differ. */
static void make_problem(problem_t *problem, int index)
{
    static const int clusters[][2] = {{1, 2}, {2, 1}, {2, 2}, {3, 1}, {1, 4}, {4, 1}, {2, 4},
                                      {4, 2}, {3, 2}, {2, 3}, {1, 8}};
    static const double rates[] = {1e9, 1e9, 3e8, 1e8, 2e7};
    static const double speeds[] = {1.0, 1.0, 1.0, 0.5};
    uint64_t state = 0x9e3779b97f4a7c15ULL * (uint64_t)(unsigned)(index + 1);
    const int *cluster;
    double nics[HOSTS], shares[HOSTS];
    int layers;

    (void)next_random(&state, 2);
    (void)next_random(&state, 2);
    cluster = clusters[next_random(&state, sizeof(clusters) / sizeof(clusters[0]))];
    *problem = (problem_t){.params = AP_PLANNER_PARAMS_INIT,
                           .hosts = cluster[0],
                           .devices = cluster[1],
                           .skips = next_random(&state, 3) == 0};
    for (int h = 0; h < HOSTS; ++h) {
        nics[h] = rates[next_random(&state, 5)];
        shares[h] = speeds[next_random(&state, 4)];
    }
    layers = 2 + (int)next_random(&state, LAYERS - 1);
    problem->graph = random_graph(&state, layers, problem->skips);
    problem->profile = planner_fixture_unequal(problem->hosts, problem->devices, 64e9,
                                               next_random(&state, 3) == 0 ? shares : NULL, nics,
                                               0);
    problem->params.model = "random";
    problem->params.graph = problem->graph;
    problem->params.profile = problem->profile;
    problem->params.global_batch = 64 << next_random(&state, 2);
    problem->counts[0] = 1 << next_random(&state, 4);
    problem->counts[1] = 2 * problem->counts[0];
    problem->params.micro_batches = problem->counts;
    problem->params.micro_batch_count = 1 + next_random(&state, 2);
    problem->params.schedule = ap_schedule_name(kinds[index % KINDS]);
    problem->params.recompute = AP_RECOMPUTE_OFF;
    problem->params.all_devices = next_random(&state, 4) == 0;
}

static void close_problem(problem_t *problem)
{
    xm_cluster_profile_destroy(problem->profile);
    ap_graph_destroy(problem->graph);
}

/* All plans of a problem with the hosts in one order and so many micro-batches. */
typedef struct reference {
    const problem_t *problem;
    ap_planner_params_t params;
    ap_planner_setup_t setup;
    const ap_graph_t *graph;
    ap_stage_context_t **context; /* per class */
    ap_schedule_kind_t kind;
    int64_t micro_batches;
    int layers, stages;
    bool prune; /* leave out what is certain to be no better */
    double best, plans;
    ap_stage_query_t query[LAYERS];
    ap_stage_cost_t cost[LAYERS];
    int device[LAYERS];
    ap_pipeline_stage_t stage[LAYERS];
    ap_pipeline_transfer_t transfer[LAYERS * LAYERS];
    int transfers;
    double begun[LAYERS]; /* the first micro-batch is not here before */
} reference_t;

static void add_passing(const ap_graph_t *graph, int tensor, ap_spec_t src, ap_spec_t dst,
                        int *ids, ap_cross_mesh_tensor_t *passing, int *count)
{
    const ap_tensor_t *of = ap_graph_tensor(graph, tensor);

    for (int i = 0; i < *count; ++i) {
        if (ids[i] == tensor && passing[i].src == src && passing[i].dst == dst) {
            return;
        }
    }
    ids[*count] = tensor;
    passing[(*count)++] =
        (ap_cross_mesh_tensor_t){of->shape, ap_dtype_bytes(of->dtype), src, dst};
}

/* Prices what passes from a stage to the newest. */
static void price_transfer(reference_t *all, int from, int to)
{
    enum { MOST = 64 };
    const ap_stage_query_t *src = &all->query[from], *dst = &all->query[to];
    const int there[] = {src->first, src->last}, here[] = {dst->first, dst->last};
    ap_cross_mesh_tensor_t passing[MOST];
    ap_cross_mesh_transfer_t moved = {{all->device[from], {src->shape[0], src->shape[1]}},
                                      {all->device[to], {dst->shape[0], dst->shape[1]}},
                                      passing,
                                      0};
    ap_pipeline_transfer_t *transfer = &all->transfer[all->transfers];
    int ids[MOST], resting[MOST], count;
    ap_cross_mesh_cost_t cost;
    ap_link_load_t *links;

    if (to == from + 1) {
        add_passing(all->graph, ap_graph_boundary(all->graph, src->last), all->cost[from].output,
                    all->cost[to].input, ids, passing, &moved.count);
    }
    count = ap_graph_resting(all->graph, there, here, resting);
    for (int i = 0; i < count; ++i) {
        const ap_shape_t *shape = &ap_graph_tensor(all->graph, resting[i])->shape;

        add_passing(all->graph, resting[i],
                    ap_spec_resting(shape->rank, shape->dims, src->shape),
                    ap_spec_resting(shape->rank, shape->dims, dst->shape), ids, passing,
                    &moved.count);
    }
    if (moved.count == 0) {
        return;
    }
    ck_assert_xm_ok(ap_cross_mesh_cost(all->setup.cross_mesh, &moved, &cost));
    *transfer = (ap_pipeline_transfer_t){
        .from = from, .to = to, .forward = cost.forward, .backward = cost.backward};
    ck_assert_xm_ok(
        ap_cross_mesh_loads(all->setup.cross_mesh, &moved, &links, &transfer->link_count));
    transfer->links = links;
    ++all->transfers;
    if (to == from + 1) {
        all->begun[to] = all->begun[from] + all->stage[from].forward + cost.forward;
    }
}

static void judge(reference_t *all)
{
    ap_pipeline_step_t step = {.kind = all->kind,
                               .micro_batches = (int)all->micro_batches,
                               .stages = all->stage,
                               .stage_count = all->stages,
                               .transfers = all->transfer,
                               .transfer_count = all->transfers};
    double seconds;

    if (all->kind == AP_SCHEDULE_PIPEDREAM_2BW && all->micro_batches < all->stages) {
        return;
    }
    ck_assert_xm_ok(ap_pipeline_step_seconds(&step, &seconds));
    if (seconds < all->best && getenv("SHOW")) {
        printf("  %.6g, %d micro-batches:", seconds, (int)all->micro_batches);
        for (int i = 0; i < all->stages; ++i) {
            char a[64], b[64];
            printf(" [%d-%d on %d+%dx%d as %dx%d %s->%s f %.4g b %.4g once %.4g]", all->query[i].first, all->query[i].last,
                   all->device[i], all->query[i].hosts, all->query[i].devices, all->query[i].shape[0], all->query[i].shape[1],
                   ap_spec_format(all->cost[i].input, 2, a, sizeof(a)), ap_spec_format(all->cost[i].output, 2, b, sizeof(b)),
                   all->cost[i].forward, all->cost[i].backward, all->stage[i].once);
        }
        for (int i = 0; i < all->transfers; ++i) {
            printf(" {%d-%d %.4g %.4g}", all->transfer[i].from, all->transfer[i].to, all->transfer[i].forward, all->transfer[i].backward);
        }
        printf("\n");
    }
    all->best = fmin(all->best, seconds);
    all->plans += 1;
}

static void try_stage(reference_t *all, int index, int first, int device);

/* A stage with everything said; then whatever may follow. */
static void try_cost(reference_t *all, int index, int device, const ap_stage_cost_t *cost)
{
    const ap_stage_query_t *query = &all->query[index];
    int transfers = all->transfers, end = device + query->hosts * query->devices;

    all->cost[index] = *cost;
    all->device[index] = device;
    all->stage[index] = (ap_pipeline_stage_t){.forward = cost->forward,
                                              .backward = cost->backward,
                                              .once = cost->sync + cost->update};
    all->begun[index] = 0.0;
    for (int from = 0; from < index; ++from) {
        price_transfer(all, from, index);
    }
    if (!all->prune ||
        all->begun[index] + (double)all->micro_batches * (cost->forward + cost->backward) +
                all->stage[index].once <
            all->best) {
        int left = all->problem->hosts * all->problem->devices - end;

        if (index + 1 < all->stages) {
            try_stage(all, index + 1, query->last + 1, end);
        } else if (left == 0 ||
                   (!all->params.all_devices && left % all->problem->devices == 0)) {
            judge(all);
        }
    }
    while (all->transfers > transfers) {
        free((void *)all->transfer[--all->transfers].links);
    }
}

/* Every spec that a tensor of two dimensions can have; a dimension that does not divide has no
 * stage. One at the ends of the model, which have none. */
static int list_specs(const int *shape, bool free_end, ap_spec_t *specs)
{
    int axes = shape[0] == 1 ? 1 : 2, count = 0;

    if (free_end || shape[0] * shape[1] == 1) {
        specs[0] = AP_SPEC_REPLICATED;
        return 1;
    }
    for (int where = 0; where < (axes == 1 ? 3 : 9); ++where) {
        /* The axis of a 1 x n mesh is axis 1. */
        int of[] = {where % 3, where / 3};
        ap_spec_t spec = AP_SPEC_REPLICATED;

        for (int dim = 0; dim < 2; ++dim) {
            unsigned set = axes == 1 ? (of[0] == dim + 1 ? 2U : 0U)
                                     : (of[0] == dim + 1 ? 1U : 0U) | (of[1] == dim + 1 ? 2U : 0U);

            spec = ap_spec_with(spec, dim, set);
        }
        specs[count++] = spec;
    }
    return count;
}

static void try_shape(reference_t *all, int index, int device)
{
    ap_stage_query_t *query = &all->query[index];
    int host = device / all->problem->devices;
    ap_stage_context_t *context =
        all->context[ap_device_classes_find(all->setup.classes, host, query->hosts)];
    ap_spec_t inputs[SPECS], outputs[SPECS];
    bool begins = query->first == 0, ends = query->last == all->layers - 1;
    int ins = list_specs(query->shape, begins, inputs);
    int outs = list_specs(query->shape, ends, outputs);

    for (int i = 0; i < ins; ++i) {
        for (int o = 0; o < outs; ++o) {
            ap_stage_cost_t cost;
            xm_status_t status;

            query->fix_input = !begins;
            query->fix_output = !ends;
            query->input = inputs[i];
            query->output = outputs[o];
            status = ap_stage_evaluate(context, query, &cost);
            if (status != XM_ERR_NO_SOLUTION) {
                ck_assert_xm_ok(status);
                try_cost(all, index, device, &cost);
            }
        }
    }
}

/* A number of which the search makes submeshes: a power of two, or a divisor of all. */
static bool is_usual(int part, int all)
{
    return (part & (part - 1)) == 0 || all % part == 0;
}

static void try_stage(reference_t *all, int index, int first, int device)
{
    int per_host = all->problem->devices, total = all->problem->hosts * per_host;
    int after = all->stages - 1 - index;

    for (int last = after > 0 ? first : all->layers - 1; last < all->layers - after; ++last) {
        for (int devices = 1; devices <= total - device - after; ++devices) {
            bool part = devices <= per_host && device % per_host + devices <= per_host &&
                        is_usual(devices, per_host);
            bool whole = devices % per_host == 0 && device % per_host == 0 &&
                         is_usual(devices / per_host, all->problem->hosts);

            for (int d0 = 1; (part || whole) && (d0 < devices || d0 == 1); ++d0) {
                ap_stage_query_t query = AP_STAGE_QUERY_INIT;

                if (devices % d0 != 0) {
                    continue;
                }
                query.first = first;
                query.last = last;
                query.hosts = part ? 1 : devices / per_host;
                query.devices = devices / query.hosts;
                query.shape[0] = d0;
                query.shape[1] = devices / d0;
                all->query[index] = query;
                try_shape(all, index, device);
            }
        }
    }
}

/* One order of the hosts, of the profile's all. */
static void try_order(reference_t *all, const xm_cluster_profile_t *profile)
{
    ap_stage_context_params_t context = AP_STAGE_CONTEXT_PARAMS_INIT;
    ap_graph_t *made;

    all->params.profile = profile;
    ck_assert_xm_ok(ap_planner_setup_open(&all->params, 0.0, &all->setup));
    ck_assert_xm_ok(ap_planner_graph_open(&all->setup, all->micro_batches, &all->graph, &made));
    all->layers = ap_graph_layers(all->graph);
    all->context = calloc((size_t)all->setup.classes->count, sizeof(ap_stage_context_t *));
    context.graph = all->graph;
    context.micro_batches = (int)all->micro_batches;
    for (int c = 0; c < all->setup.classes->count; ++c) {
        context.cost = all->setup.classes->classes[c].cost;
        ck_assert_xm_ok(ap_stage_context_create(&context, &all->context[c]));
    }
    for (all->stages = 1; all->stages <= all->layers; ++all->stages) {
        try_stage(all, 0, 0, 0);
    }
    for (int c = 0; c < all->setup.classes->count; ++c) {
        ap_stage_context_destroy(all->context[c]);
    }
    free(all->context);
    ap_graph_destroy(made);
    ap_planner_setup_close(&all->setup);
}

static void try_orders(reference_t *all, int *order, int placed)
{
    int hosts = all->problem->hosts;

    if (placed == hosts) {
        xm_cluster_profile_t *profile;

        ck_assert_xm_ok(xm_cluster_profile_reorder(all->problem->profile, order, &profile));
        try_order(all, profile);
        xm_cluster_profile_destroy(profile);
        return;
    }
    for (int host = 0; host < hosts; ++host) {
        bool taken = false;

        for (int i = 0; i < placed; ++i) {
            taken = taken || order[i] == host;
        }
        if (!taken) {
            order[placed] = host;
            try_orders(all, order, placed + 1);
        }
    }
}

#include "comm/base.h"
static double t_search, t_ref;

START_TEST(no_other_plan_is_faster)
{
    problem_t problem;
    ap_planner_result_t found;
    reference_t all;
    int order[HOSTS];
    double step, t = xm_clock_seconds();

    make_problem(&problem, _i);
    ck_assert_xm_ok(ap_planner_run(&problem.params, &found));
    step = ap_plan_info(found.plan)->step;
    t_search = xm_clock_seconds() - t;
    t = xm_clock_seconds();
    if (getenv("SHOW")) {
        for (int i = 0; i < ap_plan_stages(found.plan); ++i) {
            const ap_plan_stage_t *st = ap_plan_stage(found.plan, i);
            printf(" [%d-%d on %d+%dx%d as %dx%d f %.4g b %.4g once %.4g]", st->first_layer, st->last_layer, st->devices[0], st->hosts, st->devices_per_host,
              st->shape[0], st->shape[1], st->forward, st->backward, st->sync + st->update);
        }
        for (int i = 0; i + 1 < ap_plan_stages(found.plan); ++i) {
            const ap_plan_boundary_t *b = ap_plan_boundary(found.plan, i);
            printf(" {%d-%d %s->%s %.4g %.4g}", b->from, b->to, b->src.spec, b->dst.spec, b->forward, b->backward);
        }
        printf(" found %.6g of %d micro-batches\n", step, (int)ap_plan_info(found.plan)->micro_batches);
        for (int i = 0; i < found.trial_count; ++i) printf("   trial %d: step %g bound %g exact %d\n", (int)found.trials[i].micro_batches, found.trials[i].step, found.trials[i].bound, found.trials[i].exact);
    }
    all = (reference_t){.problem = &problem, .params = problem.params, .best = step};
    all.prune = kinds[_i % KINDS] != AP_SCHEDULE_PIPEDREAM_2BW;
    all.kind = kinds[_i % KINDS];
    for (size_t c = 0; c < problem.params.micro_batch_count; ++c) {
        all.micro_batches = problem.counts[c];
        try_orders(&all, order, 0);
    }
    t_ref = xm_clock_seconds() - t;
    printf("%3d %dx%d %d layers %s %d,%d skips %d: found %.6g best %.6g (%.4f) bound %.6g (%.3f) plans %.0f search %.1f ms ref %.1f ms stages %d%s%s\n",
           _i, problem.hosts, problem.devices, all.layers, problem.params.schedule,
           (int)problem.counts[0], (int)problem.params.micro_batch_count, problem.skips, step,
           all.best, step / all.best, found.bound, found.bound / all.best, all.plans,
           1e3 * t_search, 1e3 * t_ref, ap_plan_stages(found.plan),
           step > 1.01 * all.best ? " WORSE" : "", found.bound > all.best * (1 + 1e-6) ? " BOUND" : "");
    ap_planner_result_clear(&found);
    close_problem(&problem);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("exhaustive");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, no_other_plan_is_faster, getenv("FROM") ? atoi(getenv("FROM")) : 0, getenv("TO") ? atoi(getenv("TO")) : 300);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
