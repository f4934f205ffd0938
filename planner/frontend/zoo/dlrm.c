/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DLRM (Naumov and others, 2019) with the shape of its benchmark on Criteo's data of one week: 13
 * dense features through the bottom network, 26 tables of 16 numbers a row, the products of all
 * pairs of the 27 vectors, the top network. Layer 0 has the tables and the bottom network, for they
 * do not wait for each other; 1 the pairs and the top.
 */

#include <stdio.h>
#include <string.h>

#include "planner/frontend/zoo/builder.h"

enum { DENSE = 13, TABLES = 26, VECTORS = TABLES + 1, PAIRS = VECTORS * TABLES / 2, NAME = 32 };

/* Rows: the different values of each feature in the data. */
static const int64_t rows[TABLES] = {
    1460, 583,   10131227, 2202608, 305,  24,   12517, 633,     3,  93145, 5683,   8351593, 3194,
    27,   14992, 5461306,  10,      5652, 2173, 4,     7046547, 18, 15,    286181, 105,     142572};

static void build_dlrm(zoo_builder_t *b, const zoo_model_t *model, const ap_zoo_params_t *params);

static const zoo_model_t dlrms[] = {{.name = "dlrm-540m", .build = build_dlrm, .hidden = 16}};

const zoo_family_t zoo_dlrms = {dlrms, sizeof(dlrms) / sizeof(dlrms[0])};

/* Layers with bias and ReLU, all but the last of a network that ends in the prediction. */
static int network(zoo_builder_t *b, const char *name, int count, const int64_t *widths, int x)
{
    b->prefix = name;
    for (b->block = 0; b->block + 1 < count; ++b->block) {
        const int64_t *dims = widths + b->block;

        x = zoo_linear(b, "linear", "bi,ij->bj", 2, dims, x);
        x = zoo_bias(b, "linear", "bj,j->bj", 1, dims + 1, x);
        x = dims[1] > 1 ? zoo_op1(b, AP_OP_ELEMENTWISE, "relu", "bj->bj", 1, x) : x;
    }
    b->prefix = NULL;
    b->block = -1;
    return x;
}

/* The result of the bottom network and the row of every table, beside each other. */
static int vectors(zoo_builder_t *b, int64_t batch, int64_t width, int x)
{
    const zoo_op_t stack = {.kind = AP_OP_RESHAPE,
                            .name = "stack",
                            .rule =
                                "bd,bd,bd,bd,bd,bd,bd,bd,bd,bd,bd,bd,bd,bd,bd,bd,bd,bd,bd,bd,bd,"
                                "bd,bd,bd,bd,bd,bd->bfd",
                            .whole = "f",
                            .sizes = "f=27"};
    int operands[VECTORS + 1] = {x};
    char name[NAME];

    for (int i = 0; i < TABLES; ++i) {
        const int64_t dims[] = {rows[i], width};
        int ids, table;

        (void)snprintf(name, sizeof(name), "table%d.ids", i);
        ids = zoo_input(b, name, AP_DTYPE_I32, 1, &batch);
        (void)snprintf(name, sizeof(name), "table%d.w", i);
        table = zoo_parameter(b, name, 2, dims);
        (void)snprintf(name, sizeof(name), "table%d", i);
        operands[i + 1] = zoo_op2(b, AP_OP_EMBEDDING, name, "b,vd->bd", 0, ids, table);
    }
    operands[VECTORS] = -1;
    return zoo_any(b, &stack, operands, NULL);
}

static void build_dlrm(zoo_builder_t *b, const zoo_model_t *model, const ap_zoo_params_t *params)
{
    const int64_t batch = params->batch > 0 ? params->batch : 1;
    const int64_t bottom[] = {DENSE, 512, 256, 64, model->hidden};
    const int64_t top[] = {model->hidden + PAIRS, 512, 256, 1};
    const int64_t dense[] = {batch, DENSE}, answer[] = {batch, 1};
    const zoo_op_t triangle = {.kind = AP_OP_RESHAPE,
                               .name = "pairs",
                               .rule = "bfg->bp",
                               .whole = "fgp",
                               .sizes = "p=351"};
    const zoo_op_t join = {.kind = AP_OP_RESHAPE,
                           .name = "join",
                           .rule = "bd,bp->bq",
                           .whole = "dpq",
                           .sizes = "q=367"};
    int low, x;

    b->dtype = AP_DTYPE_F32;
    zoo_layer(b, 0);
    low = network(b, "bottom", 5, bottom, zoo_input(b, "dense", b->dtype, 2, dense));
    x = vectors(b, batch, model->hidden, low);
    zoo_layer(b, 1);
    x = zoo_op2(b, AP_OP_EINSUM, "products", "bfd,bgd->bfg", 2, x, x);
    x = zoo_any2(b, &join, low, zoo_any1(b, &triangle, x));
    x = network(b, "top", 4, top, x);
    x = zoo_op2(b, AP_OP_ELEMENTWISE, "entropy", "bo,bo->bo", 4, x,
                zoo_input(b, "labels", b->dtype, 2, answer));
    zoo_loss(b, zoo_op1(b, AP_OP_REDUCE, "loss", "bo->", 1, x), false);
}
