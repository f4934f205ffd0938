/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Classes of hosts whose devices and NICs count as equal. A stage runs in lock-step, so its submesh
 * is as fast as its slowest device, as roomy as its smallest, and its collectives between hosts
 * take what the slowest NIC makes of them; any run of consecutive hosts thus reduces to one minimal
 * device and one NIC, and runs with the same minimum share all their stage prices. A cluster of two
 * kinds has few classes, whatever its size. The NICs of a host alone do not matter to a stage.
 *
 * Numbers are compared for equality: they come from one profile, unchanged, and two that differ in
 * a digit are different devices.
 */

#include "planner/cost/device_class.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A table of all runs of as many hosts takes 256 MiB. */
enum { MOST_DIFFERENT = 8192 };

/* The index of the class of such hosts; `count` where there is none. */
static int find_class(const ap_device_classes_t *classes, const xm_cluster_device_t *device,
                      double nic)
{
    int index = 0;

    while (index < classes->count &&
           (!xm_cluster_device_same(&classes->classes[index].device, device) ||
            classes->classes[index].nic != nic)) {
        ++index;
    }
    return index;
}

/* Adds the class of such hosts. The arrays grow before the count does, so a failure leaves the
 * object as it was. */
static xm_status_t add_class(ap_device_classes_t *classes, const xm_cluster_profile_t *profile,
                             const xm_cluster_device_t *device, double nic)
{
    size_t count = (size_t)classes->count, hosts = (size_t)classes->hosts;
    ap_device_class_t *grown = realloc(classes->classes, (count + 1) * sizeof(*grown));
    bool *some;
    xm_status_t status;

    XM_NEED_MEMORY(grown, "kinds of devices");
    classes->classes = grown;
    some = realloc(classes->some, (count + 1) * hosts * sizeof(*some));
    XM_NEED_MEMORY(some, "kinds of devices");
    classes->some = some;
    memset(some + count * hosts, 0, hosts * sizeof(*some));
    grown[count] = (ap_device_class_t){.device = *device, .nic = nic};
    status = ap_cost_model_create_hosts(profile, device, nic, &grown[count].cost);
    classes->count += status == XM_OK;
    return status;
}

/* Finds the class of every run of an order; adds those that are missing, or fails. The minimum over
 * a run follows from that of the run without its last host. */
static xm_status_t classify(ap_device_classes_t *classes, const xm_cluster_profile_t *profile,
                            ap_memory_budget_t budget, const int *order, bool may_add, int *of)
{
    int hosts = classes->hosts;

    for (int first = 0; first < classes->firsts; ++first) {
        xm_cluster_device_t least = {0};
        double slowest = INFINITY;

        for (int count = 1; count <= hosts; ++count) {
            int *class = &of[(size_t)first * (size_t)hosts + (size_t)count - 1];
            int place = first + count - 1, host;
            xm_cluster_device_t device;
            double nic;

            *class = -1;
            if (place >= hosts) {
                continue;
            }
            host = order != NULL ? order[place] : place;
            device = xm_cluster_profile_host_device(profile, host);
            least = count > 1 ? xm_cluster_device_least(&least, &device) : device;
            device = least;
            slowest = fmin(slowest, xm_cluster_profile_host_nic_bandwidth(profile, host));
            nic = count > 1 ? slowest : xm_cluster_profile_nic_bandwidth(profile);
            device.memory_bytes = ap_memory_budget_usable(&budget, device.memory_bytes);
            *class = find_class(classes, &device, nic);
            if (may_add && *class == classes->count) {
                XM_TRY(add_class(classes, profile, &device, nic));
            }
            if (may_add) {
                classes->some[*class * hosts + count - 1] = true;
            } else if (*class == classes->count || !classes->some[*class * hosts + count - 1]) {
                return XM_NOT_FOUND("%d hosts of a kind that is not known", count);
            }
        }
    }
    return XM_OK;
}

/* Borrows the classes of a whole, unless that is NULL: then the new object lists its own. */
static xm_status_t make(const xm_cluster_profile_t *profile, ap_memory_budget_t budget,
                        const ap_device_classes_t *whole, const int *order,
                        ap_device_classes_t **classes)
{
    size_t hosts = (size_t)xm_cluster_profile_hosts(profile);
    ap_device_classes_t *made = calloc(1, sizeof(*made));
    xm_status_t status;

    XM_NEED_MEMORY(made, "kinds of devices");
    made->hosts = (int)hosts;
    made->firsts =
        xm_cluster_profile_hosts_differ(profile) || xm_cluster_profile_devices_differ(profile)
            ? (int)hosts
            : 1;
    if (made->firsts > MOST_DIFFERENT) {
        free(made);
        return XM_UNSUPPORTED("%zu hosts that differ: at most %d can be planned for", hosts,
                              MOST_DIFFERENT);
    }
    made->of = malloc((size_t)made->firsts * hosts * sizeof(*made->of));
    if (made->of == NULL) {
        free(made);
        return XM_NO_MEMORY("%zu hosts", hosts);
    }
    if (whole != NULL) {
        made->whole = whole;
        made->count = whole->count;
        made->classes = whole->classes;
        made->some = whole->some;
    }
    status = classify(made, profile, budget, order, whole == NULL, made->of);
    if (status != XM_OK) {
        ap_device_classes_destroy(made);
        return status;
    }
    *classes = made;
    return XM_OK;
}

xm_status_t ap_device_classes_create(const xm_cluster_profile_t *profile, ap_memory_budget_t budget,
                                     ap_device_classes_t **classes)
{
    return make(profile, budget, NULL, NULL, classes);
}

/* The class of each run is of no use here: only which classes there are. */
xm_status_t ap_device_classes_widen(ap_device_classes_t *classes,
                                    const xm_cluster_profile_t *profile, ap_memory_budget_t budget,
                                    const int *order)
{
    size_t hosts = (size_t)classes->hosts;
    int *of = malloc((size_t)classes->firsts * hosts * sizeof(*of));
    xm_status_t status;

    XM_NEED_MEMORY(of, "%zu hosts", hosts);
    status = classify(classes, profile, budget, order, true, of);
    free(of);
    return status;
}

/* Borrows the classes of the whole, so that one stage table serves all orders. */
xm_status_t ap_device_classes_arrange(const ap_device_classes_t *whole,
                                      const xm_cluster_profile_t *profile,
                                      ap_memory_budget_t budget, const int *order,
                                      ap_device_classes_t **classes)
{
    return make(profile, budget, whole, order, classes);
}

int ap_device_classes_find(const ap_device_classes_t *classes, int first_host, int hosts)
{
    int first = classes->firsts > 1 ? first_host : 0;

    return classes->of[(size_t)first * (size_t)classes->hosts + (size_t)hosts - 1];
}

void ap_device_classes_destroy(ap_device_classes_t *classes)
{
    if (classes == NULL) {
        return;
    }
    if (classes->whole == NULL) {
        for (int i = 0; i < classes->count; ++i) {
            ap_cost_model_destroy(classes->classes[i].cost);
        }
        free(classes->classes);
        free(classes->some);
    }
    free(classes->of);
    free(classes);
}
