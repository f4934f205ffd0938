/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places the sides of a case on ranks (placement.h has the rules). Cases by host need
 * hosts of a certain size and are placed apart where that is possible; described cases
 * are placed by rank number.
 */
#include "bench/cases/placement.h"

#include <stdlib.h>

/* The highest rank of a side whose ranks begin at `first` unless they are listed. */
static int highest(const rb_side_t *side, int first)
{
    int size = rb_side_size(side), top = first - 1 + size;

    if (side->ranks == NULL) {
        return top;
    }
    top = 0;
    for (int i = 0; i < size; ++i) {
        top = side->ranks[i] > top ? side->ranks[i] : top;
    }
    return top;
}

/* True for a small case whose two sides fit on one host together. */
static bool packs(const rb_case_t *one, int ranks_on_host)
{
    return one->pack && one->src.hosts == 1 && one->dst.hosts == 1 &&
           one->src.devices + one->dst.devices <= ranks_on_host;
}

/* The number that error sentences and -n ask for: enough that the sides do not share
 * hosts. */
int rb_place_needs(const rb_case_t *one, int ranks_per_host)
{
    int src_top, dst_top;

    if (one->src.hosts == 0) {
        src_top = highest(&one->src, 0);
        dst_top = highest(&one->dst, src_top + 1);
        return (src_top > dst_top ? src_top : dst_top) + 1;
    }
    if (ranks_per_host == 0 || packs(one, ranks_per_host)) {
        return one->src.hosts * one->src.devices + one->dst.hosts * one->dst.devices;
    }
    return (one->src.hosts + one->dst.hosts - 1) * ranks_per_host + one->dst.devices;
}

/* The prefix says which side's mesh is at fault. */
static xm_status_t make_mesh(const char *side_name, const rb_side_t *side, const int *ranks,
                             xm_mesh_t **mesh)
{
    xm_status_t status = xm_mesh_create(side->axes, side->sizes, ranks, mesh);

    return status < 0 ? xm_error_prefix(status, "%s mesh", side_name) : status;
}

/* On failure neither mesh is left behind. */
static xm_status_t make_meshes(const rb_case_t *one, const int *src_ranks, const int *dst_ranks,
                               xm_mesh_t **src, xm_mesh_t **dst)
{
    xm_mesh_t *made;
    xm_status_t status;

    XM_TRY(make_mesh("source", &one->src, src_ranks, &made));
    status = make_mesh("destination", &one->dst, dst_ranks, dst);
    if (status < 0) {
        xm_mesh_destroy(made);
        return status;
    }
    *src = made;
    return XM_OK;
}

/* The destination follows the source unless its ranks are listed, which is the only way
 * to overlap them. */
static xm_status_t place_by_rank(const rb_case_t *one, const rb_host_map_t *hosts, xm_mesh_t **src,
                                 xm_mesh_t **dst)
{
    int first = highest(&one->src, 0) + 1, count = rb_side_size(&one->dst);
    int *following;
    xm_status_t status;

    if (one->model != NULL && first + count > hosts->ranks) {
        return XM_INVALID("model %s has %d training and %d serving ranks, which makes %d ranks, "
                          "but the job has %d",
                          one->name, rb_side_size(&one->src), count, first + count, hosts->ranks);
    }
    if (one->dst.ranks == NULL && first + count > hosts->ranks) {
        return XM_INVALID("a source mesh of %d ranks and a destination mesh of %d ranks after it "
                          "need %d ranks, but the job has %d; --dst-ranks may name ranks of both",
                          rb_side_size(&one->src), count, first + count, hosts->ranks);
    }
    following = malloc((size_t)count * sizeof(int));
    XM_NEED_MEMORY(following, "a mesh of %d ranks", count);
    for (int i = 0; i < count; ++i) {
        following[i] = first + i;
    }
    status = make_meshes(one, one->src.ranks, one->dst.ranks != NULL ? one->dst.ranks : following,
                         src, dst);
    free(following);
    return status;
}

/*
 * Lists the ranks of one side: on each host `devices` ranks from number `offset` on, or
 * the last ones when it is negative. The sentence on failure says what job would be large
 * enough.
 */
static xm_status_t list_ranks(const rb_case_t *one, const rb_side_t *side,
                              const rb_host_map_t *hosts, int first_host, int offset, int *ranks)
{
    for (int h = 0; h < side->hosts; ++h) {
        int members =
            first_host + h < hosts->hosts ? rb_host_map_members(hosts, first_host + h) : 0;
        int start = offset < 0 ? members - side->devices : offset;

        if (members < side->devices) {
            return XM_INVALID("case %s needs %d ranks on each of %d hosts, but host %d of the job "
                              "has %d; %d ranks on hosts of %d are enough",
                              one->name, side->devices, side->hosts, first_host + h, members,
                              rb_place_needs(one, one->ranks_per_host), one->ranks_per_host);
        }
        for (int i = 0; i < side->devices; ++i) {
            *ranks++ = rb_host_map_member(hosts, first_host + h, start + i);
        }
    }
    return XM_OK;
}

/* When there are too few hosts, the destination moves to the last ranks of the last
 * hosts, where it overlaps the source as little as possible. */
static xm_status_t place_by_host(const rb_case_t *one, const rb_host_map_t *hosts, xm_mesh_t **src,
                                 xm_mesh_t **dst, bool *shared)
{
    int src_count = rb_side_size(&one->src), dst_host = one->src.hosts, offset = 0;
    int *ranks = malloc((size_t)(src_count + rb_side_size(&one->dst)) * sizeof(int));
    bool shares = false;
    xm_status_t status;

    XM_NEED_MEMORY(ranks, "the ranks of case %s", one->name);
    if (packs(one, rb_host_map_members(hosts, 0))) {
        dst_host = 0;
        offset = one->src.devices;
    } else if (dst_host + one->dst.hosts > hosts->hosts ||
               rb_host_map_members(hosts, dst_host + one->dst.hosts - 1) < one->dst.devices) {
        dst_host = hosts->hosts > one->dst.hosts ? hosts->hosts - one->dst.hosts : 0;
        shares = true;
        offset = -1;
    }
    status = list_ranks(one, &one->src, hosts, 0, 0, ranks);
    XM_THEN(status, list_ranks(one, &one->dst, hosts, dst_host, offset, ranks + src_count));
    XM_THEN(status, make_meshes(one, ranks, ranks + src_count, src, dst));
    free(ranks);
    if (status == XM_OK) {
        *shared = shares;
    }
    return status;
}

/* Cases with hosts go by host, all others by rank. */
xm_status_t rb_place(const rb_case_t *one, const rb_host_map_t *hosts, xm_mesh_t **src,
                     xm_mesh_t **dst, bool *shared)
{
    if (one->src.hosts > 0) {
        return place_by_host(one, hosts, src, dst, shared);
    }
    XM_TRY(place_by_rank(one, hosts, src, dst));
    *shared = false;
    return XM_OK;
}
