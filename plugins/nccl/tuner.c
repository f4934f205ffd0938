/* NCCL's tuner: picks algorithm and protocol of each collective from the measured cluster
 * profile (XM_PROFILE), and leaves NCCL's own choice where that says nothing. */
#include <limits.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "comm/base.h"
#include "plugins/nccl/plugin_log.h"
#include "plugins/nccl/tuner_model.h"

#define EXPORT __attribute__((visibility("default")))

/* The reasons for leaving NCCL's choice are told once each in a process, which has a
 * communicator for every axis of a mesh. */
enum { NO_PROFILE, BAD_PROFILE, ONE_HOST, REASONS };

static void tell_once(int reason, const char *sentence)
{
    static atomic_flag logged[REASONS] = {ATOMIC_FLAG_INIT, ATOMIC_FLAG_INIT, ATOMIC_FLAG_INIT};

    if (!atomic_flag_test_and_set(&logged[reason])) {
        plugin_log_write(reason == BAD_PROFILE ? NCCL_LOG_WARN : NCCL_LOG_INFO, NCCL_SUBJECT_TUNING,
                         __FILE__, __LINE__, "TUNER/crossmesh: %s; NCCL's own choice stays",
                         sentence);
    }
}

/* Gives NCCL the measured latency too, for the cases that it predicts by itself. */
static void correct(nccl_constants_v5_t *constants, const tuner_model_t *model)
{
    for (int algorithm = 0; algorithm < TUNER_ALGORITHMS; ++algorithm) {
        for (int protocol = 0; protocol < NCCL_PROTOCOLS; ++protocol) {
            constants->link_latency[NCCL_LINK_NETWORK][algorithm][protocol] =
                (model->net_latency + model->extra[algorithm][protocol]) * 1e6;
        }
    }
}

/* NULL leaves NCCL's choice, and is no failure: a job must not stop because a profile is
 * missing. */
static tuner_model_t *load_model(int ranks, int hosts, nccl_constants_v5_t *constants)
{
    const char *path = xm_config_string(XM_CONFIG_PROFILE);
    xm_cluster_profile_t *profile;
    tuner_model_t *model;

    if (hosts < 2) {
        tell_once(ONE_HOST, "all ranks are on one host");
        return NULL;
    }
    if (path[0] == '\0') {
        tell_once(NO_PROFILE, "XM_PROFILE names no cluster profile");
        return NULL;
    }
    if (xm_cluster_profile_load(path, &profile) < 0) {
        tell_once(BAD_PROFILE, xm_last_error());
        return NULL;
    }
    model = malloc(sizeof(*model));
    if (model != NULL) {
        tuner_model_init(model, profile, ranks, hosts, constants);
        if (constants != NULL) {
            correct(constants, model);
        }
        plugin_info(NCCL_SUBJECT_TUNING,
                    "TUNER/crossmesh: %d ranks on %d hosts by %s: %.1f us, %.2f GB/s between hosts",
                    ranks, hosts, path, model->net_latency * 1e6, model->bandwidth / 1e9);
    }
    xm_cluster_profile_destroy(profile);
    return model;
}

static nccl_result_t tuner_init(void **context, uint64_t job, size_t ranks, size_t nodes,
                                nccl_log_t log, nccl_domains_v5_t *domains,
                                nccl_constants_v5_t *constants)
{
    (void)job;
    (void)domains;
    plugin_log_set(log);
    *context = NULL;
    if (ranks >= nodes && ranks <= INT_MAX) {
        *context = load_model((int)ranks, (int)nodes, constants);
    }
    return NCCL_OK;
}

/* Marks the cheapest combination that NCCL allows by a cost of 0, and leaves all other
 * costs. */
static nccl_result_t tuner_collective(void *context, int collective, size_t bytes, int operations,
                                      float **costs, int algorithms, int protocols, int registered,
                                      int *channels)
{
    const tuner_model_t *model = context;
    float *table = (float *)costs; /* one array of rows, whatever its type says */
    double best = INFINITY, theirs = INFINITY;
    float *pick = NULL;
    int cheapest = NCCL_RING;

    (void)registered;
    (void)channels; /* as many as NCCL thinks fit */
    if (model == NULL || protocols < NCCL_PROTOCOLS) {
        return NCCL_OK;
    }
    for (int algorithm = 0; algorithm < algorithms; ++algorithm) {
        for (int protocol = 0; protocol < NCCL_PROTOCOLS; ++protocol) {
            float *cost = &table[algorithm * protocols + protocol];
            double seconds = tuner_model_seconds(model, collective, algorithm, protocol,
                                                 (double)bytes, operations);

            if (*cost < 0) { /* NCCL cannot, or must not */
                continue;
            }
            if (*cost < theirs) {
                theirs = *cost;
                cheapest = algorithm;
            }
            if (seconds >= 0 && seconds < best) {
                best = seconds;
                pick = cost;
            }
        }
    }
    /* Switches that reduce, and whatever comes later, are not ours to judge. */
    if (pick != NULL && cheapest < TUNER_ALGORITHMS) {
        *pick = 0;
    }
    return NCCL_OK;
}

static nccl_result_t tuner_finalize(void *context)
{
    free(context);
    return NCCL_OK;
}

EXPORT extern const nccl_tuner_v5_t ncclTunerPlugin_v5;

const nccl_tuner_v5_t ncclTunerPlugin_v5 = {.name = "crossmesh",
                                            .init = tuner_init,
                                            .collective = tuner_collective,
                                            .finalize = tuner_finalize};
