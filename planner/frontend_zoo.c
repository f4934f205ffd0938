#include "planner/frontend_zoo.h"

#include <stdlib.h>
#include <string.h>

#include "comm/text.h"

enum { SEQUENCE = 1024, VOCABULARY = 51200, MAX_MLP = 1000 };

typedef struct gpt_size {
    const char *name;
    int hidden, layers, heads;
} gpt_size_t;

static const gpt_size_t gpt_sizes[] = {
    {"gpt-125m", 768, 12, 12},  {"gpt-350m", 1024, 24, 16}, {"gpt-760m", 1536, 24, 16},
    {"gpt-1.3b", 2048, 24, 32}, {"gpt-2.6b", 2560, 32, 32}, {"gpt-6.7b", 4096, 32, 32},
    {"gpt-15b", 5120, 48, 40},  {"gpt-39b", 8192, 48, 64},  {"gpt-76b", 10240, 60, 80}};

enum { GPT_SIZES = sizeof(gpt_sizes) / sizeof(gpt_sizes[0]) };

const char *ap_zoo_name(size_t index)
{
    return index < GPT_SIZES ? gpt_sizes[index].name : NULL;
}

/* A model under construction: the first failure sticks and later calls do nothing, so that a model
 * reads as the list of its operators. */
typedef struct builder {
    ap_graph_t *graph;
    xm_status_t status;
    ap_dtype_t dtype;
    int block; /* put in front of names; -1 = none */
} builder_t;

static const char *full_name(const builder_t *b, const char *name, char *buffer, size_t size)
{
    if (b->block < 0) {
        return name;
    }
    (void)snprintf(buffer, size, "block%d.%s", b->block, name);
    return buffer;
}

static int tensor(builder_t *b, const char *name, ap_tensor_kind_t kind, ap_dtype_t dtype, int rank,
                  const int64_t *dims)
{
    ap_shape_t shape = {.rank = rank};
    char buffer[64];
    int id = -1;

    memcpy(shape.dims, dims, (size_t)rank * sizeof(dims[0]));
    if (b->status == XM_OK) {
        b->status = ap_graph_add_tensor(b->graph, full_name(b, name, buffer, sizeof(buffer)), kind,
                                        &shape, dtype, &id);
    }
    return id;
}

static int parameter(builder_t *b, const char *name, int rank, const int64_t *dims)
{
    return tensor(b, name, AP_TENSOR_PARAMETER, b->dtype, rank, dims);
}

static int parameter1(builder_t *b, const char *name, int64_t size)
{
    return parameter(b, name, 1, &size);
}

static void op_results(builder_t *b, ap_op_params_t *params, const char *name, int *results)
{
    char buffer[64];

    params->name = full_name(b, name, buffer, sizeof(buffer));
    params->result_dtype = b->dtype;
    if (b->status == XM_OK) {
        b->status = ap_graph_add_op(b->graph, params, results);
    }
}

/* An operator with one result; operands end at the first negative id. */
static int op(builder_t *b, ap_op_kind_t kind, const char *name, const char *rule, double flops,
              const int *operands, int count)
{
    ap_op_params_t params = AP_OP_PARAMS_INIT;
    int results[AP_MAX_RESULTS] = {-1, -1, -1};

    params.kind = kind;
    params.rule = rule;
    params.flops_per_point = flops;
    params.operand_count = count;
    memcpy(params.operands, operands, (size_t)count * sizeof(int));
    if (kind == AP_OP_LAYER_NORM) {
        params.replicated = "h";
    } else if (kind == AP_OP_SOFTMAX) {
        params.replicated = "t";
    }
    params.linear = kind == AP_OP_ELEMENTWISE && count == 2;
    op_results(b, &params, name, results);
    return results[0];
}

static int op1(builder_t *b, ap_op_kind_t kind, const char *name, const char *rule, double flops,
               int operand)
{
    return op(b, kind, name, rule, flops, &operand, 1);
}

static int op2(builder_t *b, ap_op_kind_t kind, const char *name, const char *rule, double flops,
               int first, int second)
{
    const int operands[] = {first, second};

    return op(b, kind, name, rule, flops, operands, 2);
}

static int layer_norm(builder_t *b, const char *name, int64_t hidden, int x)
{
    char scale_name[32], shift_name[32];
    int operands[3];

    (void)snprintf(scale_name, sizeof(scale_name), "%s.scale", name);
    (void)snprintf(shift_name, sizeof(shift_name), "%s.shift", name);
    operands[0] = x;
    operands[1] = parameter1(b, scale_name, hidden);
    operands[2] = parameter1(b, shift_name, hidden);
    return op(b, AP_OP_LAYER_NORM, name, "bsh,h,h->bsh", 8, operands, 3);
}

/* Opens the heads: n heads of query, key and value of width d each. */
static void split_heads(builder_t *b, int64_t width, int qkv, int *parts)
{
    ap_op_params_t params = AP_OP_PARAMS_INIT;
    char sizes[32];

    (void)snprintf(sizes, sizeof(sizes), "d=%lld", (long long)width);
    params.kind = AP_OP_SPLIT;
    params.rule = "bsne->bsnd,bsnd,bsnd";
    params.replicated = "ed";
    params.sizes = sizes;
    params.operand_count = 1;
    params.operands[0] = qkv;
    op_results(b, &params, "split", parts);
}

static int attention(builder_t *b, int64_t hidden, int64_t heads, int x)
{
    const int64_t width = hidden / heads;
    const int64_t qkv_dims[] = {hidden, heads, 3 * width}, qkv_bias[] = {heads, 3 * width};
    const int64_t out_dims[] = {heads, width, hidden};
    int parts[AP_MAX_RESULTS] = {-1, -1, -1};
    int y;

    y = op2(b, AP_OP_EINSUM, "qkv", "bsh,hne->bsne", 2, x, parameter(b, "qkv.w", 3, qkv_dims));
    y = op2(b, AP_OP_ELEMENTWISE, "qkv.add", "bsne,ne->bsne", 1, y,
            parameter(b, "qkv.b", 2, qkv_bias));
    split_heads(b, width, y, parts);
    y = op2(b, AP_OP_EINSUM, "scores", "bsnd,btnd->bnst", 2, parts[0], parts[1]);
    y = op1(b, AP_OP_SOFTMAX, "softmax", "bnst->bnst", 6, y);
    y = op2(b, AP_OP_EINSUM, "context", "bnst,btnd->bsnd", 2, y, parts[2]);
    y = op2(b, AP_OP_EINSUM, "out", "bsnd,ndh->bsh", 2, y, parameter(b, "out.w", 3, out_dims));
    return op2(b, AP_OP_ELEMENTWISE, "out.add", "bsh,h->bsh", 1, y, parameter1(b, "out.b", hidden));
}

static int feed_forward(builder_t *b, int64_t hidden, int x)
{
    const int64_t up[] = {hidden, 4 * hidden}, down[] = {4 * hidden, hidden};
    int y;

    y = op2(b, AP_OP_EINSUM, "up", "bsh,hf->bsf", 2, x, parameter(b, "up.w", 2, up));
    y = op2(b, AP_OP_ELEMENTWISE, "up.add", "bsf,f->bsf", 1, y, parameter1(b, "up.b", 4 * hidden));
    y = op1(b, AP_OP_ELEMENTWISE, "gelu", "bsf->bsf", 8, y);
    y = op2(b, AP_OP_EINSUM, "down", "bsf,fh->bsh", 2, y, parameter(b, "down.w", 2, down));
    return op2(b, AP_OP_ELEMENTWISE, "down.add", "bsh,h->bsh", 1, y,
               parameter1(b, "down.b", hidden));
}

static int block(builder_t *b, const gpt_size_t *size, int x)
{
    int y = layer_norm(b, "norm1", size->hidden, x);

    y = attention(b, size->hidden, size->heads, y);
    x = op2(b, AP_OP_ELEMENTWISE, "residual1", "bsh,bsh->bsh", 1, x, y);
    y = layer_norm(b, "norm2", size->hidden, x);
    y = feed_forward(b, size->hidden, y);
    return op2(b, AP_OP_ELEMENTWISE, "residual2", "bsh,bsh->bsh", 1, x, y);
}

static void set_layer(builder_t *b, int layer)
{
    if (b->status == XM_OK) {
        b->status = ap_graph_set_layer(b->graph, layer);
    }
}

static void set_loss(builder_t *b, int loss, bool is_gradient)
{
    if (b->status == XM_OK) {
        b->status = ap_graph_set_loss(b->graph, loss, is_gradient);
    }
}

static void build_gpt(builder_t *b, const gpt_size_t *size, const ap_zoo_params_t *params)
{
    const int64_t batch = params->batch > 0 ? params->batch : 1;
    const int64_t tokens[] = {batch, SEQUENCE}, table[] = {VOCABULARY, size->hidden};
    const int64_t positions[] = {SEQUENCE, size->hidden};
    const int layers = params->layers > 0 ? params->layers : size->layers;
    int ids, labels, words, x, losses;

    b->dtype = AP_DTYPE_F16;
    ids = tensor(b, "tokens", AP_TENSOR_INPUT, AP_DTYPE_I32, 2, tokens);
    words = parameter(b, "embedding.w", 2, table);
    x = op2(b, AP_OP_EMBEDDING, "embedding", "bs,vh->bsh", 0, ids, words);
    x = op2(b, AP_OP_ELEMENTWISE, "position.add", "bsh,sh->bsh", 1, x,
            parameter(b, "position.w", 2, positions));
    for (b->block = 1; b->block <= layers; ++b->block) {
        set_layer(b, b->block);
        x = block(b, size, x);
    }
    b->block = -1;
    set_layer(b, layers + 1);
    x = layer_norm(b, "norm", size->hidden, x);
    if (!params->tied_embeddings) {
        words = parameter(b, "head.w", 2, table);
    }
    x = op2(b, AP_OP_EINSUM, "head", "bsh,vh->bsv", 2, x, words);
    labels = tensor(b, "labels", AP_TENSOR_INPUT, AP_DTYPE_I32, 2, tokens);
    b->dtype = AP_DTYPE_F32;
    losses = op2(b, AP_OP_CROSS_ENTROPY, "cross_entropy", "bsv,bs->bs", 4, x, labels);
    set_loss(b, op1(b, AP_OP_REDUCE, "loss", "bs->", 1, losses), false);
}

static void build_mlp(builder_t *b, int weights, const ap_zoo_params_t *params)
{
    const int64_t hidden = params->hidden > 0 ? params->hidden : 128;
    const int64_t activation[] = {params->batch > 0 ? params->batch : 1024, hidden};
    const int64_t square[] = {hidden, hidden};
    char name[32];
    int x, y;

    b->dtype = AP_DTYPE_F32;
    x = tensor(b, "x", AP_TENSOR_INPUT, b->dtype, 2, activation);
    y = tensor(b, "y", AP_TENSOR_INPUT, b->dtype, 2, activation);
    for (int i = 0; i < weights; ++i) {
        int w;

        set_layer(b, i);
        (void)snprintf(name, sizeof(name), "w%d", i + 1);
        w = parameter(b, name, 2, square);
        (void)snprintf(name, sizeof(name), "h%d", i + 1);
        x = op2(b, AP_OP_EINSUM, name, "bk,kn->bn", 2, x, w);
    }
    set_loss(b, op2(b, AP_OP_ELEMENTWISE, "loss", "bn,bn->bn", 1, x, y), true);
}

/* N of "mlpN", or 0. */
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

static const gpt_size_t *find_gpt(const char *name)
{
    for (size_t i = 0; i < GPT_SIZES; ++i) {
        if (strcmp(gpt_sizes[i].name, name) == 0) {
            return &gpt_sizes[i];
        }
    }
    return NULL;
}

static xm_status_t unknown_model(const char *name)
{
    const char *names[GPT_SIZES + 2] = {"mlp2", "mlp12"};
    const char *nearest;

    for (size_t i = 0; i < GPT_SIZES; ++i) {
        names[i + 2] = gpt_sizes[i].name;
    }
    nearest = xm_text_nearest(name, names, GPT_SIZES + 2);
    if (nearest != NULL) {
        return xm_error_set(XM_ERR_NOT_FOUND, "no built-in model '%s'; did you mean '%s'?", name,
                            nearest);
    }
    return xm_error_set(XM_ERR_NOT_FOUND, "no built-in model '%s' (gpt-125m … gpt-76b, or mlpN)",
                        name);
}

xm_status_t ap_zoo_create(const char *name, const ap_zoo_params_t *params, ap_graph_t **graph)
{
    const gpt_size_t *size = find_gpt(name);
    int weights = mlp_weights(name);
    builder_t b = {.block = -1};

    if (size == NULL && weights == 0) {
        return unknown_model(name);
    }
    if (params->batch < 0 || params->hidden < 0 || params->layers < 0) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "model '%s': batch, hidden and layers must be positive", name);
    }
    b.status = ap_graph_create(name, &b.graph);
    if (b.status != XM_OK) {
        return b.status;
    }
    if (size != NULL) {
        build_gpt(&b, size, params);
    } else {
        build_mlp(&b, weights, params);
    }
    if (b.status == XM_OK) {
        b.status = ap_graph_finish(b.graph);
    }
    if (b.status != XM_OK) {
        ap_graph_destroy(b.graph);
        return b.status;
    }
    *graph = b.graph;
    return XM_OK;
}
