/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file cost.h
 * What compute and communication cost on a logical mesh: two models behind one interface.
 *
 *  - *profile*: seconds, from a measured cluster profile. Compute is a roofline (FLOPs over
 *    device_flops, bytes over device_memory_bandwidth), corrected by what the profile has measured
 *    of such operators. Of a gradient's collectives only the part counts that does not hide behind
 *    the backward pass, as the profile says. A collective over one mesh axis costs what
 *    the profile has measured of it, on groups that lie on the hosts as the axis' groups do
 *    (collective_curve.h). What was not measured counts as a ring whose steps come from the
 *    measured point-to-point curves; an axis inside a host uses the
 *    intra-host curve, one that crosses hosts the inter-host curve, and the rings of a host that
 *    cross at once share its NICs: those of the slowest host of the mesh, as steps end together.
 *  - *alpa*: the alpha-beta constants of Alpa (OSDI'22) with its tie-breakers, for golden tests and
 *    comparison: all-gather a + b(n-1)/n·B + 0.1, all-reduce a + 2b(n-1)/n·B + 0.01, reduce-scatter
 *    a + b(n-1)/n·B + 0.001, all-to-all a + b(n-1)/n²·B·(n/2) + 0.001; compute is free, a
 * replicated parameter or input pays a penalty. Its unit is Alpa's, not seconds.
 *
 * B is always the bytes of the whole tensor as seen on that axis: the gathered result of an
 * all-gather, the operand of an all-reduce or reduce-scatter, n times a device's buffer for an
 * all-to-all, the buffer of one device for a permutation.
 *
 * A cost model is made once; an ap_cost_mesh_t binds it to a logical mesh. Threads: both immutable.
 */
#pragma once

#include "planner/cost/profile.h"

#include <autopar/cost.h>

#include <stdbool.h>
#include <stddef.h>

#include "comm/profile.h"
#include "comm/base.h"
#include "planner/graph.h"

/** A cost no plan may contain (Alpa uses the same number). */
#define AP_COST_INFINITE 1e13

/** "all-gather", "all-reduce", "reduce-scatter", "all-to-all", "permute". */
const char *ap_collective_name(ap_collective_kind_t kind);

/**
 * The same for hosts with such devices and at least such NICs (bytes/s), wherever they stand. A
 * model of the whole profile binds meshes to the profile's first hosts: a mesh computes as the
 * least of their devices and communicates as the slowest of their NICs.
 */
xm_status_t ap_cost_model_create_hosts(const xm_cluster_profile_t *profile,
                                       const xm_cluster_device_t *device, double nic,
                                       ap_cost_model_t **model);
bool ap_cost_model_is_alpa(const ap_cost_model_t *model);
bool ap_cost_model_forces_data_parallel(const ap_cost_model_t *model);

int ap_cost_mesh_rank(const ap_cost_mesh_t *mesh);
/** Devices along one axis. */
int ap_cost_mesh_size(const ap_cost_mesh_t *mesh, int axis);
/** Product of the sizes of a set of axes. */
int ap_cost_mesh_devices(const ap_cost_mesh_t *mesh, unsigned axes);
/**
 * Whether a dimension of @p extent may be cut over a set of axes. Uneven: it has at least as many
 * elements as there are devices, and the parts of each further axis divide those of the axes
 * before, so that cutting once more stays local.
 */
bool ap_cost_mesh_cuts(const ap_cost_mesh_t *mesh, int64_t extent, unsigned axes);
/** Whether all devices then hold equally much of it. */
bool ap_cost_mesh_divides(const ap_cost_mesh_t *mesh, int64_t extent, unsigned axes);

/**
 * Lets devices of unequal speed take unequal parts (AccPar, Song, HPCA'20). Every axis, the first
 * one first, parts what it is given among the devices at its positions in the ratio of their
 * FLOP/s; so all end at the same time. Parts are not rounded to whole elements. Refused where a
 * host lacks a device of its own in the model. Prices only: what executes plans cuts evenly.
 */
xm_status_t ap_cost_mesh_allow_ratio(ap_cost_mesh_t *mesh);
/** What the first position of an axis takes of what its first group has; 0: equal parts. */
double ap_cost_mesh_first_part(const ap_cost_mesh_t *mesh, int axis);
/** How many times as fast as one device, the slowest, the mesh works on what is cut over a set of
 * axes, and the time that moving a device's share takes in parts of what the largest share would.
 */
double ap_cost_mesh_speedup(const ap_cost_mesh_t *mesh, unsigned axes);
double ap_cost_mesh_lead(const ap_cost_mesh_t *mesh, unsigned axes);

/** Elements of a dimension on one device, the one that has most, padding included. */
int64_t ap_cost_mesh_share(const ap_cost_mesh_t *mesh, int64_t extent, unsigned axes);
/** Bytes on one device of a tensor of @p bytes, padding included. */
double ap_cost_mesh_local_bytes(const ap_cost_mesh_t *mesh, const ap_shape_t *shape, double bytes,
                                ap_spec_t spec);
/** Memory of a device of the mesh; 0: the model knows none (alpa). */
double ap_cost_mesh_memory(const ap_cost_mesh_t *mesh);
/** Set of the axes with more than one device. */
unsigned ap_cost_mesh_axes(const ap_cost_mesh_t *mesh);
const ap_cost_model_t *ap_cost_mesh_model(const ap_cost_mesh_t *mesh);

/**
 * The same over a set of axes. An all-reduce over several is the cheapest of: one axis after the
 * other; a reduce-scatter over one of them, an all-reduce of the parts over the rest, an
 * all-gather. All-gathers and reduce-scatters take the axes in the cheapest order. The alpa model
 * takes one axis after the other.
 */
double ap_cost_collective_over(const ap_cost_mesh_t *mesh, ap_collective_kind_t kind, unsigned axes,
                               double bytes);

/** A collective over one axis, as a part of one over several. */
typedef struct ap_collective_step {
    ap_collective_kind_t kind;
    int axis;
    double bytes;
} ap_collective_step_t;

enum { AP_MAX_COLLECTIVE_STEPS = 2 * AP_MAX_MESH_RANK };

/** The same, with the steps of the cheapest form (AP_MAX_COLLECTIVE_STEPS entries) in their
 * order. */
double ap_cost_collective_steps(const ap_cost_mesh_t *mesh, ap_collective_kind_t kind,
                                unsigned axes, double bytes, ap_collective_step_t *steps,
                                int *count);

/** The same of a parameter's gradient: the part of its time that does not hide behind the backward
 * pass; an all-reduce that the runtime joins with others has its share of theirs. */
double ap_cost_gradient_collective(const ap_cost_mesh_t *mesh, ap_collective_kind_t kind,
                                   unsigned axes, double bytes);

/** What a stage's sums of gradients, @p sync seconds by these prices, add to a step whose last
 * backward pass takes @p backward seconds: behind it no more hides than would of sums as long as
 * it. Where all hides (an overlap of 1), nothing does. */
double ap_cost_gradient_exposed(const ap_cost_model_t *model, double sync, double backward);

/** Penalty of a parameter or input that no axis cuts (alpa model only, else 0). */
double ap_cost_replicated(const ap_cost_mesh_t *mesh);

/** A step of a resharding: a collective over one axis, or (bytes 0) a local slice. */
typedef struct ap_reshard_step {
    ap_collective_kind_t kind;
    bool slice; /**< local: no communication, kind is unset */
    int axis;
    double bytes;
    ap_spec_t after;
} ap_reshard_step_t;

enum { AP_MAX_RESHARD_STEPS = 2 * AP_MAX_MESH_RANK + 2 };

/**
 * Cheapest sequence of slices, all-gathers and all-to-alls, one axis at a time, that turns a tensor
 * of @p bytes with spec @p from into spec @p to. Returns its cost; AP_COST_INFINITE or more when a
 * dimension on the way does not divide. @p steps (AP_MAX_RESHARD_STEPS entries) and @p step_count
 * may be NULL.
 */
double ap_cost_reshard(const ap_cost_mesh_t *mesh, const ap_shape_t *shape, double bytes,
                       ap_spec_t from, ap_spec_t to, ap_reshard_step_t *steps, int *step_count);

/** The costs from one spec to @p count others, at little more than the price of one. */
void ap_cost_reshard_many(const ap_cost_mesh_t *mesh, const ap_shape_t *shape, double bytes,
                          ap_spec_t from, const ap_spec_t *to, int count, double *costs);

/** One sentence on a compute cost: which of FLOPs and memory bandwidth bounds it, and what was
 * measured of such operators. */
char *ap_cost_explain_op(const ap_cost_mesh_t *mesh, ap_op_kind_t kind, ap_dtype_t dtype,
                         double flops, double bytes, char *buffer, size_t size);
