/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks in an emulated cluster: hosts in namespaces of this machine with NICs of limited
 * rate. This turns options into the cluster's shape and hooks into the launcher, so that
 * each rank enters its host before it runs.
 */
#include "bench/run/emulation.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench/cluster.h"

/* The port of rank 0, on a host that nobody else is on. */
enum { MASTER_PORT = 29500 };

/* Used by one launch; the text of a rank's variable is overwritten by the next rank's. */
typedef struct {
    const rb_emulated_cluster_t *cluster;
    int ranks_per_host;
    int hands; /* a host's NICs are dealt to so many of its ranks, then to the next ones again */
    char nics[512], dealt[64];
    const char *variables[3];
} launch_t;

/* Rounded, since 0.1 Gbit/s is not exact in a double. */
static int64_t bits_per_second(double gbps)
{
    return (int64_t)(gbps * 1e9 + 0.5);
}

/* A host's rate is shared out evenly over its NICs unless each was given its own. */
xm_status_t rb_emulation_shape(const rb_options_t *options, rb_cluster_shape_t *shape)
{
    int64_t host_rates[RB_NIC_RATES], nic_rates[RB_UNEVEN_NICS];

    *shape = (rb_cluster_shape_t){.name = "host",
                                  .hosts = options->hosts,
                                  .nics = options->nics_per_host,
                                  .racks = options->racks > 0 ? options->racks : 1,
                                  .mtu = RB_EMULATION_MTU,
                                  .uplink = bits_per_second(options->uplink_gbps),
                                  .core_share = options->core_share,
                                  .congestion = options->congestion,
                                  .queue = options->queue};
    for (int i = 0; i < options->nic_rates; ++i) {
        host_rates[i] = bits_per_second(options->nic_gbps[i] / options->nics_per_host);
    }
    for (int i = 0; i < options->uneven_rates; ++i) {
        nic_rates[i] = bits_per_second(options->uneven_gbps[i]);
    }
    rb_cluster_shape_set_rates(shape, host_rates, options->nic_rates, nic_rates,
                               options->uneven_rates);
    return rb_cluster_shape_check(shape);
}

/* Called in the child, before the program starts. */
static xm_status_t enter(void *arg, int rank)
{
    const launch_t *launch = arg;

    return rb_emulated_cluster_enter(launch->cluster, rank / launch->ranks_per_host);
}

/* The rates of a rank's NICs, so that it stripes over them in proportion. Which it has is the rule
 * of xm_network_params_t::nics_per_host. */
static const char *const *variables(void *arg, int rank)
{
    launch_t *launch = arg;
    const rb_cluster_members_t *members = rb_emulated_cluster_members(launch->cluster);
    int host = rank / launch->ranks_per_host;
    int first = rank % launch->ranks_per_host % launch->hands;
    char nics[sizeof(launch->nics) - sizeof("XM_NICS=")];

    (void)snprintf(
        launch->nics, sizeof(launch->nics), "XM_NICS=%s",
        rb_cluster_shape_nics(&members->shape, host, first, launch->hands, nics, sizeof(nics)));
    launch->variables[0] = launch->nics;
    (void)snprintf(launch->dealt, sizeof(launch->dealt), RB_EMULATION_DEALT "=%d/%d@%d", first,
                   launch->hands, host);
    launch->variables[1] = launch->dealt;
    launch->variables[2] = NULL;
    return launch->variables;
}

/* Makes the cluster, launches the ranks in it and ends it in any case; the launch's
 * failure counts before that of the end. */
static xm_status_t launch_emulated(const rb_options_t *options, const xm_launch_params_t *params,
                                   int *exit_code)
{
    rb_emulated_cluster_params_t cluster_params = {0};
    xm_launch_params_t inside = *params;
    launch_t launch = {.ranks_per_host = options->ranks_per_host, .hands = 1};
    rb_emulated_cluster_t *cluster;
    rb_cluster_shape_t shape;
    char address[32];
    xm_error_t error;
    xm_status_t ended, status = rb_emulation_shape(options, &shape);

    XM_TRY(status);
    rb_cluster_shape_warn(&shape, program_invocation_short_name);
    cluster_params.shape = &shape;
    XM_TRY(rb_emulated_cluster_create(&cluster_params, &cluster));
    launch.cluster = cluster;
    if (!options->all_nics) {
        launch.hands = shape.nics < launch.ranks_per_host ? shape.nics : launch.ranks_per_host;
    }
    /* Ranks see by themselves which host they are on. */
    (void)unsetenv("XM_HOST");
    inside.ranks_per_host = 0;
    inside.enter = enter;
    inside.variables = variables;
    inside.arg = &launch;
    inside.master_addr = rb_emulated_cluster_address(cluster, 0, 0, address, sizeof(address));
    inside.master_port = MASTER_PORT;
    status = xm_launch(&inside, exit_code);
    xm_error_save(&error, status);
    ended = rb_emulated_cluster_end(cluster);
    rb_emulated_cluster_destroy(cluster);
    return status < 0 ? xm_error_restore(&error) : ended;
}

int rb_launch(const char *program, const rb_options_t *options, int ranks_per_host,
              char *const *argv)
{
    xm_launch_params_t params = XM_LAUNCH_PARAMS_INIT;
    int exit_status = 0, failed;
    xm_status_t status;

    params.ranks = options->ranks;
    params.ranks_per_host = ranks_per_host;
    params.argv = argv;
    status = rb_options_emulate(options) ? launch_emulated(options, &params, &exit_status)
                                         : xm_launch(&params, &exit_status);
    if (status == XM_OK) {
        return EXIT_SUCCESS;
    }
    /* A rank that ends by itself has said why; only the parent knows about one that was
     * killed. */
    if (exit_status > 128 || status != XM_ERR_PEER_DIED) {
        failed = xm_cli_fail(program, status);
        exit_status = exit_status > 0 ? exit_status : failed;
    }
    return exit_status;
}

/* One line for the table's head. */
char *rb_emulation_describe(const rb_options_t *options, char *buffer, size_t size)
{
    char rate[32];
    bool uneven = options->uneven_rates > 0;
    int nics = uneven ? options->uneven_rates : options->nic_rates;
    size_t used = (size_t)snprintf(buffer, size, "%d hosts, ", options->hosts);

    if (!uneven) {
        used += (size_t)snprintf(buffer + used, size - used, "%d x ", options->nics_per_host);
    }
    for (int i = 0; i < nics && used < size; ++i) {
        double gbps =
            uneven ? options->uneven_gbps[i] : options->nic_gbps[i] / options->nics_per_host;

        used += (size_t)snprintf(buffer + used, size - used, "%s%s",
                                 i == 0   ? ""
                                 : uneven ? " + "
                                          : ", then ",
                                 rb_nic_rate_format(bits_per_second(gbps), rate, sizeof(rate)));
    }
    if (used < size) {
        used +=
            (size_t)snprintf(buffer + used, size - used, " a host, %sshared memory inside, MTU %d",
                             options->all_nics ? "all of every rank, " : "", RB_EMULATION_MTU);
    }
    if (used < size && options->core_share > 0) {
        (void)snprintf(buffer + used, size - used, ", %g of a core a rank", options->core_share);
    }
    return buffer;
}
