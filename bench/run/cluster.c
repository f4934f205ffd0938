/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many ranks and hosts the selected cases need, and whether those there are suffice.
 * Everything is checked before the first case runs, so a suite does not fail in its
 * middle.
 */
#include "bench/run/cluster.h"

#include "bench/cases.h"

/* All cases of a selection share one emulation; where the user says nothing the first
 * case decides. */
int rb_cluster_ranks_per_host(const rb_options_t *options, const rb_selection_t *selection)
{
    return options->ranks_per_host > 0 ? options->ranks_per_host
                                       : selection->cases[0].ranks_per_host;
}

int rb_cluster_needs(const rb_options_t *options, const rb_selection_t *selection)
{
    int needed = 1, ranks_per_host = rb_cluster_ranks_per_host(options, selection);

    for (int i = 0; i < selection->count; ++i) {
        int needs = rb_place_needs(&selection->cases[i], ranks_per_host);

        needed = needs > needed ? needs : needed;
    }
    return needed;
}

xm_status_t rb_cluster_create(const rb_options_t *options, const rb_selection_t *selection,
                              rb_host_map_t *hosts)
{
    return rb_host_map_emulate(options->ranks > 0 ? options->ranks
                                                  : rb_cluster_needs(options, selection),
                               rb_cluster_ranks_per_host(options, selection), hosts);
}

/* Laying every case out without keeping it is cheap and finds all that planning could
 * refuse. */
xm_status_t rb_cluster_check(const rb_selection_t *selection, const rb_host_map_t *hosts)
{
    for (int i = 0; i < selection->count; ++i) {
        XM_TRY(rb_prepare_check(&selection->cases[i], hosts));
    }
    return XM_OK;
}
