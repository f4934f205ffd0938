/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agreement before a run: all ranks compare what they are about to do before a byte
 * moves. Ranks that planned differently would deadlock or overwrite each other's data,
 * and the fault would show far from its cause. The common case costs one allgather of 17
 * bytes a rank; only when hashes differ do two ranks publish their full descriptions, so
 * that every rank reports the same first difference in words.
 */
#include "resharding/reshard/agree.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/*
 * Every rank describes what it intends to do as a list of strings: the number of tensors,
 * the dtype, FIELD_COUNT strings for every tensor, and the plan's digest. Their hashes
 * are compared first; only when these differ do the strings travel.
 */
enum { VERSION = 2, HEAD_SIZE = 1 + XM_AGREE_HASH_SIZE, FIELD_COUNT = 13, FIELD_SIZE = 4096 };

static const char *const field_names[FIELD_COUNT] = {"name",
                                                     "element size",
                                                     "shape",
                                                     "source mesh",
                                                     "source ranks",
                                                     "source spec",
                                                     "source partition",
                                                     "source cuts",
                                                     "destination mesh",
                                                     "destination ranks",
                                                     "destination spec",
                                                     "destination partition",
                                                     "destination cuts"};

enum { FIELD_NAME, FIELD_ELEMENT_SIZE, FIELD_SHAPE };

/* A string with its terminator, which separates it from the next. */
static void put(FILE *text, const char *value)
{
    (void)fwrite(value, 1, strlen(value) + 1, text);
}

/* The cut points, by their hash: explicit partitions share a name and differ in these. */
static uint64_t hash_cuts(const xm_layout_t *layout)
{
    uint64_t hash = 0;

    for (int d = 0; d < xm_layout_dims(layout); ++d) {
        hash =
            XXH3_64bits_withSeed(xm_layout_cuts(layout, d),
                                 ((size_t)xm_layout_parts(layout, d) + 1) * sizeof(int64_t), hash);
    }
    return hash;
}

static void put_layout(FILE *text, const xm_layout_t *layout, char *field)
{
    const xm_mesh_t *mesh = xm_layout_mesh(layout);

    put(text, xm_mesh_format_shape(mesh, field, FIELD_SIZE));
    put(text, xm_mesh_format_ranks(mesh, field, FIELD_SIZE));
    (void)xm_spec_format(xm_layout_spec(layout), field);
    put(text, field);
    put(text, xm_layout_format_partition(layout, field, FIELD_SIZE));
    (void)snprintf(field, FIELD_SIZE, "with hash %016" PRIx64, hash_cuts(layout));
    put(text, field);
}

static void put_tensor(FILE *text, const xm_plan_t *plan, int tensor, char *field)
{
    const xm_layout_t *src = xm_plan_tensor_src(plan, tensor);

    put(text, xm_plan_tensor_name(plan, tensor));
    (void)snprintf(field, FIELD_SIZE, "%" PRId64 " bytes",
                   xm_plan_tensor_element_size(plan, tensor));
    put(text, field);
    put(text, xm_shape_format(xm_layout_dims(src), xm_layout_shape(src), field, FIELD_SIZE));
    put_layout(text, src, field);
    put_layout(text, xm_plan_tensor_dst(plan, tensor), field);
}

/*
 * Writes the description into one allocation, which the caller frees. The digest comes
 * last because it depends on everything else: when it alone differs, the layouts agree
 * and the settings do not.
 */
xm_status_t xm_agree_describe(const xm_plan_t *plan, const char *dtype, char **strings,
                              size_t *length)
{
    char *field = malloc(FIELD_SIZE);
    FILE *text = open_memstream(strings, length);
    bool written = false;

    if (text != NULL && field != NULL) {
        (void)snprintf(field, FIELD_SIZE, "%d", xm_plan_tensors(plan));
        put(text, field);
        put(text, dtype);
        for (int t = 0; t < xm_plan_tensors(plan); ++t) {
            put_tensor(text, plan, t, field);
        }
        put(text, xm_plan_digest(plan));
        written = ferror(text) == 0;
    }
    if (text != NULL) {
        /* The stream's memory belongs to the caller once it is closed, whether or not all
         * was written. */
        written = fclose(text) == 0 && written;
        if (!written) {
            free(*strings);
        }
    }
    free(field);
    return written ? XM_OK : XM_NO_MEMORY("describing a plan");
}

/* Says which dimension differs, for shapes of equal rank; "" where the shapes do not
 * parse, as the whole texts are in the sentence anyway. */
static void explain_shape(const char *reference, const char *other, char *text, size_t size)
{
    int64_t a[XM_MAX_DIMS], b[XM_MAX_DIMS];
    int dims_a, dims_b;

    text[0] = '\0';
    if (xm_shape_parse(reference, &dims_a, a) < 0 || xm_shape_parse(other, &dims_b, b) < 0) {
        return;
    }
    if (dims_a != dims_b) {
        (void)snprintf(text, size, ": %d dimensions, not %d", dims_b, dims_a);
        return;
    }
    for (int d = 0; d < dims_a; ++d) {
        if (a[d] != b[d]) {
            (void)snprintf(text, size, ": dimension %d has %" PRId64 " elements, not %" PRId64, d,
                           b[d], a[d]);
            return;
        }
    }
}

/* Two lists of strings that are walked together, each with its end. */
typedef struct {
    const char *a, *b;
    const char *a_end, *b_end;
} walk_t;

/* Goes to the next string of both lists; false at the end of either. */
static bool walk_on(walk_t *walk)
{
    walk->a += strlen(walk->a) + 1;
    walk->b += strlen(walk->b) + 1;
    return walk->a < walk->a_end && walk->b < walk->b_end;
}

static xm_status_t name_field(int rank, int64_t tensor, const char *name, int field,
                              const walk_t *walk)
{
    char detail[128] = "", of_tensor[256] = "";

    if (field == FIELD_NAME) {
        return XM_MISMATCH("rank %d calls tensor %" PRId64 " %.200s where rank 0 calls it %.200s",
                           rank, tensor, walk->b, walk->a);
    }
    if (field == FIELD_SHAPE) {
        explain_shape(walk->a, walk->b, detail, sizeof(detail));
    }
    if (name != NULL) {
        (void)snprintf(of_tensor, sizeof(of_tensor), " of tensor %.200s", name);
    }
    return XM_MISMATCH("rank %d has %s %.200s%s where rank 0 has %.200s%s", rank,
                       field_names[field], walk->b, of_tensor, walk->a, detail);
}

/*
 * The lists come from the network, so every step checks for their end: a peer of another
 * version may send fewer strings.
 */
xm_status_t xm_agree_difference(int rank, const char *first, size_t first_length, const char *other,
                                size_t other_length)
{
    walk_t walk = {first, other, first + first_length, other + other_length};
    const char *name = NULL;
    long tensors;

    /* Both must end with a string's end, or comparing would run past it. */
    if (first_length == 0 || other_length == 0 || first[first_length - 1] != '\0' ||
        other[other_length - 1] != '\0') {
        goto other_version;
    }
    tensors = strtol(walk.a, NULL, 10);
    if (strcmp(walk.a, walk.b) != 0) {
        return XM_MISMATCH("rank %d has %s tensors where rank 0 has %s", rank, walk.b, walk.a);
    }
    if (!walk_on(&walk)) {
        goto other_version;
    }
    if (strcmp(walk.a, walk.b) != 0) {
        return XM_MISMATCH("rank %d has dtype %.200s where rank 0 has %.200s", rank, walk.b,
                           walk.a);
    }
    for (int64_t i = 0; i < tensors * FIELD_COUNT; ++i) {
        int field = (int)(i % FIELD_COUNT);

        if (!walk_on(&walk)) {
            goto other_version;
        }
        name = field == FIELD_NAME ? walk.a : name;
        if (strcmp(walk.a, walk.b) != 0) {
            return name_field(rank, i / FIELD_COUNT, tensors > 1 ? name : NULL, field, &walk);
        }
    }
    if (walk_on(&walk)) {
        return XM_MISMATCH("rank %d made plan %s and rank 0 plan %s of the same layouts: their "
                           "strategy, scheduler, seed, chunk size or profile differ",
                           rank, walk.b, walk.a);
    }

other_version:
    return XM_MISMATCH("rank %d runs another version of crossmesh", rank);
}

/*
 * Collective: rank 0 and the first rank that differs tell everybody their descriptions.
 * Everybody takes part, so all ranks fail with the same sentence and none is left
 * waiting.
 */
xm_status_t xm_agree_explain(xm_worker_t *worker, int odd, const char *strings, size_t length)
{
    int rank = xm_worker_rank(worker);
    char *gathered = NULL;
    size_t *offsets = NULL;
    xm_status_t status;

    XM_TRY(xm_bootstrap_allgatherv(xm_worker_bootstrap(worker), strings,
                                   rank == 0 || rank == odd ? length : 0, (void **)&gathered,
                                   &offsets, xm_worker_timeout(worker)));
    status = xm_agree_difference(odd, gathered + offsets[0], offsets[1] - offsets[0],
                                 gathered + offsets[odd], offsets[odd + 1] - offsets[odd]);
    free(offsets);
    free(gathered);
    return status;
}

void xm_agree_hash(const char *strings, size_t length, unsigned char hash[XM_AGREE_HASH_SIZE])
{
    XXH128_canonical_t canonical;

    XXH128_canonicalFromHash(&canonical, XXH3_128bits(strings, length));
    memcpy(hash, canonical.digest, XM_AGREE_HASH_SIZE);
}

xm_status_t xm_reshard_agree(xm_worker_t *worker, const xm_plan_t *plan, const char *dtype)
{
    int size = xm_worker_size(worker);
    unsigned char head[HEAD_SIZE] = {VERSION}, *heads = malloc((size_t)size * HEAD_SIZE);
    char *strings;
    size_t length;
    xm_status_t status;

    XM_NEED_MEMORY(heads, "comparing plans");
    status = xm_agree_describe(plan, dtype, &strings, &length);
    if (status < 0) {
        goto free_heads;
    }
    xm_agree_hash(strings, length, head + 1);
    status = xm_worker_allgather(worker, head, heads, HEAD_SIZE);
    /* All ranks see the same hashes and stop at the same first rank, so they all enter
     * exchange() with it or none does. */
    for (int r = 1; status == XM_OK && r < size; ++r) {
        const unsigned char *other = heads + (size_t)r * HEAD_SIZE;

        if (other[0] != heads[0]) {
            status = XM_MISMATCH("rank %d runs another version of crossmesh", r);
        } else if (memcmp(other, heads, HEAD_SIZE) != 0) {
            status = xm_agree_explain(worker, r, strings, length);
        }
    }
    free(strings);

free_heads:
    free(heads);
    return status;
}
