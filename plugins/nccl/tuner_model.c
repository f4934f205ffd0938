/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cost model behind the tuner (tuner_model.h has the formulas): steps times latency
 * plus bytes over bandwidth, corrected where NCCL itself was measured on this axis.
 */
#include "plugins/nccl/tuner_model.h"

#include <math.h>
#include <string.h>

/* The efficiency that NCCL's own model gives a tree's bandwidth. */
static const double tree_efficiency = 0.92;

static const double efficiency[NCCL_PROTOCOLS] = {
    [NCCL_LL] = 0.5, [NCCL_LL128] = 120.0 / 128.0, [NCCL_SIMPLE] = 1.0};

/* What an algorithm does for a collective: steps between hosts, steps inside hosts, and
 * its volume. */
typedef struct {
    double net_steps, local_steps;
    double volume; /* of S */
} work_t;

/* False for combinations that the model does not know, such as trees for anything but
 * all-reduce. */
static bool work_of(const tuner_model_t *model, int collective, int algorithm, work_t *work)
{
    double n = model->ranks, m = model->hosts;
    double rounds = collective == NCCL_ALL_REDUCE ? 2 : 1;

    if (algorithm == NCCL_TREE) {
        *work = (work_t){.net_steps = 2 * ceil(log2(m)),
                         .local_steps = 2 * (n / m - 1),
                         .volume = 2 / tree_efficiency};
        return collective == NCCL_ALL_REDUCE;
    }
    if (algorithm != NCCL_RING || collective < 0 || collective >= NCCL_COLLECTIVES) {
        return false;
    }
    work->net_steps = rounds * (m - 1);
    work->local_steps = rounds * (n - m);
    work->volume =
        collective == NCCL_BROADCAST || collective == NCCL_REDUCE ? 1 : rounds * (n - 1) / n;
    return true;
}

static double latency_of(const tuner_model_t *model, const work_t *work, int collective,
                         int algorithm, int protocol)
{
    double steps = work->net_steps + work->local_steps;

    return model->latency_scale[collective] *
           (work->net_steps * model->net_latency + work->local_steps * model->local_latency +
            steps * model->extra[algorithm][protocol]);
}

static double slope_of(const tuner_model_t *model, const work_t *work, int collective, int protocol)
{
    return model->volume_scale[collective] * work->volume /
           (model->bandwidth * efficiency[protocol]);
}

/* Several operations in one call share the volume but each pay the latency. */
double tuner_model_seconds(const tuner_model_t *model, int collective, int algorithm, int protocol,
                           double bytes, int operations)
{
    work_t work;

    if (!work_of(model, collective, algorithm, &work)) {
        return -1;
    }
    return latency_of(model, &work, collective, algorithm, protocol) *
               (operations > 1 ? operations : 1) +
           bytes * slope_of(model, &work, collective, protocol);
}

static double best_slope(const tuner_model_t *model, int collective)
{
    double best = INFINITY;
    work_t work;

    for (int algorithm = 0; algorithm < TUNER_ALGORITHMS; ++algorithm) {
        if (work_of(model, collective, algorithm, &work)) {
            best = fmin(best, slope_of(model, &work, collective, NCCL_SIMPLE));
        }
    }
    return best;
}

static double best_latency(const tuner_model_t *model, int collective)
{
    double best = INFINITY;
    work_t work;

    for (int algorithm = 0; algorithm < TUNER_ALGORITHMS; ++algorithm) {
        for (int protocol = 0; protocol < NCCL_PROTOCOLS; ++protocol) {
            if (work_of(model, collective, algorithm, &work)) {
                best = fmin(best, latency_of(model, &work, collective, algorithm, protocol));
            }
        }
    }
    return best;
}

/* Scales the model so that its cheapest combination meets the curve: its slope at the
 * last point, and its time at the first, where bytes cost next to nothing. */
static void meet(tuner_model_t *model, int collective, const xm_collective_curve_t *curve)
{
    const xm_curve_point_t *points = curve->points;
    const xm_curve_point_t *last = &points[curve->count - 1], *before = last - 1;
    double slope = (last->seconds - before->seconds) / (double)(last->bytes - before->bytes);
    double rest, latency = best_latency(model, collective);

    model->volume_scale[collective] = slope / best_slope(model, collective);
    rest = points[0].seconds - (double)points[0].bytes * slope;
    if (rest > 0 && latency > 0) {
        model->latency_scale[collective] = rest / latency;
    }
}

static int kind_of(int collective)
{
    switch (collective) {
    case NCCL_ALL_GATHER:
        return XM_ALL_GATHER;
    case NCCL_REDUCE_SCATTER:
        return XM_REDUCE_SCATTER;
    case NCCL_ALL_REDUCE:
        return XM_ALL_REDUCE;
    default:
        return -1;
    }
}

/* The curve of NCCL on the axis of all ranks; NULL when it was not measured there. Curves
 * of other libraries say nothing about NCCL. */
static const xm_collective_curve_t *curve_of(const tuner_model_t *model,
                                             const xm_cluster_profile_t *profile, int collective)
{
    int kind = kind_of(collective);
    const xm_collective_curve_t *curve = NULL;

    if (kind >= 0 && model->ranks % model->hosts == 0) {
        curve = xm_cluster_profile_find_collective(profile, (xm_collective_t)kind, model->hosts,
                                                   model->ranks / model->hosts, 1);
    }
    return curve != NULL && strncmp(curve->library, "NCCL", 4) == 0 ? curve : NULL;
}

void tuner_model_init(tuner_model_t *model, const xm_cluster_profile_t *profile, int ranks,
                      int hosts, const nccl_constants_v5_t *constants)
{
    *model = (tuner_model_t){
        .ranks = ranks,
        .hosts = hosts,
        .net_latency = xm_cluster_profile_latency(profile, XM_LINK_INTER_HOST),
        .local_latency = xm_cluster_profile_latency(profile, XM_LINK_INTRA_HOST),
        .bandwidth = xm_cluster_profile_nic_bandwidth(profile),
    };
    /* The handshakes of LL are part of the measured latency, so only what others cost
     * more is added. */
    for (int algorithm = 0; algorithm < TUNER_ALGORITHMS && constants != NULL; ++algorithm) {
        const double *latency = constants->link_latency[NCCL_LINK_NETWORK][algorithm];

        for (int protocol = 0; protocol < NCCL_PROTOCOLS; ++protocol) {
            model->extra[algorithm][protocol] = fmax(latency[protocol] - latency[NCCL_LL], 0) / 1e6;
        }
    }
    for (int collective = 0; collective < NCCL_COLLECTIVES; ++collective) {
        const xm_collective_curve_t *curve = curve_of(model, profile, collective);

        model->latency_scale[collective] = model->volume_scale[collective] = 1;
        if (curve != NULL) {
            meet(model, collective, curve);
        }
    }
}
