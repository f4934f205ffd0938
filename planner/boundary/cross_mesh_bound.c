#include "planner/boundary/cross_mesh_bound.h"

#include <math.h>
#include <stdbool.h>

/* The simulation counts whole nanoseconds, sums are rounded: a bound is so much lower. */
static const double ROUNDING = 1e-9;

/* One side: its devices, and the tiles that its spec makes. */
typedef struct extent {
    const ap_cross_mesh_side_t *side;
    int first, end;           /* devices */
    int first_host, end_host; /* hosts */
    unsigned axes;            /* that cut the tensor */
    int tiles;
} extent_t;

static extent_t extent_of(const ap_cross_mesh_side_t *side, int per_host)
{
    extent_t extent = {.side = side,
                       .first = side->first_device,
                       .end = side->first_device + side->shape[0] * side->shape[1],
                       .axes = ap_spec_used_axes(side->spec),
                       .tiles = 1};

    extent.first_host = extent.first / per_host;
    extent.end_host = (extent.end - 1) / per_host + 1;
    for (int a = 0; a < 2; ++a) {
        extent.tiles *= (extent.axes >> a & 1U) != 0 ? side->shape[a] : 1;
    }
    return extent;
}

/* Different tiles on the devices from one up to another, counted from the first of the side. */
static int tiles_between(const extent_t *extent, int first, int end)
{
    int columns = extent->side->shape[1];

    switch (extent->axes) {
    case 0:
        return 1;
    case 1:
        return (end - 1) / columns - first / columns + 1;
    case 2:
        return end - first < columns ? end - first : columns;
    default:
        return end - first;
    }
}

static int parts_of(const ap_cross_mesh_side_t *side, int dim)
{
    unsigned axes = ap_spec_axes(side->spec, dim);

    return ((axes & 1U) != 0 ? side->shape[0] : 1) * ((axes & 2U) != 0 ? side->shape[1] : 1);
}

/* Pieces in which a tile of @p to arrives, one from each tile of @p from that it meets; 0 where
 * cuts do not fall on cuts, so that pieces differ. */
static int pieces_of(const ap_cross_mesh_side_t *from, const ap_cross_mesh_side_t *to, int rank)
{
    int pieces = 1;

    for (int d = 0; d < rank; ++d) {
        int there = parts_of(from, d), here = parts_of(to, d);

        if (there % here != 0 && here % there != 0) {
            return 0;
        }
        pieces *= there > here ? there / here : 1;
    }
    return pieces;
}

/* The hosts of one side take in what they need, those of the other give everything out. */
static double nics(const xm_cluster_profile_t *profile, const extent_t *from, const extent_t *to,
                   double tile)
{
    int per_host = xm_cluster_profile_devices_per_host(profile);
    double longest = 0.0, egress = 0.0;

    for (int host = to->first_host; host < to->end_host; ++host) {
        int first = host * per_host > to->first ? host * per_host : to->first;
        int end = (host + 1) * per_host < to->end ? (host + 1) * per_host : to->end;
        int tiles = tiles_between(to, first - to->first, end - to->first);

        longest =
            fmax(longest, tiles * tile / xm_cluster_profile_host_nic_bandwidth(profile, host));
    }
    for (int host = from->first_host; host < from->end_host; ++host) {
        egress += xm_cluster_profile_host_nic_bandwidth(profile, host);
    }
    return fmax(longest, to->tiles * tile / egress) +
           xm_cluster_profile_latency(profile, XM_LINK_INTER_HOST);
}

/*
 * Every device takes in its tile piece by piece: from another host, or from the neighbour that has
 * it from there. What the devices of the first host take together, on average; and what the
 * senders do.
 */
static double devices(const xm_cluster_profile_t *profile, const extent_t *from, const extent_t *to,
                      double tile, int pieces, bool beside)
{
    int per_host = xm_cluster_profile_devices_per_host(profile);
    double inside = xm_cluster_profile_seconds(profile, XM_LINK_INTRA_HOST, tile / pieces);
    double across, taken, given;
    int here, tiles;

    if (beside) {
        return pieces * inside;
    }
    here = (to->first_host + 1) * per_host < to->end ? (to->first_host + 1) * per_host - to->first
                                                     : to->end - to->first;
    tiles = tiles_between(to, 0, here);
    across = xm_cluster_profile_seconds(profile, XM_LINK_INTER_HOST, tile / pieces);
    taken = pieces * (tiles * across + (here - tiles) * inside) / here;
    given = (double)pieces * to->tiles * across / (from->end - from->first);
    return fmax(taken, given);
}

double ap_cross_mesh_bound(const xm_cluster_profile_t *profile, const ap_shape_t *shape,
                           int element_size, const ap_cross_mesh_side_t *from,
                           const ap_cross_mesh_side_t *to)
{
    int per_host = xm_cluster_profile_devices_per_host(profile);
    extent_t source = extent_of(from, per_host), target = extent_of(to, per_host);
    int pieces = pieces_of(from, to, shape->rank);
    bool beside = source.first_host < target.end_host && target.first_host < source.end_host;
    bool one_host =
        source.end_host - source.first_host == 1 && target.end_host - target.first_host == 1;
    double tile = element_size, seconds = 0.0;

    for (int d = 0; d < shape->rank; ++d) {
        tile *= (double)shape->dims[d];
    }
    tile /= target.tiles;
    if (!beside) {
        seconds = nics(profile, &source, &target, tile);
    }
    if (pieces > 0 && (!beside || one_host)) {
        seconds = fmax(seconds, devices(profile, &source, &target, tile, pieces, beside));
    }
    return fmax(0.0, seconds * (1.0 - ROUNDING) - ROUNDING);
}
