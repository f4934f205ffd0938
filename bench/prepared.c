#include "bench/prepared.h"

#include <time.h>

#include "bench/placement.h"

static double now(void)
{
    struct timespec time;

    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static xm_status_t lay_out(const char *side_name, const rb_case_t *one, const rb_side_t *side,
                           const xm_mesh_t *mesh, xm_partition_t partition, xm_layout_t **layout)
{
    char spec[XM_SPEC_TEXT];
    xm_status_t status;

    if (side->spec.dims != one->dims) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "%s spec '%s' is for %d dimensions, but the tensor of case %s has %d",
                            side_name, xm_spec_format(&side->spec, spec), side->spec.dims,
                            one->name, one->dims);
    }
    status = xm_layout_create(mesh, &side->spec, partition, one->shape, layout);
    return status < 0 ? xm_error_prefix(status, "%s layout", side_name) : status;
}

static xm_status_t make_plan(const rb_case_t *one, const xm_network_t *network,
                             rb_prepared_t *prepared)
{
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;

    params.src = prepared->src;
    params.dst = prepared->dst;
    params.element_size = one->element_size;
    params.strategy = (xm_strategy_t)one->strategy;
    params.scheduler = (xm_scheduler_t)one->scheduler;
    params.network = network;
    return xm_plan_create(&params, &prepared->plan);
}

xm_status_t rb_prepare(const rb_case_t *one, xm_partition_t partition, const rb_host_map_t *hosts,
                       const xm_network_t *network, rb_prepared_t *prepared)
{
    rb_prepared_t made = {.one = one, .network = network};
    double start = now();
    xm_mesh_t *src = NULL, *dst = NULL;
    xm_status_t status = rb_place(one, hosts, &src, &dst, &made.shared);

    if (status == XM_OK) {
        status = lay_out("source", one, &one->src, src, partition, &made.src);
    }
    if (status == XM_OK) {
        status = lay_out("destination", one, &one->dst, dst, partition, &made.dst);
    }
    if (status == XM_OK) {
        status = make_plan(one, network, &made);
    }
    xm_mesh_destroy(dst);
    xm_mesh_destroy(src);
    if (status < 0) {
        rb_prepared_clear(&made);
        return status;
    }
    made.plan_s = now() - start;
    *prepared = made;
    return XM_OK;
}

void rb_prepared_clear(rb_prepared_t *prepared)
{
    xm_plan_destroy(prepared->plan);
    xm_layout_destroy(prepared->dst);
    xm_layout_destroy(prepared->src);
    *prepared = (rb_prepared_t){0};
}
