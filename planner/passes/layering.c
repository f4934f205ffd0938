/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides where the layers of a forward graph begin: as told by a pattern or by marks, by number,
 * or by itself. Where they may begin, and what layers are made of, is in layering_sequence.c;
 * cutting into a number of layers of even work and few bytes is Alpa's operator clustering
 * (operator_clustering.c).
 *
 * How many layers is Alpa's parameter and the user's guess. Here it is found: repeated blocks of a
 * model make equal layers, equal layers share their tables, so the best number is the one with the
 * fewest different layers for its number.
 */

#include "planner/passes/layering.h"

#include <math.h>
#include <regex.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "planner/graph.h"
#include "planner/passes/passes_private.h"
#include "planner/passes/operator_clustering.h"

enum {
    MIN_HEAVY = 3,
    MOST_AUTOMATIC = 64,
    WIDE_LAYERS = 16, /* of a model that is cut where several tensors pass, unless told */
    MESSAGE = 200
};

static const double usual_delta = 0.5;

/* A part with more of the FLOPs than this is cut also where several tensors pass: a U-Net would
 * else be one layer. */
static const double most_share = 0.5;

static const char *label_of(const ap_op_t *op)
{
    return op->label != NULL ? op->label : op->name;
}

/* Makes the graph with layers that begin at these places of the sequence. */
static xm_status_t build(const ap_sequence_t *s, const int *first, int layers, ap_graph_t **layered)
{
    ap_graph_copy_t copy = {0};
    int layer = 0;
    xm_status_t status = ap_sequence_copy_open(s, &copy);

    for (int p = 0; p < s->count && status == XM_OK; ++p) {
        if (layer < layers && first[layer] == p) {
            status = ap_graph_set_layer(copy.to, layer++);
        }
        if (status == XM_OK) {
            status = ap_sequence_copy_op(s, p, layer, &copy);
        }
    }
    if (status == XM_OK) {
        status = ap_sequence_copy_loss(s, &copy);
    }
    return ap_graph_copy_close(&copy, status, layered);
}

/* The share of the FLOPs that the largest part has that cannot be cut. */
static double largest_share(const ap_sequence_t *s)
{
    double total = 0, part = 0, largest = 0;

    for (int p = 0; p < s->count; ++p) {
        part = s->may_begin[p] ? s->flops[p] : part + s->flops[p];
        largest = fmax(largest, part);
        total += s->flops[p];
    }
    return total > 0 ? largest / total : 0;
}

/* The usual excess over the mean, or what the largest part that cannot be cut needs. */
static double least_delta(const ap_sequence_t *s, int layers)
{
    return fmax(usual_delta, largest_share(s) * layers - 1);
}

static xm_status_t cluster(const ap_sequence_t *s, int layers, double delta, int min_heavy,
                           ap_operator_clusters_t *found)
{
    ap_operator_clustering_t problem = AP_OPERATOR_CLUSTERING_INIT;

    problem.ops = s->count;
    problem.flops = s->flops;
    problem.heavy = s->heavy;
    problem.may_begin = s->may_begin;
    problem.tensors = s->tensors;
    problem.bytes = s->bytes;
    problem.maker = s->maker;
    problem.use_begin = s->use_begin;
    problem.use_tensor = s->use_tensor;
    problem.layers = layers;
    problem.delta = delta;
    problem.min_heavy = min_heavy;
    return ap_operator_clustering_solve(&problem, found);
}

/* Makes so many layers, whatever rules have to be given up for it: first the number of products in
 * each, then the evenness, whose tolerance doubles until any cut is allowed. */
static xm_status_t cluster_somehow(const ap_sequence_t *s, bool wide, int layers,
                                   ap_operator_clusters_t *found)
{
    xm_status_t status = cluster(s, layers, least_delta(s, layers), MIN_HEAVY, found);

    for (double delta = least_delta(s, layers);
         status == XM_ERR_NO_SOLUTION && delta < 2.0 * layers; delta *= 2) {
        status = cluster(s, layers, delta, 0, found);
    }
    return status == XM_ERR_NO_SOLUTION
               ? XM_NO_SOLUTION(
                     "'%s' does not make %d layers: there are %d places where %s, for at most %d",
                     ap_graph_name(s->graph), layers, s->places,
                     wide ? "tensors pass" : "one tensor passes", s->places + 1)
               : status;
}

static xm_status_t into_layers(const ap_sequence_t *s, bool wide, int layers, ap_graph_t **layered)
{
    ap_operator_clusters_t found = {0};
    xm_status_t status = cluster_somehow(s, wide, layers, &found);

    if (status == XM_OK) {
        status = build(s, found.first, layers, layered);
    }
    ap_operator_clusters_clear(&found);
    return status;
}

/* Places where several tensors pass are taken where the others do not do: cuts there cost more
 * resharding. */
static xm_status_t by_count(ap_sequence_t *s, const ap_layering_t *how, ap_graph_t **layered)
{
    int layers = how->layers;
    bool wide = !how->one_tensor &&
                (s->places + 1 < layers || largest_share(s) > fmax(most_share, 2.0 / layers)) &&
                ap_sequence_widen(s);

    return into_layers(s, wide, layers, layered);
}

/* Without memory all layers count as different, which is slower and never wrong. */
static int count_distinct(const ap_graph_t *graph)
{
    int layers = ap_graph_layers(graph), distinct = 0;
    uint64_t *hashes = malloc((size_t)layers * sizeof(*hashes));

    if (hashes == NULL) {
        return layers;
    }
    for (int layer = 0; layer < layers; ++layer) {
        uint64_t hash = ap_graph_layer_hash(graph, layer);
        int i = 0;

        while (i < distinct && hashes[i] != hash) {
            ++i;
        }
        if (i == distinct) {
            hashes[distinct++] = hash;
        }
    }
    free(hashes);
    return distinct;
}

/* How far layers are from being one and the same: their share of different ones, times how much the
 * largest inner layer exceeds the mean of the inner layers. Embedding and head are left out, for
 * they are different in every model. */
static double unlikeness(const ap_graph_t *layered)
{
    int layers = ap_graph_layers(layered), inner = layers - 2;
    double largest = 0, total = 0;

    for (int layer = 1; layer + 1 < layers; ++layer) {
        double flops = ap_graph_layer_flops(layered, layer);

        total += flops;
        largest = fmax(largest, flops);
    }
    return (double)count_distinct(layered) / layers * (total > 0 ? largest * inner / total : 1);
}

/* How many times as many bytes pass where layers begin as at the best place nearby, in the mean. */
static double excess_of(const ap_sequence_t *s, const ap_operator_clusters_t *clusters, int layers)
{
    int reach = s->count / (2 * WIDE_LAYERS); /* half a layer */
    double sum = 0;

    for (int layer = 1; layer < layers; ++layer) {
        int first = clusters->first[layer];
        double least = s->passing[first];

        for (int p = first - reach; p <= first + reach; ++p) {
            least = p > 0 && p < s->count && s->may_begin[p] ? fmin(least, s->passing[p]) : least;
        }
        sum += s->passing[first] / least;
    }
    return sum / (layers - 1);
}

/* Of a model that is cut where several tensors pass, the number of layers at whose beginnings the
 * fewest bytes pass: of the others some begin within a block, whose parts have to be gathered
 * there. */
static xm_status_t into_wide_layers(const ap_sequence_t *s, ap_graph_t **layered)
{
    int most = s->places + 1 < WIDE_LAYERS ? s->places + 1 : WIDE_LAYERS, best = most;
    double least = HUGE_VAL;

    for (int layers = most; layers >= 2 && layers >= most / 2; --layers) {
        ap_operator_clusters_t found = {0};
        xm_status_t status = cluster_somehow(s, true, layers, &found);
        double excess = status == XM_OK ? excess_of(s, &found, layers) : HUGE_VAL;

        if (excess < least) {
            least = excess;
            best = layers;
        }
        ap_operator_clusters_clear(&found);
        if (status != XM_OK && status != XM_ERR_NO_SOLUTION) {
            return status;
        }
    }
    return into_layers(s, true, best, layered);
}

/* Tries every number up to a limit and keeps the least unlike; of equals the largest number, which
 * leaves the pipeline most freedom. One layer is where it starts, and what remains when nothing
 * keeps to the rules. A model that has to be cut where several tensors pass has no layers that are
 * alike to look for. */
static xm_status_t automatic(ap_sequence_t *s, const ap_layering_t *how, ap_graph_t **layered)
{
    const int one = 0;
    int most = s->places + 1 < MOST_AUTOMATIC ? s->places + 1 : MOST_AUTOMATIC;
    double least = 1;
    ap_graph_t *best = NULL;
    xm_status_t status;

    if (!how->one_tensor && largest_share(s) > most_share && ap_sequence_widen(s)) {
        return into_wide_layers(s, layered);
    }
    status = build(s, &one, 1, &best);

    for (int layers = 2; layers <= most && status == XM_OK; ++layers) {
        ap_operator_clusters_t found = {0};
        ap_graph_t *made = NULL;
        double unlike;

        status = cluster(s, layers, least_delta(s, layers), MIN_HEAVY, &found);
        if (status == XM_ERR_NO_SOLUTION) {
            status = XM_OK;
            continue;
        }
        if (status == XM_OK) {
            status = build(s, found.first, layers, &made);
        }
        ap_operator_clusters_clear(&found);
        if (status != XM_OK) {
            break;
        }
        unlike = unlikeness(made);
        if (unlike <= least) {
            ap_graph_t *worse = best;

            least = unlike;
            best = made;
            made = worse;
        }
        ap_graph_destroy(made);
    }
    if (status != XM_OK) {
        ap_graph_destroy(best);
        return status;
    }
    *layered = best;
    return XM_OK;
}

/* Checks that tensors pass before each layer, or one tensor; the sentence says which layer cannot
 * begin where it was told to. */
static xm_status_t check_places(const ap_sequence_t *s, bool one_tensor, const int *first,
                                int layers)
{
    for (int layer = 1; layer < layers; ++layer) {
        const ap_op_t *op = ap_graph_op(s->graph, s->op[first[layer]]);

        if (!(one_tensor ? s->may_begin : s->possible)[first[layer]]) {
            return XM_NO_SOLUTION(
                "layer %d of '%s' cannot begin with operator '%s': %s", layer,
                ap_graph_name(s->graph), op->name,
                s->crossing[first[layer]] == 1 ? "what follows is the start of the backward pass"
                : one_tensor ? "not one tensor passes there but several, one number or none"
                             : "one number passes there, or nothing");
        }
    }
    return XM_OK;
}

/* The text that tells layers apart in a label, the first group or else the whole match; 0 bytes
 * when it does not match. */
static size_t match(const regex_t *pattern, const char *label, const char **text)
{
    regmatch_t groups[2];

    if (regexec(pattern, label, 2, groups, 0) != 0) {
        return 0;
    }
    if (groups[1].rm_so >= 0) {
        groups[0] = groups[1];
    }
    *text = label + groups[0].rm_so;
    return (size_t)(groups[0].rm_eo - groups[0].rm_so);
}

/* Whether a layer of this text has begun before. The search goes backwards, because the operators
 * of a layer mostly follow each other. */
static bool has_begun(const ap_sequence_t *s, const regex_t *pattern, const int *named, int count,
                      const char *text, size_t length)
{
    for (int i = count - 1; i >= 0; --i) {
        const char *other = NULL;
        size_t size = match(pattern, label_of(ap_graph_op(s->graph, s->op[named[i]])), &other);

        if (size == length && memcmp(other, text, length) == 0) {
            return true;
        }
    }
    return false;
}

/* A layer begins where the text is new, so operators that return to an earlier layer's name begin
 * nothing. Operators before the first match belong to layer 0. */
static xm_status_t by_pattern(const ap_sequence_t *s, const char *text, int *first, int *layers)
{
    regex_t pattern;
    int error = regcomp(&pattern, text, REG_EXTENDED);
    int *named = malloc((size_t)s->count * sizeof(*named));
    int names = 0;
    xm_status_t status = XM_OK;

    if (error != 0 || named == NULL) {
        char why[MESSAGE] = "out of memory";

        if (error != 0) {
            (void)regerror(error, &pattern, why, sizeof(why));
        } else {
            regfree(&pattern);
        }
        free(named);
        return xm_error_set(error != 0 ? XM_ERR_INVALID_ARGUMENT : XM_ERR_NO_MEMORY,
                            "the pattern of layers '%s': %s", text, why);
    }
    *layers = 0;
    first[(*layers)++] = 0;
    for (int p = 0; p < s->count; ++p) {
        const char *name = NULL;
        size_t length = match(&pattern, label_of(ap_graph_op(s->graph, s->op[p])), &name);

        if (length > 0 && !has_begun(s, &pattern, named, names, name, length)) {
            named[names++] = p;
            if (p > 0) {
                first[(*layers)++] = p;
            }
        }
    }
    if (names == 0) {
        status =
            XM_INVALID("no operator of '%s' matches the pattern of layers '%s'; the first is '%s'",
                       ap_graph_name(s->graph), text, label_of(ap_graph_op(s->graph, s->op[0])));
    }
    regfree(&pattern);
    free(named);
    return status;
}

/* Marks must come in the order of the operators; each is looked for from the one before on. */
static xm_status_t by_marks(const ap_sequence_t *s, const ap_layering_t *how, int *first,
                            int *layers)
{
    int p = 0;

    *layers = 0;
    first[(*layers)++] = 0;
    for (size_t m = 0; m < how->mark_count; ++m) {
        int from = p;

        while (p < s->count && strcmp(ap_graph_op(s->graph, s->op[p])->name, how->marks[m]) != 0 &&
               strcmp(label_of(ap_graph_op(s->graph, s->op[p])), how->marks[m]) != 0) {
            ++p;
        }
        if (p == s->count) {
            return XM_INVALID(
                "layer mark '%s' names no operator of the forward pass of '%s' from '%s' on",
                how->marks[m], ap_graph_name(s->graph), ap_graph_op(s->graph, s->op[from])->name);
        }
        if (p > first[*layers - 1]) {
            first[(*layers)++] = p;
        }
    }
    return XM_OK;
}

/* A layer may be told twice at one place; it begins once. */
static xm_status_t as_given(const ap_sequence_t *s, const ap_layering_t *how, ap_graph_t **layered)
{
    int *first = malloc(((size_t)s->count + how->mark_count + 1) * sizeof(*first));
    int layers = 0;
    xm_status_t status;

    XM_NEED_MEMORY(first, "the layers of %d operators", s->count);
    status = how->pattern != NULL ? by_pattern(s, how->pattern, first, &layers)
                                  : by_marks(s, how, first, &layers);
    if (status == XM_OK) {
        status = check_places(s, how->one_tensor, first, layers);
    }
    if (status == XM_OK) {
        status = build(s, first, layers, layered);
    }
    free(first);
    return status;
}

void ap_layering_describe(const ap_graph_t *layered, ap_layering_info_t *info)
{
    double largest = 0, total = 0;

    *info = (ap_layering_info_t){.layers = ap_graph_layers(layered),
                                 .distinct = count_distinct(layered)};
    for (int layer = 0; layer < info->layers; ++layer) {
        double flops = ap_graph_layer_flops(layered, layer);

        total += flops;
        largest = fmax(largest, flops);
        if (layer + 1 < info->layers) {
            double bytes = ap_graph_tensor_bytes(layered, ap_graph_boundary(layered, layer));

            info->sum_bytes += bytes;
            info->largest_bytes = fmax(info->largest_bytes, bytes);
        }
    }
    info->imbalance = total > 0 ? largest * info->layers / total : 1;
}

/* Only one of the three ways may be told, because they could contradict each other. */
xm_status_t ap_layering_apply(const ap_graph_t *forward, const ap_layering_t *how,
                              ap_graph_t **layered, ap_layering_info_t *info)
{
    ap_sequence_t s;
    xm_status_t status;

    if (how->struct_size < sizeof(*how) || how->layers < AP_LAYERING_AUTOMATIC ||
        (how->layers != 0) + (how->pattern != NULL) + (how->marks != NULL) > 1) {
        return XM_INVALID("layers are told by a number, a pattern or marks: by one of them");
    }
    status = ap_sequence_create(forward, &s);
    if (status != XM_OK) {
        return status;
    }
    if (how->pattern != NULL || how->marks != NULL) {
        status = as_given(&s, how, layered);
    } else {
        status = how->layers > 0 ? by_count(&s, how, layered) : automatic(&s, how, layered);
    }
    if (status == XM_OK && info != NULL) {
        ap_layering_describe(*layered, info);
        info->places = s.places;
    }
    ap_sequence_clear(&s);
    return status;
}
