/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Built-in models by name: several families, each a table of sizes with a function that builds.
 * They exist so that the planner can be used and measured without any file, on the models of the
 * papers it is compared with.
 *
 * mlpN is no entry of a table, because N is any number; it is the model of Alpa's intra-operator
 * tests.
 */

#include "planner/frontend/zoo.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "planner/frontend/zoo/builder.h"

enum { MAX_MLP = 1000, MAX_NAMES = 64 };

static const zoo_family_t *const families[] = {&zoo_gpts,     &zoo_moes, &zoo_wresnets, &zoo_unets,
                                               &zoo_decoders, &zoo_t5s,  &zoo_dlrms};

enum { FAMILIES = sizeof(families) / sizeof(families[0]) };

/* The model at `index` over all families, or NULL. */
static const zoo_model_t *model_at(size_t index)
{
    for (size_t f = 0; f < FAMILIES; ++f) {
        if (index < families[f]->count) {
            return &families[f]->models[index];
        }
        index -= families[f]->count;
    }
    return NULL;
}

const char *ap_zoo_name(size_t index)
{
    const zoo_model_t *model = model_at(index);

    return model != NULL ? model->name : NULL;
}

/* The error is declared to be its own gradient, as that of a squared loss is, so the graph needs no
 * scalar. */
static void build_mlp(zoo_builder_t *b, int weights, const ap_zoo_params_t *params)
{
    const int64_t hidden = params->hidden > 0 ? params->hidden : 128;
    const int64_t activation[] = {params->batch > 0 ? params->batch : 1024, hidden};
    const int64_t square[] = {hidden, hidden};
    char name[32];
    int x, y;

    b->dtype = AP_DTYPE_F32;
    x = zoo_input(b, "x", b->dtype, 2, activation);
    y = zoo_input(b, "y", b->dtype, 2, activation);
    for (int i = 0; i < weights; ++i) {
        int w;

        zoo_layer(b, i);
        (void)snprintf(name, sizeof(name), "w%d", i + 1);
        w = zoo_parameter(b, name, 2, square);
        (void)snprintf(name, sizeof(name), "h%d", i + 1);
        x = zoo_op2(b, AP_OP_EINSUM, name, "bk,kn->bn", 2, x, w);
    }
    zoo_loss(b, zoo_op2(b, AP_OP_ELEMENTWISE, "loss", "bn,bn->bn", 1, x, y), true);
}

/* N of "mlpN", or 0 for every other name. */
static int mlp_weights(const char *name)
{
    char *end;
    long weights;

    if (strncmp(name, "mlp", 3) != 0 || name[3] < '1' || name[3] > '9') {
        return 0;
    }
    weights = strtol(name + 3, &end, 10);
    return *end == '\0' && weights <= MAX_MLP ? (int)weights : 0;
}

static const zoo_model_t *find_model(const char *name)
{
    const zoo_model_t *model;

    for (size_t i = 0; (model = model_at(i)) != NULL; ++i) {
        if (strcmp(model->name, name) == 0) {
            return model;
        }
    }
    return NULL;
}

/* The list has room for all models; one more than that would only be missing among suggestions. */
static xm_status_t unknown_model(const char *name)
{
    const char *names[MAX_NAMES] = {"mlp2", "mlp12"};
    const char *nearest;
    size_t count = 2;

    for (const char *next; count < MAX_NAMES && (next = ap_zoo_name(count - 2)) != NULL; ++count) {
        names[count] = next;
    }
    nearest = xm_text_nearest(name, names, count);
    if (nearest != NULL) {
        return XM_NOT_FOUND("no built-in model '%s'; did you mean '%s'?", name, nearest);
    }
    return XM_NOT_FOUND("no built-in model '%s' (autopar import --list-models names them)", name);
}

xm_status_t ap_zoo_create(const char *name, const ap_zoo_params_t *params, ap_graph_t **graph)
{
    const zoo_model_t *model = find_model(name);
    int weights = mlp_weights(name);
    zoo_builder_t b = {.block = -1};
    zoo_model_t sized;

    if (model == NULL && weights == 0) {
        return unknown_model(name);
    }
    if (params->batch < 0 || params->hidden < 0 || params->layers < 0 || params->sequence < 0) {
        return XM_INVALID("model '%s': batch, hidden, layers and sequence must be positive", name);
    }
    b.status = ap_graph_create(name, &b.graph);
    if (b.status != XM_OK) {
        return b.status;
    }
    if (model != NULL) {
        /* A copy with the sequence length asked for; families without sequences ignore it. */
        sized = *model;
        if (params->sequence > 0 && sized.sequence > 0) {
            sized.sequence = params->sequence;
        }
        sized.build(&b, &sized, params);
    } else {
        build_mlp(&b, weights, params);
    }
    XM_THEN(b.status, ap_graph_finish(b.graph));
    if (b.status != XM_OK) {
        ap_graph_destroy(b.graph);
        return b.status;
    }
    *graph = b.graph;
    return XM_OK;
}
