/* SPDX-License-Identifier: Apache-2.0 */
/* Profiles made of others. Profiles are immutable, so a change is a new one, whose provenance says
 * what was changed, and which is checked as any other. Hosts can be numbered in another order, for
 * planners that try which one suits a mesh best; racks are runs of hosts by number, so an order has
 * to keep them together, or the profile would describe another network. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "comm/profile/cluster_profile_private.h"

/* Room for what a resize adds to the provenance. */
enum { RESIZED_SIZE = 96 };

/* The provenance with a note behind it, to be freed; NULL: no memory. */
static char *with_note(const xm_cluster_profile_t *profile, const char *note)
{
    const char *before = xm_cluster_profile_provenance(profile);
    size_t size = strlen(before) + strlen(note) + sizeof("; ");
    char *text = malloc(size);

    if (text != NULL) {
        (void)snprintf(text, size, "%s; %s", before, note);
    }
    return text;
}

static xm_status_t no_memory(void)
{
    return xm_error_set(XM_ERR_NO_MEMORY, "cluster profile: out of memory");
}

/* Makes a profile of the parameters, whose host h is host order[h] of the profile (NULL: host h,
 * those beyond its hosts in turn), and each device of which has that share of its memory. Lists are
 * passed on only where there were some, so a uniform cluster stays uniform. */
static xm_status_t create_of_hosts(const xm_cluster_profile_t *profile,
                                   xm_cluster_profile_params_t *params, const int *order,
                                   double share, xm_cluster_profile_t **made)
{
    double *rates = malloc((size_t)params->hosts * sizeof(*rates));
    xm_cluster_device_t *devices = malloc((size_t)params->hosts * sizeof(*devices));
    xm_status_t status;

    if (rates == NULL || devices == NULL) {
        status = no_memory();
    } else {
        params->device.memory_bytes *= share;
        for (int i = 0; i < params->hosts; ++i) {
            int h = order != NULL ? order[i] : i;

            rates[i] = xm_cluster_profile_host_nic_bandwidth(profile, h);
            devices[i] = xm_cluster_profile_host_device(profile, h);
            devices[i].memory_bytes *= share;
        }
        params->host_nic_bandwidth = params->host_nic_bandwidth != NULL ? rates : NULL;
        params->host_device = params->host_device != NULL ? devices : NULL;
        status = xm_cluster_profile_create(params, made);
    }
    free(devices);
    free(rates);
    return status;
}

/* The profile of the parameters, with the note behind the provenance of the one that they are of.
 */
static xm_status_t create_with_note(const xm_cluster_profile_t *profile,
                                    xm_cluster_profile_params_t *params, const char *note,
                                    double share, xm_cluster_profile_t **made)
{
    char *provenance = with_note(profile, note);
    xm_status_t status;

    params->provenance = provenance;
    status = provenance == NULL ? no_memory() : create_of_hosts(profile, params, NULL, share, made);
    free(provenance);
    return status;
}

/* The same cluster with other sizes. Hosts that are added repeat the known ones in turn;
 * devices that are added to a host share its memory, since a host gains no memory by being cut
 * finer. The provenance records the change. */
xm_status_t xm_cluster_profile_resize(const xm_cluster_profile_t *profile, int hosts,
                                      int devices_per_host, xm_cluster_profile_t **resized)
{
    XM_NEED_ARGUMENTS(profile, resized);
    xm_cluster_profile_params_t params = xm_cluster_profile_params_of(profile);
    char note[RESIZED_SIZE];
    double share = 1.0;

    XM_TRY(xm_cluster_profile_check_sizes(hosts, devices_per_host));
    (void)snprintf(note, sizeof(note), "resized from %d x %d to %d x %d devices", params.hosts,
                   params.devices_per_host, hosts, devices_per_host);
    /* Fewer devices on a host do not get more memory each: the others are just not used. */
    if (devices_per_host > params.devices_per_host) {
        share = (double)params.devices_per_host / devices_per_host;
    }
    params.hosts = hosts;
    params.devices_per_host = devices_per_host;
    return create_with_note(profile, &params, note, share, resized);
}

/* Adds collectives; one that is there already is replaced by the newer measurement. */
xm_status_t xm_cluster_profile_add_collectives(const xm_cluster_profile_t *profile,
                                               const xm_collective_curve_t *added, size_t count,
                                               const char *note, xm_cluster_profile_t **extended)
{
    xm_cluster_profile_params_t params = xm_cluster_profile_params_of(profile);
    xm_collective_curve_t *all = calloc(params.collective_count + count + 1, sizeof(*all));
    size_t kept = 0;
    xm_status_t status;

    if (all == NULL) {
        return no_memory();
    }
    for (size_t i = 0; i < params.collective_count; ++i) {
        /* The new ones come after those that are kept, so the order of old entries does not
         * change. */
        bool replaced = false;

        for (size_t j = 0; j < count; ++j) {
            replaced = replaced || xm_collective_curve_same(&params.collectives[i], &added[j]);
        }
        if (!replaced) {
            all[kept++] = params.collectives[i];
        }
    }
    for (size_t j = 0; j < count; ++j) {
        all[kept++] = added[j];
    }
    params.collectives = all;
    params.collective_count = kept;
    status = create_with_note(profile, &params, note, 1.0, extended);
    free(all);
    return status;
}

/* A changed copy, because profiles are immutable; the value is checked as in any creation. */
xm_status_t xm_cluster_profile_set_gradient_overlap(const xm_cluster_profile_t *profile,
                                                    double overlap, xm_cluster_profile_t **changed)
{
    xm_cluster_profile_params_t params = xm_cluster_profile_params_of(profile);

    params.gradient_overlap = overlap;
    return xm_cluster_profile_create(&params, changed);
}

xm_status_t xm_cluster_profile_set_runtime(const xm_cluster_profile_t *profile,
                                           const xm_runtime_t *runtime, const char *note,
                                           xm_cluster_profile_t **changed)
{
    xm_cluster_profile_params_t params = xm_cluster_profile_params_of(profile);

    params.runtime = *runtime;
    return create_with_note(profile, &params, note, 1.0, changed);
}

/* Checks that the order has every host exactly once; the sentence names the places. */
static xm_status_t check_permutation(int hosts, const int *order)
{
    int *place = malloc((size_t)hosts * sizeof(*place));
    xm_status_t status = XM_OK;

    XM_NEED_MEMORY(place, "an order of %d hosts", hosts);
    for (int h = 0; h < hosts; ++h) {
        place[h] = -1;
    }
    for (int i = 0; i < hosts && status == XM_OK; ++i) {
        if (order[i] < 0 || order[i] >= hosts) {
            status = XM_INVALID(
                "an order of hosts names host %d in place %d; the cluster has hosts 0 to %d",
                order[i], i, hosts - 1);
        } else if (place[order[i]] >= 0) {
            status = XM_INVALID("an order of hosts names host %d in places %d and %d", order[i],
                                place[order[i]], i);
        } else {
            place[order[i]] = i;
        }
    }
    free(place);
    return status;
}

/* Checks the racks: they are runs of hosts by number, so those of one rack have to stay
 * together. */
static xm_status_t check_racks(const xm_cluster_profile_t *profile, const int *order)
{
    int per_rack = xm_cluster_profile_hosts_per_rack(profile);

    for (int i = 0; per_rack > 0 && i < xm_cluster_profile_hosts(profile); ++i) {
        int first = i / per_rack * per_rack;

        if (order[i] / per_rack != order[first] / per_rack) {
            return XM_INVALID(
                "an order of hosts puts hosts %d and %d of two racks into places %d and %d of one",
                order[first], order[i], first, i);
        }
    }
    return XM_OK;
}

/* Only what belongs to single hosts changes; curves are of link classes and stay. */
xm_status_t xm_cluster_profile_reorder(const xm_cluster_profile_t *profile, const int *order,
                                       xm_cluster_profile_t **reordered)
{
    xm_cluster_profile_params_t params = xm_cluster_profile_params_of(profile);

    XM_TRY(check_permutation(params.hosts, order));
    XM_TRY(check_racks(profile, order));
    return create_of_hosts(profile, &params, order, 1.0, reordered);
}
