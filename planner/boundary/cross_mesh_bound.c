/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lower bound on the time of a resharding between two stages. The stage search asks for the
 * boundary of every pair of candidate stages, and the real answer costs a plan and its simulation,
 * so a bound that takes a microsecond lets most pairs stay unpriced. A bound that is too high would
 * lose the best plan without a word, hence only facts that every plan obeys are counted: what each
 * NIC must carry, and what the messages of the average device take. Where the tiles do not nest, or
 * where both sides lie on the same several hosts, the bound is weak instead of wrong.
 */

#include "planner/boundary/cross_mesh_bound.h"

#include <math.h>
#include <stdbool.h>

/* The simulation counts whole nanoseconds, sums are rounded: a bound is so much lower. */
static const double ROUNDING = 1e-9;

/* One side: its devices, and the tiles that its spec makes. */
typedef struct extent {
    const ap_cross_mesh_side_t *side;
    ap_spec_t spec;
    int first, end;           /* devices */
    int first_host, end_host; /* hosts */
    unsigned axes;            /* that cut the tensor */
    int tiles;
} extent_t;

/* Reads off one side once what the bound asks for repeatedly. Devices are numbered host by host, so
 * the hosts of a side are a range like its devices. Axes of the mesh that cut no dimension leave
 * copies, and do not add to the number of tiles. */
static extent_t extent_of(const ap_cross_mesh_side_t *side, ap_spec_t spec, int per_host)
{
    extent_t extent = {.side = side,
                       .spec = spec,
                       .first = side->first_device,
                       .end = side->first_device + side->shape[0] * side->shape[1],
                       .axes = ap_spec_used_axes(spec),
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

/* How many parts one dimension of the tensor is cut into on this side. */
static int parts_of(const extent_t *extent, int dim)
{
    unsigned axes = ap_spec_axes(extent->spec, dim);
    const int *shape = extent->side->shape;

    return ((axes & 1U) != 0 ? shape[0] : 1) * ((axes & 2U) != 0 ? shape[1] : 1);
}

/* Counts the pieces in which a tile of @p to arrives, one from each tile of @p from that it meets.
 * Where neither number of cuts divides the other the pieces are of different sizes, and the answer
 * 0 says that the count means nothing. */
static int pieces_of(const extent_t *from, const extent_t *to, int rank)
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

/* The least that a message of at most so many bytes between hosts takes beside its bytes at the
 * NIC's rate: measured curves may rise more slowly than that at first. Straight between points. */
static double least_beside(const xm_cluster_profile_t *profile, double bytes, double rate)
{
    size_t count;
    const xm_curve_point_t *points = xm_cluster_profile_curve(profile, XM_LINK_INTER_HOST, &count);
    double least = xm_cluster_profile_seconds(profile, XM_LINK_INTER_HOST, bytes) - bytes / rate;

    for (size_t i = 0; i < count && (double)points[i].bytes < bytes; ++i) {
        least = fmin(least, points[i].seconds - (double)points[i].bytes / rate);
    }
    return fmax(least, 0.0);
}

/* Bounds the time by the NICs. Every host of the receiving side takes in each tile that its devices
 * hold at least once, because nothing of it is there yet; copies for further devices may come from
 * a neighbour on the same host. The sending hosts together give out every tile at least once. At
 * least one message crosses, and takes what it takes beside its bytes. */
static double nics(const xm_cluster_profile_t *profile, const extent_t *from, const extent_t *to,
                   double tile)
{
    int per_host = xm_cluster_profile_devices_per_host(profile);
    double longest = 0.0, egress = 0.0, slowest = INFINITY;

    for (int host = to->first_host; host < to->end_host; ++host) {
        int first = host * per_host > to->first ? host * per_host : to->first;
        int end = (host + 1) * per_host < to->end ? (host + 1) * per_host : to->end;
        int tiles = tiles_between(to, first - to->first, end - to->first);
        double rate = xm_cluster_profile_host_nic_bandwidth(profile, host);

        longest = fmax(longest, tiles * tile / rate);
        slowest = fmin(slowest, rate);
    }
    for (int host = from->first_host; host < from->end_host; ++host) {
        egress += xm_cluster_profile_host_nic_bandwidth(profile, host);
    }
    return fmax(longest, to->tiles * tile / egress) + least_beside(profile, tile, slowest);
}

/* The least that so many bytes take a device, in however many messages: schedules cut messages, and
 * a measured curve may say that two halves take less than the whole. Between its points the seconds
 * of a byte only rise or only fall, so the points and the size itself are enough. */
static double least_seconds(const xm_cluster_profile_t *profile, xm_link_class_t link, double bytes)
{
    size_t count;
    const xm_curve_point_t *points = xm_cluster_profile_curve(profile, link, &count);
    double least = xm_cluster_profile_seconds(profile, link, bytes) / bytes;

    for (size_t i = 0; i < count && (double)points[i].bytes < bytes; ++i) {
        least = fmin(least, points[i].seconds / (double)points[i].bytes);
    }
    return least * bytes;
}

/* Bounds the time by the devices, each of which handles one message at a time. A device takes in
 * its tile piece by piece, from another host or from the neighbour on its host that has it from
 * there. The mean over the devices of the first host bounds the slowest of them, and likewise the
 * mean over the senders. The messages cost what the measured curves say for their size, so that
 * many small pieces are not priced by the bandwidth of large ones. */
static double devices(const xm_cluster_profile_t *profile, const extent_t *from, const extent_t *to,
                      double tile, int pieces, bool beside)
{
    int per_host = xm_cluster_profile_devices_per_host(profile);
    double inside = least_seconds(profile, XM_LINK_INTRA_HOST, tile / pieces);
    double across, taken, given;
    int here, tiles;

    if (beside) {
        return pieces * inside;
    }
    here = (to->first_host + 1) * per_host < to->end ? (to->first_host + 1) * per_host - to->first
                                                     : to->end - to->first;
    tiles = tiles_between(to, 0, here);
    across = least_seconds(profile, XM_LINK_INTER_HOST, tile / pieces);
    inside = fmin(inside, across); /* a copy, too, may come from the other side */
    taken = pieces * (tiles * across + (here - tiles) * inside) / here;
    given = (double)pieces * to->tiles * across / (from->end - from->first);
    return fmax(taken, given);
}

/* Takes the larger of the two bounds, each where it holds. The NICs say nothing where the sides
 * share hosts, since a tile may then never leave its host; the devices say nothing there either,
 * unless both sides lie on one and the same host and all messages are inside it. The rounding is
 * taken off at the end, so that the bound stays below a simulation that rounds its times to
 * nanoseconds. */
double ap_cross_mesh_bound(const xm_cluster_profile_t *profile,
                           const ap_cross_mesh_transfer_t *transfer, int tensor, bool back)
{
    const ap_cross_mesh_tensor_t *of = &transfer->tensors[tensor];
    const ap_shape_t *shape = &of->shape;
    int per_host = xm_cluster_profile_devices_per_host(profile);
    extent_t source = extent_of(&transfer->src, of->src, per_host),
             target = extent_of(&transfer->dst, of->dst, per_host), swapped = source;
    int pieces;
    bool beside, one_host;
    double tile = of->element_size, seconds = 0.0;

    if (back) {
        source = target;
        target = swapped;
    }
    pieces = pieces_of(&source, &target, shape->rank);
    beside = source.first_host < target.end_host && target.first_host < source.end_host;
    one_host = source.end_host - source.first_host == 1 && target.end_host - target.first_host == 1;
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
