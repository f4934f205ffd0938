/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parallel configurations: resolves the sizes of a side's axes. num_gpus, dp, fsdp and ep
 * are used differently by different frameworks, so several readings are tried, and the
 * first whose product is num_gpus is taken; a configuration that fits no reading is
 * refused with all its numbers.
 */
#include "bench/model/parallel_config.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>

#include "bench/model/json_file.h"
#include "comm/base.h"

enum { MAX_RANKS = 1 << 22 };

static int one_if_absent(int size)
{
    return size == 0 ? 1 : size;
}

/* Euclid's algorithm. */
static int common_divisor(int a, int b)
{
    while (b != 0) {
        int rest = a % b;

        a = b;
        b = rest;
    }
    return a;
}

/* Zero means that a size is not given, for all but num_gpus. */
static xm_status_t check_sizes(const rb_parallel_t *parallel)
{
    const struct {
        const char *key;
        int value, minimum;
    } sizes[] = {{"num_gpus", parallel->num_gpus, 1}, {"tp_size", parallel->tp, 0},
                 {"cp_size", parallel->cp, 0},        {"ep_size", parallel->ep, 0},
                 {"pp_size", parallel->pp, 0},        {"fsdp_size", parallel->fsdp, 0},
                 {"dp_size", parallel->dp, 0},        {"etp_size", parallel->etp, 0}};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); ++i) {
        if (sizes[i].value < sizes[i].minimum || sizes[i].value > MAX_RANKS) {
            return XM_INVALID("%s is %d; it must be 1 to %d", sizes[i].key, sizes[i].value,
                              MAX_RANKS);
        }
    }
    return XM_OK;
}

/* The product of counts that may each be 2^22, cut where it can no longer equal a number
 * of ranks, so that it never overflows. */
static int64_t times(int64_t product, int size)
{
    return product > MAX_RANKS ? product : product * size;
}

/* Finds the data axis; *ep_apart says that ep is an axis beside fsdp and no part of it.
 * The readings are tried from the usual to the rare one. */
static xm_status_t find_data(rb_parallel_t *parallel, bool *ep_apart)
{
    int64_t inner = times(times(parallel->pp, parallel->cp), parallel->tp);
    int64_t data = parallel->num_gpus / inner, dp = parallel->dp, ep = parallel->ep;
    int64_t fsdp = parallel->fsdp;
    bool fits = parallel->num_gpus % inner == 0 && data % fsdp == 0;

    *ep_apart = false;
    if (fits && dp == 0) {
        dp = data / fsdp;
    }
    parallel->dp = (int)dp;
    parallel->data = (int)data;
    if (fits && (dp * fsdp == data || dp == data)) {
        return XM_OK;
    }
    if (fits && (dp * fsdp * ep == data || dp * ep == data)) {
        *ep_apart = true;
        return XM_OK;
    }
    if (fits && parallel->etp <= 1 &&
        times(times(dp, parallel->pp), parallel->ep) == parallel->num_gpus) {
        parallel->etp = 1;
        return XM_OK;
    }
    if (dp == 0) {
        return XM_INVALID("pp %d x fsdp %d x cp %d x tp %d does not divide num_gpus %d",
                          parallel->pp, parallel->fsdp, parallel->cp, parallel->tp,
                          parallel->num_gpus);
    }
    return XM_INVALID("pp %d x dp %d x fsdp %d x cp %d x tp %d does not make num_gpus %d ranks, "
                      "and neither does any reading with ep %d as an axis or fsdp inside dp",
                      parallel->pp, parallel->dp, parallel->fsdp, parallel->cp, parallel->tp,
                      parallel->num_gpus, parallel->ep);
}

/* Experts regroup the ranks of a stage: ep groups of etp ranks, and what is left is data.
 * Where ep is taken out of fsdp, experts are sharded by what it leaves. */
static xm_status_t find_expert_axes(rb_parallel_t *parallel, bool ep_apart)
{
    int stage = parallel->stage_ranks, ep = parallel->ep, fsdp = parallel->fsdp;

    if (parallel->etp == 0) {
        parallel->etp = stage % ep == 0 && stage / ep % parallel->tp == 0 ? parallel->tp : 1;
    }
    if (stage % ep != 0 || stage / ep % parallel->etp != 0) {
        return XM_INVALID("ep %d x etp %d does not divide the %d ranks of a pipeline stage", ep,
                          parallel->etp, stage);
    }
    parallel->expert_data = stage / ep / parallel->etp;
    if (!ep_apart) {
        fsdp /= common_divisor(fsdp, ep);
    }
    parallel->expert_fsdp = common_divisor(parallel->expert_data, fsdp);
    return XM_OK;
}

/* The result is written only when everything fits. */
xm_status_t rb_parallel_resolve(rb_parallel_t *parallel)
{
    rb_parallel_t made = *parallel;
    bool ep_apart;

    XM_TRY(check_sizes(parallel));
    made.tp = one_if_absent(made.tp);
    made.cp = one_if_absent(made.cp);
    made.ep = one_if_absent(made.ep);
    made.pp = one_if_absent(made.pp);
    made.fsdp = one_if_absent(made.fsdp);
    XM_TRY(find_data(&made, &ep_apart));
    made.stage_ranks = made.num_gpus / made.pp;
    XM_TRY(find_expert_axes(&made, ep_apart));
    *parallel = made;
    return XM_OK;
}

/* Sizes that are absent stay 0 and get their defaults later. */
static xm_status_t read_side(const json_t *root, const char *side, rb_parallel_t *parallel)
{
    static const char *const keys[] = {"num_gpus", "tp_size",   "cp_size", "ep_size",
                                       "pp_size",  "fsdp_size", "dp_size", "etp_size"};
    const json_t *object = json_object_get(root, side);
    int64_t values[sizeof(keys) / sizeof(keys[0])] = {0};
    xm_status_t status;

    if (!json_is_object(object)) {
        return XM_MALFORMED("'%s' is %s; it must be an object with 'num_gpus'", side,
                            object == NULL ? "missing" : xm_json_type(object));
    }
    XM_TRY(rb_json_check_keys(object, side, keys, sizeof(keys) / sizeof(keys[0])));
    if (json_object_get(object, "num_gpus") == NULL) {
        return XM_MALFORMED("%s: 'num_gpus' is missing", side);
    }
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); ++i) {
        XM_TRY(rb_json_int(object, side, keys[i], 1, MAX_RANKS, &values[i]));
    }
    *parallel = (rb_parallel_t){.num_gpus = (int)values[0],
                                .tp = (int)values[1],
                                .cp = (int)values[2],
                                .ep = (int)values[3],
                                .pp = (int)values[4],
                                .fsdp = (int)values[5],
                                .dp = (int)values[6],
                                .etp = (int)values[7]};
    status = rb_parallel_resolve(parallel);
    return status < 0 ? xm_error_prefix(status, "%s", side) : status;
}

/* Both sides are read before either is handed out. */
xm_status_t rb_parallel_read(const char *path, rb_parallel_t *train, rb_parallel_t *generation)
{
    static const char *const keys[] = {"train", "generation"};
    rb_parallel_t sides[2];
    json_t *root;
    xm_status_t status;

    XM_TRY(rb_json_load(path, &root));
    status = rb_json_check_keys(root, "the document", keys, 2);
    for (int i = 0; status == XM_OK && i < 2; ++i) {
        status = read_side(root, keys[i], &sides[i]);
    }
    json_decref(root);
    if (status < 0) {
        return xm_error_prefix(status, "%s", path);
    }
    *train = sides[0];
    *generation = sides[1];
    return XM_OK;
}
