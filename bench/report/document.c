/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The JSON report (docs/reshard-bench.md): one document with the settings of the run and
 * an entry for each result. It contains everything that the tables show and the arguments
 * and environment that led to it, so a stored report can be reproduced. An addition that
 * fails costs one field.
 */
#include "bench/report/document.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include <crossmesh/version.h>

struct rb_document {
    const rb_job_info_t *job;
    json_t *root;
    json_t *results; /* borrowed from root */
};

/* All set variables but the job's secret, which must not end up in files. */
static json_t *environment_json(void)
{
    json_t *environment = json_object();

    for (int id = 0; id < XM_CONFIG_COUNT; ++id) {
        const char *name = xm_config_row((xm_config_id_t)id)->name, *value = getenv(name);

        if (value != NULL && id != XM_CONFIG_JOB_SECRET) {
            (void)json_object_set_new(environment, name, rb_json_text(value));
        }
    }
    return environment;
}

/* One number where all NICs are alike, as in most reports, and a list otherwise. */
static json_t *network_json(const rb_rates_t *rates, int hosts)
{
    json_t *nics = rates->nic_rates > 1 ? rb_json_numbers(rates->nic_bandwidth, rates->nic_rates)
                                        : json_real(rates->nic_bandwidth[0]);
    json_t *cores =
        rates->cores_per_host > 0
            ? json_pack("{s:f, s:f, s:f}", "per_host", rates->cores_per_host, "nic_s_per_byte",
                        rates->nic_cpu, "host_s_per_byte", rates->host_cpu)
            : NULL;

    /* "emulated" marks rates that are those of TCP's payload on emulated NICs. */
    return json_pack("{s:o, s:f, s:f, s:f, s:o, s:o*, s:o*, s:o*, s:o*, s:o*}", "nic_bandwidth_Bps",
                     nics, "nic_latency_s", rates->nic_latency, "host_bandwidth_Bps",
                     rates->host_bandwidth, "host_latency_s", rates->host_latency, "source",
                     rb_json_text(rates->source), "rails",
                     rates->rails > hosts ? json_integer(rates->rails) : NULL, "cores", cores,
                     "emulated", rates->emulated ? json_true() : NULL, "racks",
                     rates->racks > 0 ? json_integer(rates->racks) : NULL, "uplink_bandwidth_Bps",
                     rates->racks > 0 ? json_real(rates->uplink_bandwidth) : NULL);
}

/* Settings that do not apply to a dry run are left out rather than written with a
 * default. */
static json_t *config_json(const rb_job_info_t *job)
{
    const rb_options_t *o = job->options;
    json_t *config = json_pack(
        "{s:i, s:i, s:s, s:s, s:I, s:I, s:b, s:i, s:o, s:s*, s:o*, s:o*}", "ranks",
        job->hosts->ranks, "hosts", job->hosts->hosts, "transport", rb_job_transport(job),
        "partition", xm_partition_name(o->partition), "scale_divisor", (json_int_t)o->scale_divisor,
        "chunk_bytes", (json_int_t)xm_config_bytes(XM_CONFIG_CHUNK_SIZE), "dry_run", o->dry_run,
        "seed", o->seed, "network", network_json(job->rates, job->hosts->hosts), "memory",
        o->memory == XM_MEMORY_CUDA ? "cuda" : NULL, "memory_limit_bytes",
        o->memory_limit > 0 ? json_integer((json_int_t)o->memory_limit) : NULL, "start",
        job->start != NULL ? rb_json_text(job->start) : NULL);

    if (config != NULL && !o->dry_run) {
        (void)json_object_update_new(
            config,
            json_pack("{s:i, s:i, s:s*, s:b, s:o*, s:b, s:b}", "warmup", o->warmup, "iterations",
                      o->iterations, "protocol", o->paper ? "paper" : NULL, "validate", o->validate,
                      "window", job->window > 0 ? json_integer(job->window) : NULL, "verify",
                      o->verify, "virtual_time", o->transport == RB_TRANSPORT_SIM));
    }
    return config;
}

/* Names and process ids exist only for real ranks. */
static json_t *ranks_json(const rb_job_info_t *job)
{
    json_t *ranks = json_array();

    for (int r = 0; r < job->hosts->ranks; ++r) {
        json_t *rank = json_pack("{s:i, s:i}", "rank", r, "host", job->hosts->host_of[r]);

        if (job->ranks != NULL) {
            (void)json_object_set_new(rank, "host_name", json_string(job->ranks[r].host));
            (void)json_object_set_new(rank, "pid", json_integer(job->ranks[r].pid));
        }
        (void)json_array_append_new(ranks, rank);
    }
    return ranks;
}

/* No document is made unless one was asked for; the other functions accept NULL. */
xm_status_t rb_document_create(const rb_job_info_t *job, rb_document_t **document)
{
    rb_document_t *created;

    if (!xm_cli_wants_json(&job->options->json)) {
        *document = NULL;
        return XM_OK;
    }
    created = calloc(1, sizeof(*created));
    XM_NEED_MEMORY(created, "the JSON report");
    created->job = job;
    created->results = json_array();
    created->root = json_pack("{s:s, s:o, s:o, s:o, s:o, s:o}", "version", XM_VERSION_STRING,
                              "args", rb_json_arguments(job->options->argc, job->options->argv),
                              "env", environment_json(), "config", config_json(job), "ranks",
                              ranks_json(job), "results", created->results);
    if (created->root == NULL) {
        free(created);
        return XM_NO_MEMORY("the JSON report");
    }
    *document = created;
    return XM_OK;
}

/* One side of a model: its ranks and how it is split. */
static json_t *side_json(const rb_parallel_t *side, int first_rank)
{
    return json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "first_rank", first_rank, "ranks",
                     side->num_gpus, "tp", side->tp, "pp", side->pp, "dp", side->data / side->fsdp,
                     "fsdp", side->fsdp, "ep", side->ep, "cp", side->cp);
}

/* Adds where the data are and should be: layouts of the single tensor, or parallel
 * configurations of a model. */
static void add_sides(json_t *entry, const rb_prepared_t *prepared)
{
    const rb_model_t *model = prepared->one->model;

    (void)json_object_set_new(entry, "tensors", json_integer(xm_plan_tensors(prepared->plan)));
    if (model == NULL) {
        (void)json_object_set_new(entry, "src", xm_layout_to_json(xm_plan_src(prepared->plan)));
        (void)json_object_set_new(entry, "dst", xm_layout_to_json(xm_plan_dst(prepared->plan)));
        (void)json_object_set_new(entry, "shape", rb_json_shape(prepared->one));
    } else {
        (void)json_object_set_new(entry, "src", side_json(&model->train, 0));
        (void)json_object_set_new(entry, "dst", side_json(&model->generation, model->src_ranks));
        (void)json_object_set_new(entry, "elements", json_integer(model->elements));
        (void)json_object_set_new(entry, "packed", json_integer(model->group_count));
    }
}

/* What others have measured of the same refit. */
static void add_published(json_t *entry, const rb_published_t *published)
{
    (void)json_object_set_new(entry, "published",
                              json_pack("{s:s, s:s, s:[f, f], s:s, s:s*}", "model",
                                        published->model, "mapping", published->mapping, "seconds",
                                        published->least_s, published->most_s, "source",
                                        published->source, "assumed", published->assumed));
}

/* Rates and errors are written only where there is a time to divide by: no JSON number is NaN, and
 * what is none is left out. */
static void add_times(json_t *entry, const rb_result_t *result)
{
    const xm_plan_t *plan = result->prepared->plan;
    rb_times_t times = rb_result_times(result);
    const double rate = times.median > 0 ? 1e-9 / times.median : NAN;
    const rb_update_model_t *update = &result->update;
    char obstacle[RB_OBSTACLE_TEXT];
    const char *why = times.median > 0 ? rb_result_obstacle(result, obstacle) : NULL;
    json_t *changes = NULL;

    if (result->sent_share > 0) {
        changes = json_pack("{s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "sent_share",
                            result->sent_share, "everything_s", rb_result_everything(result),
                            "predicted_share", update->share, "predicted_s", update->seconds,
                            "found_s", update->work.found, "busy_s", update->work.busy, "copied_s",
                            update->work.copied, "applied_s", update->work.applied, "agreed_s",
                            update->work.agreed, "streamed_s", update->work.streamed);
    }
    (void)json_object_update_new(
        entry,
        json_pack("{s:o, s:o*, s:o*, s:o*, s:o*, s:o*, s:o*, s:o*, s:s*, s:o*, s:o*, s:o*, s:o*}",
                  "time_s", rb_json_times(result), "setup_s", rb_json_positive(result->setup_s),
                  "cpu_s", rb_json_positive(result->cpu_s), "update", changes, "waited_s",
                  rb_json_positive(result->waited_s), "algbw_GBps",
                  json_real((double)xm_plan_bytes(plan) * rate), "netbw_GBps",
                  json_real((double)xm_plan_net_bytes(plan) * rate), "busbw_GBps",
                  json_real(rb_result_busbw(result) * 1e-9), "not_comparable", why, "sim_error",
                  json_real(rb_result_sim_error(result)), "bound_fraction",
                  json_real(rb_result_bound_fraction(result)), "verified",
                  result->verified ? json_true() : NULL, "wrong",
                  result->validated ? json_integer((json_int_t)result->wrong) : NULL));
}

/* Fields that need memory of their own are added one by one to the packed entry. */
xm_status_t rb_document_add(rb_document_t *document, const rb_result_t *result)
{
    const rb_prepared_t *prepared = result->prepared;
    const xm_plan_t *plan = prepared->plan;
    json_t *entry;

    if (document == NULL) {
        return XM_OK;
    }
    entry = json_pack("{s:o, s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:f, s:f, s:f, s:s, s:o*}",
                      "case", rb_json_text(prepared->one->name), "dtype", prepared->one->dtype,
                      "strategy", xm_strategy_name(xm_plan_strategy(plan)), "scheduler",
                      xm_scheduler_name(xm_plan_scheduler(plan)), "chosen_strategy",
                      xm_strategy_name(xm_plan_chosen_strategy(plan)), "chosen_scheduler",
                      xm_scheduler_name(xm_plan_chosen_scheduler(plan)), "transport",
                      rb_job_transport(document->job), "bytes", (json_int_t)xm_plan_bytes(plan),
                      "net_bytes", (json_int_t)xm_plan_net_bytes(plan), "plan_s", prepared->plan_s,
                      "makespan_s", (double)xm_plan_makespan_ns(plan) * 1e-9, "bound_s",
                      (double)xm_plan_bound_ns(plan) * 1e-9, "digest", xm_plan_digest(plan), "gap",
                      xm_plan_bound_ns(plan) > 0 ? json_real(rb_result_gap(result)) : NULL);
    if (entry == NULL || json_array_append_new(document->results, entry) != 0) {
        return XM_NO_MEMORY("the JSON report");
    }
    add_sides(entry, prepared);
    if (result->runs > 0) {
        add_times(entry, result);
    }
    if (rb_published_find(prepared->one->name) != NULL) {
        add_published(entry, rb_published_find(prepared->one->name));
    }
    return XM_OK;
}

xm_status_t rb_document_write(const rb_document_t *document)
{
    return document != NULL
               ? xm_cli_give_json(&document->job->options->json, json_incref(document->root))
               : XM_OK;
}

void rb_document_destroy(rb_document_t *document)
{
    if (document != NULL) {
        json_decref(document->root);
        free(document);
    }
}
