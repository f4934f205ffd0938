#include "planner/device_class.h"

#include <math.h>
#include <stdlib.h>

static bool alike(const xm_cluster_device_t *a, const xm_cluster_device_t *b)
{
    return a->flops == b->flops && a->memory_bytes == b->memory_bytes &&
           a->memory_bandwidth == b->memory_bandwidth;
}

/* Index of the class of such devices, made on first use. */
static xm_status_t get_class(ap_device_classes_t *classes, const xm_cluster_profile_t *profile,
                             const xm_cluster_device_t *device, int *index)
{
    ap_device_class_t *grown;
    xm_status_t status;

    for (*index = 0; *index < classes->count; ++*index) {
        if (alike(&classes->classes[*index].device, device)) {
            return XM_OK;
        }
    }
    grown = realloc(classes->classes, ((size_t)classes->count + 1) * sizeof(*grown));
    if (grown == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for kinds of devices");
    }
    classes->classes = grown;
    grown[classes->count] = (ap_device_class_t){.device = *device};
    status = ap_cost_model_create_device(profile, device, &grown[classes->count].cost);
    classes->count += status == XM_OK;
    return status;
}

static xm_status_t classify(ap_device_classes_t *classes, const xm_cluster_profile_t *profile,
                            double memory_limit)
{
    int hosts = classes->hosts;
    xm_status_t status = XM_OK;

    for (int first = 0; first < hosts && status == XM_OK; ++first) {
        xm_cluster_device_t least = xm_cluster_profile_host_device(profile, first);

        for (int count = 1; count <= hosts && status == XM_OK; ++count) {
            int *of = &classes->of[first * hosts + count - 1];
            xm_cluster_device_t device;

            *of = -1;
            if (first + count > hosts) {
                continue;
            }
            device = xm_cluster_profile_host_device(profile, first + count - 1);
            least.flops = fmin(least.flops, device.flops);
            least.memory_bytes = fmin(least.memory_bytes, device.memory_bytes);
            least.memory_bandwidth = fmin(least.memory_bandwidth, device.memory_bandwidth);
            device = least;
            if (memory_limit > 0.0) {
                device.memory_bytes = memory_limit;
            }
            status = get_class(classes, profile, &device, of);
        }
    }
    return status;
}

xm_status_t ap_device_classes_create(const xm_cluster_profile_t *profile, double memory_limit,
                                     ap_device_classes_t **classes)
{
    size_t hosts = (size_t)xm_cluster_profile_hosts(profile);
    ap_device_classes_t *made = calloc(1, sizeof(*made));
    xm_status_t status;

    if (made == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for kinds of devices");
    }
    made->hosts = (int)hosts;
    made->of = malloc(hosts * hosts * sizeof(*made->of));
    status = made->of == NULL ? xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %zu hosts", hosts)
                              : classify(made, profile, memory_limit);
    if (status != XM_OK) {
        ap_device_classes_destroy(made);
        return status;
    }
    *classes = made;
    return XM_OK;
}

int ap_device_classes_find(const ap_device_classes_t *classes, int first_host, int hosts)
{
    return classes->of[first_host * classes->hosts + hosts - 1];
}

void ap_device_classes_destroy(ap_device_classes_t *classes)
{
    if (classes == NULL) {
        return;
    }
    for (int i = 0; i < classes->count; ++i) {
        ap_cost_model_destroy(classes->classes[i].cost);
    }
    free(classes->classes);
    free(classes->of);
    free(classes);
}
