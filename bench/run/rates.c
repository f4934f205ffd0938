/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the network's rates come from: a profile, the options, a short probe of the job,
 * or assumptions. All plans, bounds and simulations of a job use one set of rates, and
 * the report names their source, since a prediction is worth what its rates are.
 */
#include "bench/run/rates.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/cluster.h"
#include "bench/run/emulation.h"
#include "cli_support.h"
#include "comm/base.h"
#include "comm/probe.h"

/* Assumptions for what --nic-gbps does not say: the latency of a LAN, and memory between
 * the ranks of a host. */
static const double assumed_nic_latency = 20e-6, assumed_host_bandwidth = 10e9,
                    assumed_host_latency = 1e-6, assumed_gbps = 10;

/* The probe's messages: large enough for the rates of loopback and LAN, small enough for
 * a start within a second. */
enum { PROBE_BYTES = 1 << 20, PROBE_REPETITIONS = 3 };

/* Time for the probe, in seconds. */
static const double probe_budget = 1;

/* One rate serves all hosts unless the profile says that they differ. */
static xm_status_t take_profile(const xm_cluster_profile_t *profile, rb_rates_t *rates)
{
    int hosts = xm_cluster_profile_hosts_differ(profile) ? xm_cluster_profile_hosts(profile) : 1;

    if (hosts > RB_NIC_RATES) {
        return XM_UNSUPPORTED(
            "the profile has NIC rates of %d hosts; reshard-bench takes at most %d", hosts,
            RB_NIC_RATES);
    }
    for (int h = 0; h < hosts; ++h) {
        rates->nic_bandwidth[h] = xm_cluster_profile_host_nic_bandwidth(profile, h);
    }
    rates->nic_rates = hosts;
    rates->nic_latency = xm_cluster_profile_latency(profile, XM_LINK_INTER_HOST);
    rates->host_bandwidth = xm_cluster_profile_bandwidth(profile, XM_LINK_INTRA_HOST);
    rates->host_latency = xm_cluster_profile_latency(profile, XM_LINK_INTRA_HOST);
    xm_cluster_profile_processors(profile, &rates->cores_per_host, &rates->nic_cpu,
                                  &rates->host_cpu);
    return XM_OK;
}

/* Rates are bytes per second inside, as everywhere in the library. */
static double bytes_per_second(double gbps)
{
    return gbps * 1e9 / 8;
}

static void take_gbps(const double *gbps, int count, rb_rates_t *rates)
{
    for (int i = 0; i < count; ++i) {
        rates->nic_bandwidth[i] = bytes_per_second(gbps[i]);
    }
    rates->nic_rates = count;
    rates->nic_latency = assumed_nic_latency;
    rates->host_bandwidth = assumed_host_bandwidth;
    rates->host_latency = assumed_host_latency;
}

/* Takes TCP's headers off: what is measured are the tensors' bytes, and headers share the
 * emulated NICs with them. */
static void take_headers(rb_rates_t *rates)
{
    size_t used = strlen(rates->source);

    rates->emulated = true;
    for (int i = 0; i < rates->nic_rates; ++i) {
        rates->nic_bandwidth[i] = rb_nic_rate_payload(rates->nic_bandwidth[i], RB_EMULATION_MTU);
    }
    (void)snprintf(rates->source + used, sizeof(rates->source) - used, ", less TCP's headers: %.4f",
                   rb_nic_rate_payload(1, RB_EMULATION_MTU));
}

xm_status_t rb_rates_read(const rb_options_t *options, rb_rates_t *rates, bool *known)
{
    *known = options->profile != NULL || options->nic_rates > 0;
    if (options->profile != NULL) {
        xm_cluster_profile_t *profile;
        xm_status_t status;

        XM_TRY(xm_cluster_profile_load(options->profile, &profile));
        status = take_profile(profile, rates);
        (void)snprintf(rates->source, sizeof(rates->source), "profile %s: %s", options->profile,
                       xm_cluster_profile_provenance(profile));
        xm_cluster_profile_destroy(profile);
        return status;
    }
    if (options->nic_rates > 0) {
        take_gbps(options->nic_gbps, options->nic_rates, rates);
        rates->nics_per_host = options->all_nics ? 0 : options->nics_per_host;
        memcpy(rates->nic_weights, options->uneven_gbps, sizeof(rates->nic_weights));
        (void)snprintf(rates->source, sizeof(rates->source), "--%s, latencies assumed",
                       options->uneven_rates > 0 ? "uneven" : "nic-gbps");
        /* Only a rank inside an emulated cluster has XM_NICS and this kind of NICs. */
        if (rb_options_emulate(options) && xm_config_string(XM_CONFIG_NICS)[0] != '\0') {
            take_headers(rates);
        }
    }
    return XM_OK;
}

/* Eight NICs of 400 Gbit/s a host, which its GPUs share by NVLink. */
static void assume_h100(rb_rates_t *rates)
{
    take_gbps(&(double){3200}, 1, rates);
    rates->nic_latency = 5e-6;
    rates->host_bandwidth = 450e9;
    (void)snprintf(rates->source, sizeof(rates->source),
                   "assumed: DGX H100, 8 NICs of 400 Gbit/s a host, shared by NVLink; --profile or "
                   "--nic-gbps gives others");
}

void rb_rates_assume(const rb_selection_t *selection, rb_rates_t *rates)
{
    bool published = selection->count > 0;

    for (int i = 0; i < selection->count; ++i) {
        published = published && rb_published_find(selection->cases[i].name) != NULL;
    }
    if (published) {
        assume_h100(rates);
        return;
    }
    take_gbps(&assumed_gbps, 1, rates);
    (void)snprintf(rates->source, sizeof(rates->source),
                   "assumed; --profile or --nic-gbps gives others");
}

/* The probe is short and shares its code with the one that makes profiles. */
xm_status_t rb_rates_probe(xm_worker_t *worker, bool show, rb_rates_t *rates)
{
    xm_probe_params_t params = XM_PROBE_PARAMS_INIT;
    xm_cli_progress_t *progress = show ? xm_cli_progress_create("reshard-bench") : NULL;
    xm_cluster_profile_t *profile;
    xm_status_t status;

    params.max_bytes = PROBE_BYTES;
    params.repetitions = PROBE_REPETITIONS;
    params.budget = probe_budget;
    params.progress = progress != NULL ? xm_cli_progress_update : NULL;
    params.progress_arg = progress;
    status = xm_probe_run(worker, &params, &profile);
    xm_cli_progress_destroy(progress);
    XM_TRY(status);
    status = take_profile(profile, rates);
    (void)snprintf(rates->source, sizeof(rates->source), "probed at start");
    xm_cluster_profile_destroy(profile);
    return status;
}

/* Uplinks come from the options also where the NICs' rates were probed. */
void rb_rates_set_uplinks(const rb_options_t *options, rb_rates_t *rates)
{
    rates->racks = options->racks;
    rates->uplink_bandwidth = bytes_per_second(options->uplink_gbps);
    if (rates->emulated) {
        rates->uplink_bandwidth = rb_nic_rate_payload(rates->uplink_bandwidth, RB_EMULATION_MTU);
    }
}

char *rb_rates_format_nic(const rb_rates_t *rates, char *buffer, size_t size)
{
    size_t used = 0;

    for (int i = 0; i < rates->nic_rates && used < size; ++i) {
        used += (size_t)snprintf(buffer + used, size - used, "%s%.3f", i > 0 ? "/" : "",
                                 rates->nic_bandwidth[i] * 1e-9);
    }
    return buffer;
}

/* Hosts take the rates in turn, and racks are runs of neighbouring hosts of nearly equal
 * length. */
xm_status_t rb_rates_network(rb_rates_t *rates, const rb_host_map_t *hosts,
                             const xm_worker_rails_t *rails, xm_network_t **network)
{
    xm_network_params_t params = XM_NETWORK_PARAMS_INIT;
    double *rail = malloc((size_t)hosts->ranks * sizeof(*rail));
    double *nic = malloc((size_t)hosts->hosts * sizeof(*nic));
    int *rack_of_host = malloc((size_t)hosts->hosts * sizeof(*rack_of_host));
    xm_status_t status;

    if (nic == NULL || rack_of_host == NULL || rail == NULL) {
        status = XM_NO_MEMORY("%d hosts", hosts->hosts);
        goto free_arrays;
    }
    if (rates->racks > hosts->hosts) {
        status = XM_INVALID("--racks %d, but there are %d hosts", rates->racks, hosts->hosts);
        goto free_arrays;
    }
    for (int h = 0; h < hosts->hosts; ++h) {
        nic[h] = rates->nic_bandwidth[h % rates->nic_rates];
        rack_of_host[h] = (int)((int64_t)h * rates->racks / hosts->hosts);
    }
    params.ranks = hosts->ranks;
    params.host_of_rank = hosts->host_of;
    params.nic_bandwidth = rates->nic_bandwidth[0];
    params.nic_latency = rates->nic_latency;
    params.host_bandwidth = rates->host_bandwidth;
    params.host_latency = rates->host_latency;
    params.egress = rates->nic_rates > 1 ? nic : NULL;
    params.ingress = params.egress;
    if (rails == NULL) {
        params.nics_per_host = rates->nics_per_host;
        params.nic_weights = rates->nic_weights[0] > 0 ? rates->nic_weights : NULL;
    } else if (rails->count > hosts->hosts) {
        for (int r = 0; r < hosts->ranks; ++r) {
            rail[rails->of[r]] = nic[hosts->host_of[r]] * rails->share[rails->of[r]];
        }
        params.rail_of_rank = rails->of;
        params.rail_egress = params.rail_ingress = rail;
    }
    params.rack_of_host = rates->racks > 0 ? rack_of_host : NULL;
    params.uplink_bandwidth = rates->uplink_bandwidth;
    params.cores_per_host = rates->cores_per_host;
    params.nic_cpu = rates->nic_cpu;
    params.host_cpu = rates->host_cpu;
    status = xm_network_create(&params, network);
    rates->rails = status == XM_OK ? xm_network_rails(*network) : 0;

free_arrays:
    free(rack_of_host);
    free(nic);
    free(rail);
    return status;
}
