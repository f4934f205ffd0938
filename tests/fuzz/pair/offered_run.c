/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz/pair/offered_run.h"

#include <stdlib.h>

enum { RUNS = 3, ROUNDS = 64 };

void expect(bool condition)
{
    if (!condition) {
        abort();
    }
}

static xm_layout_t *on_rank(int rank, int64_t bytes)
{
    const int64_t shape[] = {bytes};
    xm_layout_t *layout;
    xm_mesh_t *mesh;
    xm_spec_t spec;

    expect(xm_mesh_parse("1", NULL, rank, &mesh) == XM_OK && xm_spec_parse("R", &spec) == XM_OK);
    expect(xm_layout_create(mesh, &spec, XM_PARTITION_EVEN, shape, &layout) == XM_OK);
    xm_mesh_destroy(mesh);
    return layout;
}

void offered_run_plan(offered_run_t *run, int tensors, int64_t bytes, uint64_t chunk_bytes)
{
    static const int hosts[2] = {0};
    xm_network_params_t network_params = XM_NETWORK_PARAMS_INIT;
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
    xm_layout_t *src = on_rank(0, bytes), *dst = on_rank(1, bytes);
    xm_tensor_t *list = calloc((size_t)tensors, sizeof(*list));
    xm_network_t *network;

    expect(list != NULL);
    for (int t = 0; t < tensors; ++t) {
        list[t] = (xm_tensor_t){.src = src, .dst = dst, .element_bits = 8};
    }
    network_params.ranks = 2;
    network_params.host_of_rank = hosts;
    network_params.nic_bandwidth = network_params.host_bandwidth = 1e9;
    expect(xm_network_create(&network_params, &network) == XM_OK);
    params.tensors = list;
    params.tensor_count = tensors;
    params.network = network;
    params.chunk_bytes = chunk_bytes;
    expect(xm_plan_create(&params, &run->plan) == XM_OK);
    xm_network_destroy(network);
    xm_layout_destroy(src);
    xm_layout_destroy(dst);
    free(list);
}

void offered_run_begin(offered_run_t *run, const offered_run_ops_t *ops, unsigned flags)
{
    run->ops = ops;
    run->touched = UNTOUCHED;
    tampered_pair_begin(&run->pair, flags);
}

static void look(const offered_run_t *run)
{
    if (run->ops->look != NULL) {
        run->ops->look(run->executors[1]);
    }
}

static touched_t happen(offered_run_t *run, input_t *input)
{
    unsigned what = input_take(input), choice = what >> 4;

    switch (what & 7) {
    case 0:
        return run->ops->inject(&run->pair, run->executors[choice & 1], input);
    case 1:
        if (choice < 2) {
            xm_executor_cancel(run->executors[choice]);
            return MORE;
        }
        return UNTOUCHED;
    case 2:
    case 3:
        return run->ops->spoil(&run->pair, input, choice);
    case 4:
        (void)xm_executor_advance(run->executors[choice & 1]);
        return UNTOUCHED;
    default:
        (void)tampered_pair_deliver(&run->pair, choice);
        return UNTOUCHED;
    }
}

/* Until nothing moves any more; true when both have ended. */
static bool settle(offered_run_t *run, xm_status_t results[2])
{
    for (int idle = 0; idle < 3; ++idle) {
        for (int rank = 0; rank < 2; ++rank) {
            results[rank] = xm_executor_advance(run->executors[rank]);
            idle = xm_executor_may_sleep(run->executors[rank]) ? idle : 0;
        }
        look(run);
        while (tampered_pair_deliver(&run->pair, 0)) {
            idle = 0;
        }
    }
    return results[0] != XM_IN_PROGRESS && results[1] != XM_IN_PROGRESS;
}

/* A run of both ranks; false: no other can follow it. */
static bool run_once(offered_run_t *run, input_t *input)
{
    unsigned steps = input_take(input) % ROUNDS;
    xm_status_t results[2];

    if (run->ops->begin != NULL) {
        run->ops->begin();
    }
    for (int rank = 0; rank < 2; ++rank) {
        expect(xm_executor_post(run->executors[rank]) == XM_OK);
    }
    for (; steps > 0 && input->left > 0; --steps) {
        touched_t now = happen(run, input);

        run->touched = now > run->touched ? now : run->touched;
        look(run);
    }
    if (!settle(run, results)) {
        expect(run->touched != UNTOUCHED);
        for (int rank = 0; rank < 2; ++rank) {
            xm_executor_cancel(run->executors[rank]);
        }
        if (!settle(run, results)) {
            return false; /* their end gives the peers up */
        }
    }
    run->ops->check(run->touched, results);
    expect(run->touched != UNTOUCHED || (results[0] == XM_OK && results[1] == XM_OK));
    return results[0] == XM_OK && results[1] == XM_OK;
}

void offered_run_play(offered_run_t *run, input_t *input)
{
    for (int rank = 0; rank < 2; ++rank) {
        run->executors[rank] = run->ops->create(rank);
    }
    for (int i = 0; i < RUNS && (i == 0 || input->left > 0); ++i) {
        if (!run_once(run, input)) {
            break;
        }
    }
    for (int rank = 0; rank < 2; ++rank) {
        xm_transport_peer_failed(&run->pair.ends[rank].base, 1 - rank);
    }
    for (int rank = 0; rank < 2; ++rank) {
        xm_executor_destroy(run->executors[rank]);
    }
    tampered_pair_end(&run->pair);
}
