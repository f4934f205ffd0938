/* SPDX-License-Identifier: Apache-2.0 */
/* The profiles of comm/profile/clusters, which the build puts into the library as text: an
 * installed program needs no path to them. */
#include "comm/profile/shipped.h"

#include <string.h>

static const struct {
    const char *name, *text;
} clusters[] = {
#include "comm/profile/clusters.inc"
};

enum { CLUSTERS = sizeof(clusters) / sizeof(clusters[0]) };

const char *xm_cluster_shipped_name(size_t index)
{
    return index < CLUSTERS ? clusters[index].name : NULL;
}

const char *xm_cluster_shipped_text(const char *name)
{
    for (size_t i = 0; i < CLUSTERS; ++i) {
        if (strcmp(clusters[i].name, name) == 0) {
            return clusters[i].text;
        }
    }
    return NULL;
}
