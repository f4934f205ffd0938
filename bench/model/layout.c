/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where each rank of a side holds its part of a tensor: the mesh, as sizes and strides
 * over the side's ranks, and the dimensions that each axis splits. Expert parallelism
 * regroups the ranks of a stage, so experts have meshes of other axes than dense tensors;
 * strides express that without listing ranks.
 */
#include "bench/model/layout.h"

#include <inttypes.h>

/* Appends an axis inside those that are there and returns its number; strides are set
 * later. */
static int add_axis(rb_layout_key_t *key, int size)
{
    key->size[key->axes] = size;
    return key->axes++;
}

/* Sets the strides of a dense array of ranks, the last axis fastest. */
static void set_strides(rb_layout_key_t *key)
{
    int stride = 1;

    for (int a = key->axes - 1; a >= 0; --a) {
        key->stride[a] = stride;
        stride *= key->size[a];
    }
}

/* Splits a dimension, where there is one, over an axis, inside the axes that split it already. */
static void split(rb_layout_key_t *key, int dim, int axis)
{
    if (dim >= 0 && dim < key->spec.dims && key->size[axis] > 1) {
        key->spec.axes[dim][key->spec.axis_count[dim]++] = (uint8_t)axis;
    }
}

/* Layers are dealt out evenly in order; a tensor outside the layers goes to the first or
 * the last stage, as its rule says. */
static int stage_of(const rb_parallel_t *side, const rb_model_frame_t *frame,
                    const rb_tensor_t *tensor, const rb_shard_rule_t *rule)
{
    int layer = rb_tensor_layer(tensor->name);

    if (layer >= 0) {
        return (int)((int64_t)layer * side->pp / frame->layers);
    }
    return rule->first_stage ? 0 : side->pp - 1;
}

/*
 * Decides how tp splits a tensor whose rows make heads: *parts of them, cut between
 * blocks of *block rows (0: evenly). Fewer heads than tp are replicated, as serving
 * engines do with key and value heads.
 */
static xm_status_t deal_heads(const rb_parallel_t *side, int64_t head_size,
                              const rb_tensor_t *tensor, int *parts, int64_t *block)
{
    int64_t heads = tensor->shape[0] / head_size;

    if (tensor->shape[0] % head_size != 0 || heads == 0) {
        return XM_INVALID("tensor '%s' has %" PRId64
                          " rows, which do not make whole heads of %" PRId64
                          " rows; the sharding table's head_size may give another size",
                          tensor->name, tensor->shape[0], head_size);
    }
    if (heads < side->tp && side->tp % heads != 0) {
        return XM_INVALID("tensor '%s' has %" PRId64
                          " heads, which tp %d ranks can neither share out nor replicate equally",
                          tensor->name, heads, side->tp);
    }
    *parts = heads < side->tp ? (int)heads : side->tp;
    *block = heads % *parts != 0 ? head_size : 0;
    return XM_OK;
}

/* The mesh of a dense tensor: (dp, fsdp, cp, tp), or (dp, fsdp, cp, heads, tp / heads)
 * for fewer heads than tp. The unnamed axes replicate. */
static xm_status_t dense(const rb_parallel_t *side, const rb_model_frame_t *frame,
                         const rb_tensor_t *tensor, const rb_shard_rule_t *rule,
                         rb_layout_key_t *key)
{
    int parts = side->tp, fsdp, tp;

    if (rule->heads && frame->head_size > 0) {
        XM_TRY(deal_heads(side, frame->head_size, tensor, &parts, &key->block));
    }
    (void)add_axis(key, side->data / side->fsdp);
    fsdp = add_axis(key, side->fsdp);
    (void)add_axis(key, side->cp);
    tp = add_axis(key, parts);
    if (parts < side->tp) {
        (void)add_axis(key, side->tp / parts);
    }
    set_strides(key);
    split(key, rule->tp, tp);
    split(key, 0, fsdp);
    return XM_OK;
}

/* The mesh (expert data, fsdp, ep, etp) of tensors that hold all experts in one
 * dimension. */
static void stacked_experts(const rb_parallel_t *side, const rb_shard_rule_t *rule,
                            rb_layout_key_t *key)
{
    int fsdp, ep, etp;

    (void)add_axis(key, side->expert_data / side->expert_fsdp);
    fsdp = add_axis(key, side->expert_fsdp);
    ep = add_axis(key, side->ep);
    etp = add_axis(key, side->etp);
    set_strides(key);
    split(key, rule->ep, ep);
    split(key, rule->tp, etp);
    split(key, 0, fsdp);
}

/* The mesh (expert data, fsdp, etp) of a single expert: the ranks of one ep group, which
 * are every ep × etp-th of the stage. */
static xm_status_t single_expert(const rb_parallel_t *side, const rb_model_frame_t *frame,
                                 const rb_tensor_t *tensor, const rb_shard_rule_t *rule,
                                 rb_layout_key_t *key)
{
    int expert = rb_tensor_expert(tensor->name), group = side->ep * side->etp, data, fsdp, etp;

    if (frame->experts % side->ep != 0) {
        return XM_INVALID("the model has %d experts, which ep %d does not divide (tensor '%s')",
                          frame->experts, side->ep, tensor->name);
    }
    key->first += expert / (frame->experts / side->ep) * side->etp;
    data = add_axis(key, side->expert_data / side->expert_fsdp);
    fsdp = add_axis(key, side->expert_fsdp);
    etp = add_axis(key, side->etp);
    key->stride[etp] = 1;
    key->stride[fsdp] = group;
    key->stride[data] = group * side->expert_fsdp;
    split(key, rule->tp, etp);
    split(key, 0, fsdp);
    return XM_OK;
}

xm_status_t rb_model_layout(rb_layout_pool_t *pool, const rb_parallel_t *side, int first_rank,
                            const rb_model_frame_t *frame, const rb_tensor_t *tensor,
                            const rb_shard_rule_t *rule, const xm_layout_t **layout)
{
    int stage = stage_of(side, frame, tensor, rule);
    rb_layout_key_t key = {.first = first_rank + stage * side->stage_ranks,
                           .spec = {.dims = tensor->dims}};
    /* Without expert parallelism, experts are sharded like any other tensor. */
    bool as_dense = rule->ep == RB_SHARD_NONE || (side->ep == 1 && side->etp == side->tp);
    xm_status_t status = XM_OK;

    for (int d = 0; d < tensor->dims; ++d) {
        key.shape[d] = tensor->shape[d];
    }
    if (as_dense) {
        status = dense(side, frame, tensor, rule, &key);
    } else if (rule->ep == RB_SHARD_EXPERT_IN_NAME) {
        status = single_expert(side, frame, tensor, rule, &key);
    } else {
        stacked_experts(side, rule, &key);
    }
    if (status == XM_OK) {
        status = rb_layout_pool_get(pool, &key, layout);
        if (status < 0) {
            (void)xm_error_prefix(status, "tensor '%s'", tensor->name);
        }
    }
    return status;
}
