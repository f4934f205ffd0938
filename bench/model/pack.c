/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packed parameters: finds the tensors that a serving engine keeps as one, checks that
 * they can lie in one buffer, and says where each begins in it. The tensors stay separate
 * in the plan; only their places in memory are shared, because which rows a rank has
 * differs from part to part.
 */
#include "bench/model/pack.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    char group[RB_TENSOR_NAME];
    int part, tensor;
} member_t;

/* Makes the packed name: "a.q_proj.weight" packed into "qkv_proj" gives
 * "a.qkv_proj.weight". */
static xm_status_t group_name(const char *name, const char *pack, char *group)
{
    const char *leaf = strrchr(name, '.'), *module = leaf;
    int length;

    while (module != NULL && module > name && module[-1] != '.') {
        --module;
    }
    if (leaf == NULL || leaf == name) {
        return XM_INVALID(
            "tensor '%s' is to be packed into '%s', but names no module and parameter", name, pack);
    }
    length = snprintf(group, RB_TENSOR_NAME, "%.*s%s%s", (int)(module - name), name, pack, leaf);
    if (length >= RB_TENSOR_NAME) {
        return XM_INVALID("the packed name of tensor '%s' has %d characters; the most is %d", name,
                          length, RB_TENSOR_NAME - 1);
    }
    return XM_OK;
}

/* By group, then by place; the tensor's number as the last key makes the order total. */
static int compare(const void *a, const void *b)
{
    const member_t *left = a, *right = b;
    int order = strcmp(left->group, right->group);

    if (order == 0) {
        order = (left->part > right->part) - (left->part < right->part);
    }
    return order != 0 ? order : (left->tensor > right->tensor) - (left->tensor < right->tensor);
}

/* A part starts where the one before ends, which must be at a whole byte. */
static xm_status_t check_whole_bytes(const rb_model_tensor_t *tensor)
{
    int tiles = tensor->element_bits % 8 != 0 ? xm_layout_tiles(tensor->dst) : 0;

    for (int t = 0; t < tiles; ++t) {
        xm_box_t box;

        xm_layout_tile_box(tensor->dst, t, &box);
        if (xm_box_volume(&box) % (8 / tensor->element_bits) != 0) {
            return XM_INVALID("tensor '%s' cannot be packed: a tile of %" PRId64
                              " elements of %d bits is no whole number of bytes",
                              tensor->name, xm_box_volume(&box), tensor->element_bits);
        }
    }
    return XM_OK;
}

/* Parts of one buffer must have one element size and lie on the same ranks. */
static xm_status_t check_member(const rb_model_t *model, const rb_model_group_t *group,
                                const member_t *member, const member_t *previous)
{
    const rb_model_tensor_t *tensor = &model->tensors[member->tensor];
    const rb_model_tensor_t *first = &model->tensors[group->tensors[0]];
    const xm_mesh_t *mesh = xm_layout_mesh(tensor->dst), *first_mesh = xm_layout_mesh(first->dst);

    if (previous != NULL && previous->part == member->part) {
        return XM_INVALID("'%s' and '%s' are both part %d of '%s'",
                          model->tensors[previous->tensor].name, tensor->name, member->part,
                          group->name);
    }
    if (tensor->element_bits != first->element_bits) {
        return XM_INVALID(
            "'%s' has elements of %d bits and '%s' of %d; they cannot be packed into '%s'",
            first->name, first->element_bits, tensor->name, tensor->element_bits, group->name);
    }
    if (xm_mesh_size(mesh) != xm_mesh_size(first_mesh) ||
        xm_mesh_rank(mesh, 0) != xm_mesh_rank(first_mesh, 0)) {
        return XM_INVALID("'%s' and '%s' lie on different ranks; they cannot be packed into '%s'",
                          first->name, tensor->name, group->name);
    }
    return check_whole_bytes(tensor);
}

/* Appends members[begin … end), which are one group; the first of them is what the others
 * are compared with. */
static xm_status_t add_group(rb_model_t *model, const member_t *members, int begin, int end)
{
    rb_model_group_t *group = &model->groups[model->group_count];

    (void)snprintf(group->name, sizeof(group->name), "%s", members[begin].group);
    group->tensors[0] = members[begin].tensor;
    for (int i = begin; i < end; ++i) {
        XM_TRY(check_member(model, group, &members[i], i > begin ? &members[i - 1] : NULL));
        group->tensors[group->parts++] = members[i].tensor;
        model->tensors[members[i].tensor].group = model->group_count;
    }
    ++model->group_count;
    return XM_OK;
}

/* Sorting brings the members of a group together, in the order of their places. */
static xm_status_t add_groups(rb_model_t *model, member_t *members, int count)
{
    xm_status_t status = XM_OK;

    qsort(members, (size_t)count, sizeof(*members), compare);
    for (int begin = 0, end; status == XM_OK && begin < count; begin = end) {
        end = begin + 1;
        while (end < count && strcmp(members[end].group, members[begin].group) == 0) {
            ++end;
        }
        status = add_group(model, members, begin, end);
    }
    return status;
}

/* There can be no more groups than tensors, so both arrays are made at their final size. */
xm_status_t rb_model_pack(rb_model_t *model, const rb_shard_rule_t *const *rules)
{
    size_t capacity = (size_t)model->count;
    member_t *members = calloc(capacity, sizeof(*members));
    int count = 0;
    xm_status_t status = XM_OK;

    model->groups = calloc(capacity, sizeof(*model->groups));
    if (members == NULL || model->groups == NULL) {
        free(members);
        return XM_NO_MEMORY("the packed parameters of %d tensors", model->count);
    }
    for (int i = 0; status == XM_OK && i < model->count; ++i) {
        if (rules[i]->pack[0] == '\0') {
            continue;
        }
        status = group_name(model->tensors[i].name, rules[i]->pack, members[count].group);
        members[count].part = rules[i]->part;
        members[count++].tensor = i;
    }
    XM_THEN(status, add_groups(model, members, count));
    free(members);
    return status;
}

/* Elements of less than a byte are packed without gaps, so bytes are rounded up once for
 * the tile. */
uint64_t rb_model_tile_bytes(const xm_layout_t *layout, int rank, int element_bits)
{
    uint64_t elements = xm_layout_buffer_bytes(layout, rank, 1);

    return element_bits < 8 ? (elements * (uint64_t)element_bits + 7) / 8
                            : elements * (uint64_t)(element_bits / 8);
}

/* The bytes that the first parts of a group have on a rank. */
static uint64_t leading_bytes(const rb_model_t *model, const rb_model_group_t *group, int parts,
                              int rank)
{
    uint64_t bytes = 0;

    for (int p = 0; p < parts; ++p) {
        const rb_model_tensor_t *tensor = &model->tensors[group->tensors[p]];

        bytes += rb_model_tile_bytes(tensor->dst, rank, tensor->element_bits);
    }
    return bytes;
}

/* Groups have a few parts, so the offset is summed up anew for each. */
uint64_t rb_model_packed_offset(const rb_model_t *model, int index, int rank)
{
    const rb_model_group_t *group;
    int before = 0;

    if (model->tensors[index].group < 0) {
        return 0;
    }
    group = &model->groups[model->tensors[index].group];
    while (group->tensors[before] != index) {
        ++before;
    }
    return leading_bytes(model, group, before, rank);
}

uint64_t rb_model_group_bytes(const rb_model_t *model, int group, int rank)
{
    return leading_bytes(model, &model->groups[group], model->groups[group].parts, rank);
}
