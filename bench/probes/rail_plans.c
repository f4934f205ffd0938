/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rail_plans: how near plans come to the lower bound on hosts with several NICs, where every
 * device has one of its own (or all share one). It plans the paper's shapes on hosts of
 * eight devices, single tensors between more hosts, random tensors between unequal hosts, and
 * whole models. docs/results.md shows its table.
 */
#include <stdio.h>
#include <stdlib.h>

#include "bench/model.h"
#include "cli_support.h"
#include "comm/base.h"
#include "resharding/plan.h"

static const char program[] = "rail_plans";

typedef struct {
    int strategy, scheduler;
    int host_ranks, rails;            /* of a host; rails 0: one for each rank */
    int hosts;                        /* of either side, of the single tensors */
    int random;                       /* plans between unequal hosts instead */
    double nic_rate, port_rate;       /* GB/s of a rank's share of the NICs, of its port */
    double nic_latency, port_latency; /* us */
    const char *model, *model_config, *system_config;
} options_t;

/* A tensor of bytes between the shapes of two meshes; 0 stands for the hosts that were asked for.
 */
typedef struct {
    const char *name;
    int src[2], dst[2];
    const char *src_spec, *dst_spec;
} shape_t;

/* The paper's nine cases on hosts of eight, a host to four, tensor to data parallel. */
static const shape_t shapes[] = {
    {"nm1", {2, 8}, {2, 8}, "S0RR", "S0RR"},
    {"nm2", {2, 8}, {2, 8}, "RRR", "S0RR"},
    {"nm3", {2, 8}, {2, 8}, "RS0R", "S0RR"},
    {"nm4", {2, 8}, {2, 8}, "RS01R", "S01RR"},
    {"nm5", {2, 8}, {2, 8}, "S1RR", "S0RR"},
    {"nm6", {2, 8}, {3, 8}, "S0RR", "S0RR"},
    {"nm7", {1, 8}, {2, 8}, "S1RR", "RRR"},
    {"nm8", {1, 8}, {2, 8}, "RS1R", "RRR"},
    {"nm9", {2, 8}, {2, 8}, "RS0R", "RRS0"},
    {"1 to 4", {1, 8}, {4, 8}, "RRR", "RRR"},
    {"tp to dp", {1, 8}, {1, 8}, "RS1R", "RRR"},
    {"S01R to RS01", {0, 8}, {0, 8}, "S01RR", "RS01R"},
    {"S0R to RS0", {0, 8}, {0, 8}, "S0RR", "RS0R"},
    {"RR to S01R", {0, 8}, {0, 8}, "RRR", "S01RR"},
    {"S01R to RR", {0, 8}, {0, 8}, "S01RR", "RRR"},
};

/* A network of equal hosts whose ranks share out its rails in turn. */
static xm_status_t make_network(const options_t *options, int ranks, xm_network_t **network)
{
    xm_network_params_t params = XM_NETWORK_PARAMS_INIT;
    int *hosts = malloc(2 * (size_t)ranks * sizeof(*hosts)), *rails = hosts + ranks;
    int per_host = options->rails > 0 ? options->rails : options->host_ranks;
    xm_status_t status;

    if (hosts == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d ranks", ranks);
    }
    for (int r = 0; r < ranks; ++r) {
        hosts[r] = r / options->host_ranks;
        rails[r] = hosts[r] * per_host + r % options->host_ranks % per_host;
    }
    params.ranks = ranks;
    params.host_of_rank = hosts;
    params.rail_of_rank = rails;
    params.nic_bandwidth = options->nic_rate * 1e9 * options->host_ranks;
    params.nic_latency = options->nic_latency * 1e-6;
    params.host_bandwidth = options->port_rate * 1e9;
    params.host_latency = options->port_latency * 1e-6;
    status = xm_network_create(&params, network);
    free(hosts);
    return status;
}

/* Plans a batch, prints its row and adds its distance from the bound. */
static xm_status_t plan_row(const options_t *options, const char *name, const xm_tensor_t *tensors,
                            int count, const xm_network_t *network, double *ratio)
{
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
    double start = xm_clock_seconds(), makespan, bound;
    int64_t transfers;
    xm_plan_t *plan;
    xm_status_t status;

    params.tensors = tensors;
    params.tensor_count = count;
    params.strategy = (xm_strategy_t)options->strategy;
    params.scheduler = (xm_scheduler_t)options->scheduler;
    params.network = network;
    status = xm_plan_create(&params, &plan);
    if (status < 0) {
        return status;
    }
    transfers = xm_plan_transfer_count(plan);
    makespan = (double)xm_plan_makespan_ns(plan);
    bound = (double)xm_plan_bound_ns(plan);
    printf("%-14s %6d %6d %-9s %9lld %9.3f %11.1f %11.1f %7.4f\n", name, xm_network_hosts(network),
           xm_network_rails(network), xm_scheduler_name(xm_plan_chosen_scheduler(plan)),
           (long long)transfers, xm_clock_seconds() - start, makespan * 1e-3, bound * 1e-3,
           bound > 0 ? makespan / bound : 1);
    (void)fflush(stdout);
    *ratio = bound > 0 ? makespan / bound : 1;
    xm_plan_destroy(plan);
    return XM_OK;
}

/* One side of a shape, on ranks from `first` on. */
static xm_status_t make_layout(const int *sizes, const char *text, int first, bool small,
                               xm_layout_t **layout)
{
    const int64_t extents[] = {small ? 512 : 4096, small ? 512 : 2048, small ? 512 : 2048};
    int count = sizes[0] * sizes[1], *ranks = malloc((size_t)count * sizeof(*ranks));
    xm_mesh_t *mesh = NULL;
    xm_spec_t spec;
    xm_status_t status;

    if (ranks == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d ranks", count);
    }
    for (int i = 0; i < count; ++i) {
        ranks[i] = first + i;
    }
    status = xm_mesh_create(2, sizes, ranks, &mesh);
    status = status == XM_OK ? xm_spec_parse(text, &spec) : status;
    status = status == XM_OK ? xm_layout_create(mesh, &spec, XM_PARTITION_BALANCED, extents, layout)
                             : status;
    xm_mesh_destroy(mesh);
    free(ranks);
    return status;
}

static xm_status_t shape_row(const options_t *options, const shape_t *shape)
{
    int src[] = {shape->src[0] > 0 ? shape->src[0] : options->hosts, shape->src[1]};
    int dst[] = {shape->dst[0] > 0 ? shape->dst[0] : options->hosts, shape->dst[1]};
    xm_tensor_t tensor = {shape->name, NULL, NULL, 16};
    xm_layout_t *from = NULL, *to = NULL;
    xm_network_t *network = NULL;
    xm_status_t status = make_layout(src, shape->src_spec, 0, false, &from);

    status =
        status == XM_OK ? make_layout(dst, shape->dst_spec, src[0] * src[1], false, &to) : status;
    status = status == XM_OK ? make_network(options, src[0] * src[1] + dst[0] * dst[1], &network)
                             : status;
    if (status == XM_OK) {
        tensor.src = from;
        tensor.dst = to;
        status = plan_row(options, shape->name, &tensor, 1, network, &(double){0});
    }
    xm_network_destroy(network);
    xm_layout_destroy(to);
    xm_layout_destroy(from);
    return status;
}

/* Hosts of one to six ranks with NICs of 10 to 200 Gbit/s, most of them the same both ways. */
static xm_status_t random_network(xm_random_t *random, int *ranks, xm_network_t **network)
{
    xm_network_params_t params = XM_NETWORK_PARAMS_INIT;
    int hosts = 4 + (int)xm_random_below(random, 7), host_of_rank[60], count = 0;
    double egress[10], ingress[10];

    for (int h = 0; h < hosts; ++h) {
        int own = 1 + (int)xm_random_below(random, 6);

        egress[h] = 1e9 / 8 * (10 + (double)xm_random_below(random, 191));
        ingress[h] = xm_random_below(random, 10) < 7
                         ? egress[h]
                         : 1e9 / 8 * (10 + (double)xm_random_below(random, 191));
        for (int i = 0; i < own; ++i) {
            host_of_rank[count++] = h;
        }
    }
    params.ranks = *ranks = count;
    params.host_of_rank = host_of_rank;
    params.nic_bandwidth = 1e9;
    params.nic_latency = 5e-6;
    params.host_bandwidth = 300e9;
    params.host_latency = 2e-6;
    params.egress = egress;
    params.ingress = ingress;
    return xm_network_create(&params, network);
}

/* A mesh of some of so many ranks. */
static void random_mesh(xm_random_t *random, int ranks, int *sizes)
{
    sizes[0] = 1 + (int)xm_random_below(random, 4);
    sizes[1] = 1 + (int)xm_random_below(random, 4);
    while (sizes[0] * sizes[1] > ranks) {
        sizes[sizes[0] < sizes[1]]--;
    }
}

/* One tensor between the first and the last ranks. */
static xm_status_t random_row(const options_t *options, int number, xm_random_t *random,
                              double *ratio)
{
    static const char *const specs[] = {"RRR", "S0RR", "S1RR", "S01RR", "RS0R", "RS01R", "S0S1R"};
    const size_t count = sizeof(specs) / sizeof(specs[0]);
    const char *src_spec = specs[xm_random_below(random, count)];
    const char *dst_spec = specs[xm_random_below(random, count)];
    xm_layout_t *src = NULL, *dst = NULL;
    xm_network_t *network = NULL;
    char name[32];
    int ranks, from[2], to[2];
    xm_status_t status = random_network(random, &ranks, &network);

    if (status < 0) {
        return status;
    }
    random_mesh(random, ranks, from);
    random_mesh(random, ranks, to);
    status = make_layout(from, src_spec, 0, true, &src);
    status =
        status == XM_OK ? make_layout(to, dst_spec, ranks - to[0] * to[1], true, &dst) : status;
    if (status == XM_OK) {
        const xm_tensor_t tensor = {"random", src, dst, 16};

        (void)snprintf(name, sizeof(name), "random %d", number);
        status = plan_row(options, name, &tensor, 1, network, ratio);
    }
    xm_network_destroy(network);
    xm_layout_destroy(dst);
    xm_layout_destroy(src);
    return status;
}

static xm_status_t random_rows(const options_t *options)
{
    xm_random_t random = {11};
    double sum = 0, most = 0;
    xm_status_t status = XM_OK;

    for (int i = 0; status == XM_OK && i < options->random; ++i) {
        double ratio = 1;

        status = random_row(options, i, &random, &ratio);
        sum += ratio;
        most = ratio > most ? ratio : most;
    }
    printf("# mean %.4f, most %.4f\n", sum / options->random, most);
    return status;
}

static xm_status_t model_row(const options_t *options)
{
    rb_model_request_t request = {.name = options->model,
                                  .model_config = options->model_config,
                                  .system_config = options->system_config};
    rb_model_t *model;
    xm_network_t *network = NULL;
    xm_tensor_t *tensors = NULL;
    xm_status_t status = rb_model_load(&request, &model);

    if (status < 0) {
        return status;
    }
    tensors = calloc((size_t)model->count + 1, sizeof(*tensors));
    status = tensors == NULL
                 ? xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d tensors", model->count)
                 : make_network(options, model->src_ranks + model->dst_ranks, &network);
    for (int i = 0; status == XM_OK && i < model->count; ++i) {
        const rb_model_tensor_t *tensor = &model->tensors[i];

        tensors[i] = (xm_tensor_t){tensor->name, tensor->src, tensor->dst, tensor->element_bits};
    }
    if (status == XM_OK) {
        status = plan_row(options, "model", tensors, model->count, network, &(double){0});
    }
    xm_network_destroy(network);
    free(tensors);
    rb_model_destroy(model);
    return status;
}

static xm_status_t run(const xm_cli_t *cli, void *arg)
{
    const options_t *options = arg;
    xm_status_t status = XM_OK;

    (void)cli;
    printf("%-14s %6s %6s %-9s %9s %9s %11s %11s %7s\n", "# case", "hosts", "rails", "scheduler",
           "transfers", "plan s", "makespan us", "bound us", "ratio");
    if (options->model != NULL || options->model_config != NULL) {
        return model_row(options);
    }
    if (options->random > 0) {
        return random_rows(options);
    }
    for (size_t i = 0; status == XM_OK && i < sizeof(shapes) / sizeof(shapes[0]); ++i) {
        status = shape_row(options, &shapes[i]);
    }
    return status;
}

int main(int argc, char **argv)
{
    options_t options = {.strategy = XM_STRATEGY_AUTO,
                         .scheduler = XM_SCHEDULER_AUTO,
                         .host_ranks = 8,
                         .hosts = 8,
                         .nic_rate = 50,
                         .port_rate = 450,
                         .nic_latency = 5,
                         .port_latency = 2};
    const xm_cli_option_t table[] = {
        {"host-ranks", 0, XM_CLI_INT, &options.host_ranks, "RANKS", 1, 4096,
         "Ranks that share a host's fabric (8)."},
        {"rails", 0, XM_CLI_INT, &options.rails, "RAILS", 0, 4096,
         "NICs of a host that its ranks share out; 0: one for each rank (0)."},
        {"hosts", 0, XM_CLI_INT, &options.hosts, "HOSTS", 1, 4096,
         "Hosts on either side, of the single tensors (8)."},
        {"random", 0, XM_CLI_INT, &options.random, "PLANS", 0, 100000,
         "Plan random tensors between unequal hosts instead."},
        {"nic", 0, XM_CLI_DOUBLE, &options.nic_rate, "GB/S", 0.001, 1e6,
         "A rank's share of its host's NICs (50)."},
        {"port", 0, XM_CLI_DOUBLE, &options.port_rate, "GB/S", 0.001, 1e6,
         "Port of a rank inside its host (450)."},
        {"nic-latency", 0, XM_CLI_DOUBLE, &options.nic_latency, "US", 0, 1e6,
         "Latency between hosts (5)."},
        {"port-latency", 0, XM_CLI_DOUBLE, &options.port_latency, "US", 0, 1e6,
         "Latency inside a host (2)."},
        {"model", 0, XM_CLI_STRING, &options.model, "NAME", 0, 0, "Plan this model instead."},
        {"model-config", 0, XM_CLI_STRING, &options.model_config, "FILE", 0, 0,
         "Plan the model of this file instead."},
        {"system-config", 0, XM_CLI_STRING, &options.system_config, "FILE", 0, 0,
         "Meshes of the model."},
        {"strategy", 0, XM_CLI_CHOICE, &options.strategy, "send_recv|allgather|broadcast|auto", 0,
         0, "Strategy (auto)."},
        {"scheduler", 0, XM_CLI_CHOICE, &options.scheduler,
         "naive|balance|dfs|greedy|openshop|auto", 0, 0, "Scheduler (auto)."},
    };
    const xm_cli_command_t command = XM_CLI_COMMAND(
        program, NULL, "Compares plans with the bound where hosts have several NICs.", NULL, table,
        0, 0);

    return xm_cli_main(&command, argc, argv, run, &options);
}
