/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device mesh: ranks on a grid. Two directions are asked often, position to rank and
 * rank to position; the first is an array, the second a hash table, because ranks can be
 * any numbers with gaps and a table by rank could be far larger than the mesh. Meshes
 * never change after creation and are counted by reference, so any number of layouts
 * share one index.
 */
#include "resharding/layout/mesh.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"

/* More devices than this in one mesh is taken for a typing error. */
enum { MAX_DEVICES = 1 << 22 };

struct xm_mesh {
    atomic_uint references;
    int axes;
    int sizes[XM_MAX_AXES];
    int strides[XM_MAX_AXES]; /* of a coordinate in the position */
    int size;
    int max_rank;
    int *ranks;     /* by position */
    int *slots;     /* open addressing by rank: position + 1, or 0 */
    int slot_shift; /* 2^(32 - slot_shift) slots, at least twice as many as devices */
};

/* Fibonacci hashing: the golden ratio spreads consecutive ranks, which are the usual
 * case, over the whole table. */
static uint32_t first_slot(const xm_mesh_t *mesh, int rank)
{
    return (uint32_t)rank * UINT32_C(2654435769) >> mesh->slot_shift;
}

/* The slot of a rank, or the free one where it belongs. The table is at most half full,
 * so the search ends. */
static int *find_slot(const xm_mesh_t *mesh, int rank)
{
    uint32_t last = UINT32_MAX >> mesh->slot_shift, slot = first_slot(mesh, rank);

    while (mesh->slots[slot] != 0 && mesh->ranks[mesh->slots[slot] - 1] != rank) {
        slot = (slot + 1) & last;
    }
    return &mesh->slots[slot];
}

/* Checks the product after every axis, so that it cannot overflow. */
static xm_status_t check_sizes(int axes, const int *sizes, int *product)
{
    int64_t total = 1;

    if (axes < 0 || axes > XM_MAX_AXES) {
        return XM_INVALID("a mesh has 0 to %d axes, not %d", XM_MAX_AXES, axes);
    }
    for (int a = 0; a < axes; ++a) {
        if (sizes[a] < 1) {
            return XM_INVALID("mesh axis %d has size %d; at least 1 is needed", a, sizes[a]);
        }
        total *= sizes[a];
        if (total > MAX_DEVICES) {
            return XM_INVALID("the mesh has more than %d devices", MAX_DEVICES);
        }
    }
    *product = (int)total;
    return XM_OK;
}

static xm_status_t allocate_ranks(xm_mesh_t *mesh)
{
    size_t slots = 2;

    mesh->slot_shift = 31;
    while (slots < 2 * (size_t)mesh->size) {
        slots *= 2;
        --mesh->slot_shift;
    }
    mesh->ranks = malloc((size_t)mesh->size * sizeof(*mesh->ranks));
    mesh->slots = calloc(slots, sizeof(*mesh->slots));
    if (mesh->ranks == NULL || mesh->slots == NULL) {
        return XM_NO_MEMORY("a mesh of %d devices", mesh->size);
    }
    return XM_OK;
}

/* Enters the ranks; the table itself finds those named twice. */
static xm_status_t place_ranks(xm_mesh_t *mesh, const int *ranks)
{
    for (int p = 0; p < mesh->size; ++p) {
        int rank = ranks != NULL ? ranks[p] : p;
        /* A negative rank has a slot too; it is refused before it could be entered. */
        int *slot = find_slot(mesh, rank);

        if (rank < 0) {
            return XM_INVALID("the mesh names rank %d; ranks start at 0", rank);
        }
        if (*slot != 0) {
            return XM_INVALID("the mesh names rank %d twice", rank);
        }
        mesh->ranks[p] = rank;
        *slot = p + 1;
        mesh->max_rank = rank > mesh->max_rank ? rank : mesh->max_rank;
    }
    return XM_OK;
}

xm_status_t xm_mesh_create(int axes, const int *sizes, const int *ranks, xm_mesh_t **mesh)
{
    xm_mesh_t *created;
    xm_status_t status;
    int size = 0;

    if (XM_IS_NULL(mesh) || (axes > 0 && XM_IS_NULL(sizes))) {
        return XM_ERR_INVALID_ARGUMENT;
    }
    XM_TRY(check_sizes(axes, sizes, &size));
    created = calloc(1, sizeof(*created));
    XM_NEED_MEMORY(created, "a mesh");
    atomic_init(&created->references, 1);
    created->axes = axes;
    created->size = size;
    /* Row-major: the last axis varies fastest. */
    for (int a = axes - 1, stride = 1; a >= 0; --a) {
        created->sizes[a] = sizes[a];
        created->strides[a] = stride;
        stride *= sizes[a];
    }
    status = allocate_ranks(created);
    XM_THEN(status, place_ranks(created, ranks));
    if (status < 0) {
        xm_mesh_destroy(created);
        return status;
    }
    *mesh = created;
    return XM_OK;
}

xm_status_t xm_mesh_clone(const xm_mesh_t *mesh, xm_mesh_t **clone)
{
    xm_mesh_t *same = (xm_mesh_t *)mesh; /* only the count is not const */

    (void)atomic_fetch_add_explicit(&same->references, 1, memory_order_relaxed);
    *clone = same;
    return XM_OK;
}

void xm_mesh_destroy(xm_mesh_t *mesh)
{
    /* Acquire and release: the last handle frees after every use through the others. */
    if (mesh == NULL || atomic_fetch_sub_explicit(&mesh->references, 1, memory_order_acq_rel) > 1) {
        return;
    }
    free(mesh->slots);
    free(mesh->ranks);
    free(mesh);
}

/* Parses "2x4"; the sentence about a failure names the whole text. */
static xm_status_t parse_shape(const char *shape, int *axes, int *sizes)
{
    char token[32];
    const char *rest = shape;

    *axes = 0;
    for (;;) {
        size_t length = strcspn(rest, "x");
        int64_t value;
        xm_status_t status;

        if (length >= sizeof(token)) {
            return XM_MALFORMED("mesh shape '%s': '%s' is not an axis size", shape, rest);
        }
        if (*axes == XM_MAX_AXES) {
            return XM_INVALID("mesh shape '%s' has more than %d axes", shape, XM_MAX_AXES);
        }
        memcpy(token, rest, length);
        token[length] = '\0';
        status = xm_text_parse_int("axis size", token, 1, MAX_DEVICES, &value);
        if (status < 0) {
            return xm_error_prefix(status, "mesh shape '%s'", shape);
        }
        sizes[(*axes)++] = (int)value;
        if (rest[length] == '\0') {
            return XM_OK;
        }
        rest += length + 1;
    }
}

/* Appends lo … hi, rising or falling, to a growing array. Both ends are below 2^31 − 1,
 * so the length fits an int, and the limit is checked before any memory is taken. */
static xm_status_t append_run(const char *what, int first, int last, int **ranks, int *count)
{
    int step = first <= last ? 1 : -1;
    int length = (last - first) * step + 1;
    int *grown;

    if (length > MAX_DEVICES - *count) {
        return XM_INVALID("%s: more than %d ranks", what, MAX_DEVICES);
    }
    grown = realloc(*ranks, (size_t)(*count + length) * sizeof(**ranks));
    if (grown == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "%s: no memory for %d ranks", what, *count + length);
    }
    *ranks = grown;
    for (int i = 0; i < length; ++i) {
        grown[(*count)++] = first + i * step;
    }
    return XM_OK;
}

/* Parses one number or a run such as "4-7". */
static xm_status_t parse_run(const char *what, const char *token, int *first, int *last)
{
    char copy[32];
    char *dash;
    int64_t value;
    xm_status_t status = XM_OK;

    (void)snprintf(copy, sizeof(copy), "%s", token);
    dash = strchr(copy, '-');
    if (dash != NULL) {
        *dash = '\0';
    }
    XM_TRY(xm_text_parse_int(what, copy, 0, INT32_MAX - 1, &value));
    *first = *last = (int)value;
    if (dash != NULL) {
        status = xm_text_parse_int(what, dash + 1, 0, INT32_MAX - 1, &value);
        *last = (int)value;
    }
    return status;
}

/* The list grows by one allocation for each run, not for each rank. On failure nothing is
 * handed out. */
xm_status_t xm_rank_list_parse(const char *what, const char *text, int **ranks, int *count)
{
    const char *rest = text;
    int *list = NULL;
    int length = 0;

    while (rest != NULL) {
        char token[32];
        int first = 0, last = 0;
        xm_status_t status = xm_text_word(&rest, ',', token, sizeof(token)) < sizeof(token)
                                 ? parse_run(what, token, &first, &last)
                                 : XM_MALFORMED("%s: '%s' is not a rank list", what, text);

        XM_THEN(status, append_run(what, first, last, &list, &length));
        if (status < 0) {
            free(list);
            return status;
        }
    }
    *ranks = list;
    *count = length;
    return XM_OK;
}

/* A mesh from texts, with consecutive ranks from `first_rank` on where no list is given. */
xm_status_t xm_mesh_parse(const char *shape, const char *ranks, int first_rank, xm_mesh_t **mesh)
{
    int sizes[XM_MAX_AXES], axes = 0, size = 0, count = 0;
    int *list = NULL;
    xm_status_t status = XM_OK;

    XM_NEED_ARGUMENTS(shape, mesh);
    XM_TRY(parse_shape(shape, &axes, sizes));
    XM_TRY(check_sizes(axes, sizes, &size));
    if (ranks != NULL) {
        status = xm_rank_list_parse("rank list", ranks, &list, &count);
    } else {
        status = append_run("rank list", first_rank, first_rank + size - 1, &list, &count);
    }
    XM_TRY(status);
    if (count != size) {
        status = XM_INVALID("mesh %s needs %d ranks, the list names %d", shape, size, count);
        goto free_list;
    }
    status = xm_mesh_create(axes, sizes, list, mesh);

free_list:
    free(list);
    return status;
}

int xm_mesh_axes(const xm_mesh_t *mesh)
{
    if (XM_IS_NULL(mesh)) {
        return 0;
    }
    return mesh->axes;
}

int xm_mesh_axis_size(const xm_mesh_t *mesh, int axis)
{
    if (XM_IS_NULL(mesh) || axis < 0 || axis >= mesh->axes) {
        return 0;
    }
    return mesh->sizes[axis];
}

int xm_mesh_size(const xm_mesh_t *mesh)
{
    if (XM_IS_NULL(mesh)) {
        return 0;
    }
    return mesh->size;
}

int xm_mesh_rank(const xm_mesh_t *mesh, int position)
{
    if (XM_IS_NULL(mesh) || position < 0 || position >= mesh->size) {
        return -1;
    }
    return mesh->ranks[position];
}

const int *xm_mesh_ranks(const xm_mesh_t *mesh)
{
    return mesh->ranks;
}

int xm_mesh_position(const xm_mesh_t *mesh, int rank)
{
    if (XM_IS_NULL(mesh)) {
        return -1;
    }
    return *find_slot(mesh, rank) - 1;
}

/* Row-major positions make a coordinate a quotient and a remainder. */
int xm_mesh_coordinate(const xm_mesh_t *mesh, int position, int axis)
{
    return position / mesh->strides[axis] % mesh->sizes[axis];
}

/* Known from creation, so that plans can check ranks without a pass over the mesh. */
int xm_mesh_max_rank(const xm_mesh_t *mesh)
{
    return mesh->max_rank;
}

char *xm_mesh_format_shape(const xm_mesh_t *mesh, char *buffer, size_t size)
{
    size_t used = 0;

    (void)snprintf(buffer, size, "1");
    for (int a = 0; a < mesh->axes && used < size; ++a) {
        int length = snprintf(buffer + used, size - used, "%s%d", a > 0 ? "x" : "", mesh->sizes[a]);

        used += (size_t)length;
    }
    return buffer;
}

/* Folds rising runs only, so every text can be parsed back to the same order. */
char *xm_mesh_format_ranks(const xm_mesh_t *mesh, char *buffer, size_t size)
{
    size_t used = 0;

    buffer[0] = '\0';
    for (int p = 0; p < mesh->size && used < size;) {
        int run = 1;

        while (p + run < mesh->size && mesh->ranks[p + run] == mesh->ranks[p] + run) {
            ++run;
        }
        used +=
            (size_t)snprintf(buffer + used, size - used, "%s%d", p > 0 ? "," : "", mesh->ranks[p]);
        if (run > 1 && used < size) {
            used += (size_t)snprintf(buffer + used, size - used, "-%d", mesh->ranks[p + run - 1]);
        }
        p += run;
    }
    return buffer;
}
