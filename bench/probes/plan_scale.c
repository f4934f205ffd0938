/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_scale: how long planning takes, and how much memory, as devices and tensors grow.
 * It plans whole models and one all-to-all, which is the worst case for the number of
 * tasks, or one case alone, so that the time and the memory of the whole command are
 * those of that plan. docs/results.md shows its tables.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#include "bench/model.h"
#include "cli_support.h"
#include "comm/base.h"
#include "resharding/plan.h"

static const char program[] = "plan_scale";

enum { DEVICES_PER_HOST = 8, LARGEST_HOSTS = 4096 };

/* What is planned: the whole table, or one of its rows or another. */
enum { CASE_TABLE, CASE_DENSE, CASE_EXPERTS, CASE_ALL_TO_ALL, CASE_SPLIT, CASE_FILES };

typedef struct {
    int strategy, scheduler;
    int hosts; /* most training hosts, and as many serving hosts */
    int repeat;
    int which;
    int gib;
    int nics;
    int lost; /* host that is lost in the middle of the plan, which is planned anew without it; −1:
                 none */
    double nic_gbps;                          /* of all of them */
    const char *model_config, *system_config; /* of the files' case */
} options_t;

/* What one plan cost and is worth. */
typedef struct {
    double load_s, plan_s;
    int64_t tasks, transfers, hops;
    double makespan_s, bound_s;
} row_t;

/* The time of this thread, which is the only one: other programs on the machine do not
 * make it longer. */
static double seconds(void)
{
    return 1e-9 * (double)xm_clock_read_ns(CLOCK_THREAD_CPUTIME_ID);
}

/* The peak of the whole process so far, so only rows in growing order mean something. */
static double peak_mib(void)
{
    struct rusage usage;

    (void)getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_maxrss / 1024;
}

/* Makes a network of NICs with a fast fabric inside the host, as training clusters have
 * them. */
static xm_status_t make_network(const options_t *options, int ranks, xm_network_t **network)
{
    xm_network_params_t params = XM_NETWORK_PARAMS_INIT;
    int *hosts = malloc((size_t)ranks * sizeof(*hosts));
    xm_status_t status;

    XM_NEED_MEMORY(hosts, "%d ranks", ranks);
    for (int r = 0; r < ranks; ++r) {
        hosts[r] = r / DEVICES_PER_HOST;
    }
    params.ranks = ranks;
    params.host_of_rank = hosts;
    params.nic_bandwidth = options->nic_gbps * 1e9 / 8;
    params.nics_per_host = options->nics;
    params.nic_latency = 5e-6;
    params.host_bandwidth = 300e9;
    params.host_latency = 2e-6;
    status = xm_network_create(&params, network);
    free(hosts);
    return status;
}

static void fill_row(const xm_plan_t *plan, row_t *row)
{
    row->tasks = xm_plan_task_count(plan);
    row->transfers = xm_plan_transfer_count(plan);
    row->hops = xm_plan_hops(plan);
    row->makespan_s = (double)xm_plan_makespan_ns(plan) * 1e-9;
    row->bound_s = (double)xm_plan_bound_ns(plan) * 1e-9;
}

/* Elements of a hop that have arrived at some time: whole chunks, as they follow each other evenly.
 */
static int64_t arrived_by(const xm_plan_t *plan, const xm_plan_hop_t *hop, int64_t now)
{
    int64_t chunks = xm_plan_chunks(plan, hop->transfer), whole;
    const xm_transfer_t transfer = xm_plan_transfer(plan, hop->transfer);

    if (hop->end_ns <= now) {
        return transfer.end - transfer.first;
    }
    whole = hop->start_ns >= now ? 0
                                 : (int64_t)((double)chunks * (double)(now - hop->start_ns) /
                                             (double)(hop->end_ns - hop->start_ns));
    return (whole < chunks ? whole : chunks - 1) * xm_plan_chunk_elements(plan, transfer.task);
}

/* What every rank of the plan has received by the middle of its simulated time, and the bytes that
 * ranks of all hosts but the lost one have still to get. */
static xm_status_t record_half(const xm_plan_t *plan, const options_t *options,
                               xm_delivery_t *deliveries, uint64_t *missing)
{
    int64_t hops = xm_plan_hops(plan), makespan;
    xm_plan_hop_t *list = malloc(((size_t)hops + 1) * sizeof(*list));
    xm_status_t status = list != NULL ? xm_plan_simulate(plan, xm_plan_network(plan),
                                                         XM_SHARING_EXCLUSIVE, list, &makespan)
                                      : XM_NO_MEMORY("%lld hops", (long long)hops);

    *missing = 0;
    for (int64_t h = 0; status == XM_OK && h < hops; ++h) {
        const xm_transfer_t transfer = xm_plan_transfer(plan, list[h].transfer);
        int64_t elements = transfer.end - transfer.first;
        int64_t here = arrived_by(plan, &list[h], makespan / 2);

        deliveries[list[h].receiver].run = 1;
        deliveries[list[h].receiver].rank = list[h].receiver;
        status = xm_delivery_add(&deliveries[list[h].receiver], list[h].transfer, here, elements);
        *missing += xm_plan_host_of(plan, list[h].receiver) == options->lost
                        ? 0
                        : list[h].bytes / (uint64_t)elements * (uint64_t)(elements - here);
    }
    free(list);
    return status;
}

/* Plans the rest several times, and makes sure that it moves what is missing and no more. */
static xm_status_t time_rest(const xm_plan_t *plan, const options_t *options,
                             const xm_plan_without_params_t *params, uint64_t missing, row_t *row)
{
    for (int i = 0; i < options->repeat; ++i) {
        double start = seconds(), spent;
        uint64_t moved = 0;
        xm_plan_t *rest;

        XM_TRY(xm_plan_without(plan, params, &rest));
        spent = seconds() - start;
        row->plan_s = i == 0 || spent < row->plan_s ? spent : row->plan_s;
        fill_row(rest, row);
        for (int64_t t = 0; t < row->transfers; ++t) {
            moved += xm_plan_transfer_bytes(rest, t) *
                     (uint64_t)(xm_plan_first_hop(rest, t + 1) - xm_plan_first_hop(rest, t));
        }
        xm_plan_destroy(rest);
        if (moved != missing) {
            return xm_error_set(XM_ERR_INTERNAL, "the rest moves %llu bytes, %llu are missing",
                                (unsigned long long)moved, (unsigned long long)missing);
        }
    }
    return XM_OK;
}

/* Loses a host when half of the time of a plan is over. */
static xm_status_t measure_rest(const xm_plan_t *plan, const options_t *options, row_t *row)
{
    int ranks = xm_plan_ranks(plan);
    xm_delivery_t *deliveries = calloc((size_t)ranks, sizeof(*deliveries));
    xm_delivered_t *records = calloc((size_t)ranks, sizeof(*records));
    int lost[DEVICES_PER_HOST];
    xm_plan_without_params_t params = XM_PLAN_WITHOUT_PARAMS_INIT;
    uint64_t missing = 0;
    xm_status_t status = deliveries != NULL && records != NULL
                             ? record_half(plan, options, deliveries, &missing)
                             : XM_NO_MEMORY("%d ranks", ranks);

    params.lost = lost;
    params.delivered = records;
    for (int r = 0; status == XM_OK && r < ranks; ++r) {
        void *bytes = NULL;

        if (xm_plan_host_of(plan, r) == options->lost) {
            lost[params.lost_count++] = r;
            continue;
        }
        deliveries[r].rank = r;
        status = xm_delivery_write(&deliveries[r], plan, &bytes,
                                   &records[params.delivered_count].length);
        records[params.delivered_count++].bytes = bytes;
    }
    XM_THEN(status, time_rest(plan, options, &params, missing, row));
    for (int r = 0; r < ranks && deliveries != NULL && records != NULL; ++r) {
        xm_delivery_clear(&deliveries[r]);
        free((void *)(uintptr_t)records[r].bytes);
    }
    free(records);
    free(deliveries);
    return status;
}

/* Plans a batch several times and keeps the least time: planning is deterministic, so
 * noise can only add. */
static xm_status_t measure(const options_t *options, const xm_tensor_t *tensors, int count,
                           const xm_network_t *network, row_t *row)
{
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;

    params.tensors = tensors;
    params.tensor_count = count;
    params.strategy = (xm_strategy_t)options->strategy;
    params.scheduler = (xm_scheduler_t)options->scheduler;
    params.network = network;
    for (int i = 0; i < options->repeat; ++i) {
        double start = seconds(), spent;
        xm_plan_t *plan;
        xm_status_t status;

        XM_TRY(xm_plan_create(&params, &plan));
        spent = seconds() - start;
        row->plan_s = i == 0 || spent < row->plan_s ? spent : row->plan_s;
        fill_row(plan, row);
        status = options->lost >= 0 ? measure_rest(plan, options, row) : XM_OK;
        xm_plan_destroy(plan);
        if (status < 0 || options->lost >= 0) {
            return status;
        }
    }
    return XM_OK;
}

/* Flushed at once, since the next row may take minutes. */
static void print_row(int hosts, int tensors, double bytes, const row_t *row)
{
    printf("%7d %8d %8d %9.2f %9.4f %9.4f %9lld %10lld %10lld %10.4f %10.4f %7.2f %8.0f\n", hosts,
           hosts * DEVICES_PER_HOST, tensors, bytes * 1e-9, row->load_s, row->plan_s,
           (long long)row->tasks, (long long)row->transfers, (long long)row->hops, row->makespan_s,
           row->bound_s, 100 * (row->makespan_s / row->bound_s - 1), peak_mib());
    (void)fflush(stdout);
}

/* A row of a model; only its first `limit` tensors are planned. */
static xm_status_t request_row(const options_t *options, const rb_model_request_t *request,
                               int limit)
{
    rb_model_t *model;
    xm_network_t *network = NULL;
    xm_tensor_t *tensors = NULL;
    row_t row = {0};
    double start = seconds(), bytes = 0;
    int count;
    xm_status_t status;

    XM_TRY(rb_model_load(request, &model));
    row.load_s = seconds() - start;
    count = limit < model->count ? limit : model->count;
    tensors = calloc((size_t)count, sizeof(*tensors));
    status = tensors == NULL ? XM_NO_MEMORY("%d tensors", count)
                             : make_network(options, model->src_ranks + model->dst_ranks, &network);
    for (int i = 0; status == XM_OK && i < count; ++i) {
        const rb_model_tensor_t *tensor = &model->tensors[i];
        double size = tensor->element_bits / 8.0;

        for (int d = 0; d < xm_layout_dims(tensor->src); ++d) {
            size *= (double)xm_layout_shape(tensor->src)[d];
        }
        bytes += size;
        tensors[i] = (xm_tensor_t){tensor->name, tensor->src, tensor->dst, tensor->element_bits};
    }
    XM_THEN(status, measure(options, tensors, count, network, &row));
    if (status == XM_OK) {
        print_row(model->src_ranks / DEVICES_PER_HOST, count, bytes, &row);
    }
    xm_network_destroy(network);
    free(tensors);
    rb_model_destroy(model);
    return status;
}

/* A row of a model over `hosts` training hosts and as many serving hosts: the dense 70B one from
 * tp 8 × pp 8 × dp to tp 8 × dp, or that of 256 experts from pp 4 × ep 16 × dp to tp 8 × dp. */
static xm_status_t model_row(const options_t *options, bool experts, int hosts, int limit)
{
    rb_parallel_t dense = {
        .num_gpus = hosts * DEVICES_PER_HOST, .tp = 8, .pp = hosts < 8 ? hosts : 8};
    rb_parallel_t sparse = {.num_gpus = hosts * DEVICES_PER_HOST, .tp = 1, .pp = 4, .ep = 16};
    rb_parallel_t generation = {.num_gpus = hosts * DEVICES_PER_HOST, .tp = 8};
    rb_model_request_t request = {.name = experts ? "moe-256e" : "dense-70b",
                                  .train = experts ? &sparse : &dense,
                                  .generation = &generation};

    return request_row(options, &request, limit);
}

/* Makes the layout of a square tensor of so many elements a side on a mesh of hosts × devices. */
static xm_status_t square_layout(int hosts, const int *ranks, const char *spec_text, int64_t side,
                                 xm_layout_t **layout)
{
    int sizes[] = {hosts, DEVICES_PER_HOST};
    int64_t shape[] = {side, side};
    xm_mesh_t *mesh = NULL;
    xm_spec_t spec;
    xm_status_t status = xm_mesh_create(2, sizes, ranks, &mesh);

    XM_THEN(status, xm_spec_parse(spec_text, &spec));
    status =
        status == XM_OK ? xm_layout_create(mesh, &spec, XM_PARTITION_EVEN, shape, layout) : status;
    xm_mesh_destroy(mesh);
    return status;
}

/*
 * A row of one square tensor: split over all devices from S01R to RS01, every source device to
 * every destination device, so as many tasks as pairs of devices; or from S0R to RS0, all hosts to
 * all hosts. Source and destination are disjoint, so that everything crosses the network.
 */
static xm_status_t tensor_row(const options_t *options, bool devices_split, int hosts, int64_t side)
{
    int devices = hosts * DEVICES_PER_HOST;
    int *ranks = malloc((size_t)devices * sizeof(*ranks));
    xm_layout_t *src = NULL, *dst = NULL;
    xm_network_t *network = NULL;
    row_t row = {0};
    double start = seconds();
    xm_status_t status =
        ranks == NULL ? XM_NO_MEMORY("%d ranks", devices)
                      : square_layout(hosts, NULL, devices_split ? "S01R" : "S0R", side, &src);

    for (int i = 0; ranks != NULL && i < devices; ++i) {
        ranks[i] = devices + i;
    }
    status = status == XM_OK
                 ? square_layout(hosts, ranks, devices_split ? "RS01" : "RS0", side, &dst)
                 : status;
    XM_THEN(status, make_network(options, 2 * devices, &network));
    if (status == XM_OK) {
        const xm_tensor_t tensor = {"tensor", src, dst, 16};

        row.load_s = seconds() - start;
        status = measure(options, &tensor, 1, network, &row);
    }
    if (status == XM_OK) {
        print_row(hosts, 1, 2.0 * (double)side * (double)side, &row);
    }
    xm_network_destroy(network);
    xm_layout_destroy(dst);
    xm_layout_destroy(src);
    free(ranks);
    return status;
}

/* Each part of the table has its own title and the same columns. */
static void print_head(const char *title)
{
    printf("# %s\n#%6s %8s %8s %9s %9s %9s %9s %10s %10s %10s %10s %7s %8s\n", title, "hosts",
           "devices", "tensors", "GB", "load s", "plan s", "tasks", "transfers", "hops",
           "makespan s", "bound s", "gap %", "RSS MiB");
}

/* The rest of the plan of each number of hosts: without a training host, of which others hold
 * copies, and without a serving host, which relays to others. */
static xm_status_t lost_rows(const options_t *options)
{
    options_t lost = *options;
    xm_status_t status = XM_OK;

    print_head(
        "a host lost: the rest of the model's plans when half of their time is over, without "
        "the second training host; then without the second serving host");
    for (int hosts = 16; status == XM_OK && hosts <= options->hosts && hosts <= 64; hosts *= 2) {
        lost.lost = 1;
        status = model_row(&lost, false, hosts, INT32_MAX);
        if (status == XM_OK) {
            lost.lost = hosts + 1;
            status = model_row(&lost, false, hosts, INT32_MAX);
        }
    }
    return status;
}

/* Sizes double or quadruple, so that growth shows as ratios of neighbouring rows. */
static xm_status_t print_table(const options_t *options)
{
    xm_status_t status = XM_OK;

    print_head(
        "devices: a dense 70B model, tp 8 x pp 8 x dp -> tp 8 x dp, on so many hosts to as many");
    for (int hosts = 8; status == XM_OK && hosts <= options->hosts; hosts *= 2) {
        status = model_row(options, false, hosts, INT32_MAX);
    }
    XM_THEN(status, lost_rows(options));
    if (status == XM_OK) {
        print_head("tensors: the first so many of that model");
    }
    for (int count = 1; status == XM_OK && count < 1024; count *= 4) {
        status = model_row(options, false, options->hosts < 64 ? options->hosts : 64, count);
    }
    if (status == XM_OK) {
        print_head("unit tasks: one tensor, S01R -> RS01, every device to every device");
    }
    for (int hosts = 2; status == XM_OK && hosts <= options->hosts && hosts <= 64; hosts *= 2) {
        status = tensor_row(options, true, hosts, 32768);
    }
    return status;
}

static xm_status_t run(const xm_cli_t *cli, void *arg)
{
    static const char *const title[] = {
        [CASE_DENSE] = "a dense 70B model, tp 8 x pp 8 x dp -> tp 8 x dp",
        [CASE_EXPERTS] = "a model of 256 experts, pp 4 x ep 16 x dp -> tp 8 x dp",
        [CASE_ALL_TO_ALL] = "one tensor, S01R -> RS01, every device to every device",
        [CASE_SPLIT] = "one tensor, S0R -> RS0, every host to every host",
        [CASE_FILES] = "the model of --model-config and --system-config"};
    const options_t *options = arg;
    /* A square of elements of two bytes; --gib is a power of 4 times 2. */
    int64_t side = llround(sqrt((double)options->gib * 0x1p29));

    (void)cli;
    if (options->which == CASE_TABLE) {
        return print_table(options);
    }
    print_head(title[options->which]);
    if (options->which == CASE_FILES) {
        const rb_model_request_t request = {.model_config = options->model_config,
                                            .system_config = options->system_config};

        return request_row(options, &request, INT32_MAX);
    }
    if (options->which == CASE_DENSE || options->which == CASE_EXPERTS) {
        return model_row(options, options->which == CASE_EXPERTS, options->hosts, INT32_MAX);
    }
    return tensor_row(options, options->which == CASE_ALL_TO_ALL, options->hosts, side);
}

int main(int argc, char **argv)
{
    options_t options = {.strategy = XM_STRATEGY_AUTO,
                         .scheduler = XM_SCHEDULER_AUTO,
                         .hosts = 512,
                         .repeat = 1,
                         .gib = 2,
                         .nics = 1,
                         .lost = -1,
                         .nic_gbps = 400};
    const xm_cli_option_t table[] = {
        {"hosts", 0, XM_CLI_INT, &options.hosts, "HOSTS", 8, LARGEST_HOSTS,
         "Most hosts of 8 devices on either side (512)."},
        {"repeat", 0, XM_CLI_INT, &options.repeat, "TIMES", 1, 1000,
         "Plan each row so often; the least time counts (1)."},
        {"nic-gbps", 0, XM_CLI_DOUBLE, &options.nic_gbps, "GBPS", 0.001, 1e6,
         "Rate of a host's NICs together (400)."},
        {"nics-per-host", 0, XM_CLI_INT, &options.nics, "N", 1, DEVICES_PER_HOST,
         "NICs of a host, dealt to its devices in turn (1)."},
        {"case", 0, XM_CLI_CHOICE, &options.which,
         "table|dense-70b|moe-256e|all-to-all|split|files", 0, 0,
         "Print the table, or the row of this case with --hosts hosts (table)."},
        {"gib", 0, XM_CLI_INT, &options.gib, "GIB", 1, 1024,
         "Size of the tensor of --case all-to-all and split; twice a power of 4 (2)."},
        {"model-config", 0, XM_CLI_STRING, &options.model_config, "FILE", 0, 0,
         "Tensors of --case files."},
        {"system-config", 0, XM_CLI_STRING, &options.system_config, "FILE", 0, 0,
         "Meshes of --case files."},
        {"strategy", 0, XM_CLI_CHOICE, &options.strategy, "send_recv|allgather|broadcast|auto", 0,
         0, "Strategy (auto)."},
        {"scheduler", 0, XM_CLI_CHOICE, &options.scheduler,
         "naive|balance|dfs|greedy|openshop|auto", 0, 0, "Scheduler (auto)."},
    };
    const xm_cli_command_t command =
        XM_CLI_COMMAND(program, NULL, "Times planning as devices, tensors and unit tasks grow.",
                       NULL, table, 0, 0);

    return xm_cli_main(&command, argc, argv, run, &options);
}
