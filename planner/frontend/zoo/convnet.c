/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Convolutional models: Wide-ResNet (Alpa, OSDI'22) and the U-Transformer of the resharding paper
 * (MLSys'23), as their benchmarks build them. Images are b, x, y, channels. Spatial dimensions
 * always stay whole: cutting them would exchange borders between devices, which neither paper does.
 */

#include <stdio.h>

#include "planner/frontend/zoo/builder.h"

enum {
    PIXELS = 224,
    CLASSES = 1024,
    LATENT_PIXELS = 32,
    LATENT_IN = 3,
    LATENT_OUT = 4,
    UNET_HEADS = 8,
    UNET_BLOCKS = 4,
    UNET_SKIPS = 2 * UNET_BLOCKS,
    UNET_MIDDLE = 2 * UNET_BLOCKS, /* its first layer: each block down has two, the last one */
    UNET_UP = UNET_MIDDLE + 3,
    TEXT_TEXT = 64
};

static void build_wresnet(zoo_builder_t *b, const zoo_model_t *model,
                          const ap_zoo_params_t *params);
static void build_unet(zoo_builder_t *b, const zoo_model_t *model, const ap_zoo_params_t *params);

/* hidden: base channels; feed_forward: how much wider the middle convolution is. */
#define WRESNET(label, channels, width)                                                            \
    {                                                                                              \
        .name = (label), .build = build_wresnet, .hidden = (channels), .feed_forward = (width)     \
    }
#define UNET(label, channels)                                                                      \
    {                                                                                              \
        .name = (label), .build = build_unet, .hidden = (channels)                                 \
    }

static const zoo_model_t wresnets[] = {
    WRESNET("wresnet-250m", 160, 2), WRESNET("wresnet-500m", 224, 2),
    WRESNET("wresnet-1b", 320, 2),   WRESNET("wresnet-2b", 448, 2),
    WRESNET("wresnet-4b", 640, 2),   WRESNET("wresnet-6.8b", 320, 16),
    WRESNET("wresnet-13b", 320, 32)};

static const zoo_model_t unets[] = {UNET("unet-470m", 320), UNET("unet-1b", 480),
                                    UNET("unet-1.2b", 512), UNET("unet-1.8b", 640),
                                    UNET("unet-2b", 672)};

const zoo_family_t zoo_wresnets = {wresnets, sizeof(wresnets) / sizeof(wresnets[0])};

const zoo_family_t zoo_unets = {unets, sizeof(unets) / sizeof(unets[0])};

static int64_t extent(const zoo_builder_t *b, int tensor, int dim)
{
    return b->status == XM_OK ? ap_graph_tensor(b->graph, tensor)->shape.dims[dim] : 1;
}

static int relu(zoo_builder_t *b, const char *name, int x)
{
    return zoo_op1(b, AP_OP_ELEMENTWISE, name, "bxyc->bxyc", 1, x);
}

/* A square convolution without bias, on square images: rules name both spatial dimensions alike.
 * With a stride the result's pixels are a factor of their own, whose size must be told. */
static int convolution(zoo_builder_t *b, const char *name, int64_t out, int64_t window,
                       int64_t stride, int x)
{
    const int64_t pixels = extent(b, x, 1), made = pixels / stride, in = extent(b, x, 3);
    const int64_t dims[] = {window, window, in, out};
    char sizes[TEXT_TEXT], weight[TEXT_TEXT];
    const zoo_op_t op = {.kind = AP_OP_EINSUM,
                         .name = name,
                         .rule = stride == 1 ? "bxxi,uuio->bxxo" : "bxxi,uuio->byyo",
                         .whole = "xyu",
                         .sizes = stride == 1 ? NULL : sizes,
                         .flops = 2.0 * (double)(extent(b, x, 0) * made * made) *
                                  (double)(window * window) * (double)(in * out)};

    (void)snprintf(sizes, sizeof(sizes), "y=%lld", (long long)made);
    (void)snprintf(weight, sizeof(weight), "%s.w", name);
    return zoo_any2(b, &op, x, zoo_parameter(b, weight, 4, dims));
}

static int biased_convolution(zoo_builder_t *b, const char *name, int64_t out, int64_t window,
                              int64_t stride, int x)
{
    return zoo_bias(b, name, "bxyo,o->bxyo", 1, &out, convolution(b, name, out, window, stride, x));
}

/* A norm of images, by a rule that takes scale and shift. */
static int image_norm(zoo_builder_t *b, const zoo_op_t *how, int x)
{
    char part[TEXT_TEXT];
    int operands[4] = {x, -1, -1, -1};
    zoo_op_t op = *how;

    op.kind = AP_OP_LAYER_NORM;
    op.flops = 8.0 * (double)(extent(b, x, 0) * extent(b, x, 1)) *
               (double)(extent(b, x, 2) * extent(b, x, 3));
    (void)snprintf(part, sizeof(part), "%s.scale", op.name);
    operands[1] = zoo_parameter1(b, part, extent(b, x, 3));
    (void)snprintf(part, sizeof(part), "%s.shift", op.name);
    operands[2] = zoo_parameter1(b, part, extent(b, x, 3));
    return zoo_any(b, &op, operands, NULL);
}

/* Statistics are each device's own, as they are under data parallelism; so samples can be cut. */
static int batch_norm(zoo_builder_t *b, const char *name, int x)
{
    return image_norm(b, &(zoo_op_t){.name = name, .rule = "bxxc,c,c->bxxc", .whole = "x"}, x);
}

/* A bottleneck: 1x1, then 3x3 with `width` times the channels, then 1x1 to four times the channels.
 * The skipped path gets a convolution where its shape changes. */
static int bottleneck(zoo_builder_t *b, int64_t channels, int64_t width, int64_t stride, int x)
{
    int y = relu(b, "relu1", batch_norm(b, "norm1", convolution(b, "conv1", channels, 1, 1, x)));

    y = convolution(b, "conv2", channels * width, 3, stride, y);
    y = relu(b, "relu2", batch_norm(b, "norm2", y));
    y = batch_norm(b, "norm3", convolution(b, "conv3", 4 * channels, 1, 1, y));
    if (stride != 1 || extent(b, x, 3) != 4 * channels) {
        x = batch_norm(b, "norm.skip", convolution(b, "conv.skip", 4 * channels, 1, stride, x));
    }
    y = zoo_op2(b, AP_OP_ELEMENTWISE, "residual", "bxyc,bxyc->bxyc", 1, x, y);
    return relu(b, "relu3", y);
}

/* The block counts of ResNet-50: 16 blocks in 4 stages, each stage with twice the channels and,
 * after the first, half the pixels. */
static void build_wresnet(zoo_builder_t *b, const zoo_model_t *model, const ap_zoo_params_t *params)
{
    static const int stages[] = {3, 4, 6, 3};
    const int64_t batch = params->batch > 0 ? params->batch : 1;
    const int64_t images[] = {batch, PIXELS, PIXELS, 3}, features = 32 * (int64_t)model->hidden;
    const int64_t head[] = {features, CLASSES}, classes = CLASSES;
    const zoo_op_t pool = {.kind = AP_OP_CUSTOM,
                           .name = "pool",
                           .rule = "bxxc->byyc",
                           .whole = "xy",
                           .sizes = "y=56",
                           .flops = 9.0 * 56 * 56 * (double)(batch * model->hidden)};
    int x, labels;

    b->dtype = AP_DTYPE_F32;
    x = zoo_input(b, "images", b->dtype, 4, images);
    x = convolution(b, "stem", model->hidden, 7, 2, x);
    x = zoo_any1(b, &pool, relu(b, "stem.relu", batch_norm(b, "stem.norm", x)));
    b->prefix = "block";
    b->block = 0;
    for (int stage = 0; stage < 4; ++stage) {
        for (int i = 0; i < stages[stage]; ++i) {
            zoo_layer(b, ++b->block);
            x = bottleneck(b, (int64_t)model->hidden << stage, model->feed_forward,
                           stage > 0 && i == 0 ? 2 : 1, x);
        }
    }
    b->prefix = NULL;
    zoo_layer(b, b->block + 1);
    x = zoo_op1(b, AP_OP_REDUCE, "mean", "bxyc->bc", 1, x);
    x = zoo_linear(b, "head", "bc,cv->bv", 2, head, x);
    x = zoo_bias(b, "head", "bv,v->bv", 1, &classes, x);
    labels = zoo_input(b, "labels", AP_DTYPE_I32, 1, &batch);
    x = zoo_op2(b, AP_OP_CROSS_ENTROPY, "cross_entropy", "bv,b->b", 4, x, labels);
    zoo_loss(b, zoo_op1(b, AP_OP_REDUCE, "loss", "b->", 1, x), false);
}

/* Channels in groups, each normalised together with the whole image; groups can be cut, what is in
 * one cannot. */
static int group_norm(zoo_builder_t *b, const char *name, int groups, int x)
{
    char sizes[TEXT_TEXT];
    const zoo_op_t op = {
        .name = name, .rule = "bxx(gc),(gc),(gc)->bxx(gc)", .whole = "xc", .sizes = sizes};

    (void)snprintf(sizes, sizeof(sizes), "g=%d", groups);
    return image_norm(b, &op, x);
}

static int dense(zoo_builder_t *b, const char *name, int64_t out, int x)
{
    const int64_t dims[] = {extent(b, x, 0), out};

    return zoo_bias(b, name, "o,o->o", 1, &out, zoo_linear(b, name, "i,io->o", 2, dims, x));
}

static int silu(zoo_builder_t *b, const char *name, int x)
{
    return zoo_op1(b, AP_OP_ELEMENTWISE, name, "bxyc->bxyc", 5, x);
}

/* A residual block, told the time step by a bias; `shortcut`: a 1x1 convolution on the skipped
 * path, needed where the number of channels changes. */
static int residual_block(zoo_builder_t *b, const char *name, int64_t out, bool shortcut, int time,
                          int x)
{
    int y, t;

    b->prefix = name;
    y = silu(b, "silu1", group_norm(b, "norm1", 4, x));
    y = biased_convolution(b, "conv1", out, 3, 1, y);
    t = dense(b, "time", out, zoo_op1(b, AP_OP_ELEMENTWISE, "time.silu", "c->c", 5, time));
    y = zoo_op2(b, AP_OP_ELEMENTWISE, "time.sum", "bxyc,c->bxyc", 1, y, t);
    y = silu(b, "silu2", group_norm(b, "norm2", 4, y));
    y = biased_convolution(b, "conv2", out, 3, 1, y);
    x = shortcut ? biased_convolution(b, "skip", out, 1, 1, x) : x;
    return zoo_op2(b, AP_OP_ELEMENTWISE, "residual", "bxyc,bxyc->bxyc", 1, x, y);
}

/* Attention of the sequence x to the sequence `context`, in heads n of width d. Attention to itself
 * reads the normalised sequence. */
static int attend(zoo_builder_t *b, const char *const *names, int64_t channels, int context, int x)
{
    const int64_t in = extent(b, context, 2), width = channels / UNET_HEADS;
    const int64_t q_dims[] = {channels, UNET_HEADS, width}, kv_dims[] = {in, UNET_HEADS, width};
    const int64_t out_dims[] = {UNET_HEADS, width, channels};
    int y = zoo_norm(b, names[0], "bsh,h,h->bsh", channels, true, x), q, k, v;

    context = context == x ? y : context;
    q = zoo_linear(b, names[1], "bsc,cnd->bsnd", 3, q_dims, y);
    k = zoo_linear(b, names[2], "btc,cnd->btnd", 3, kv_dims, context);
    v = zoo_linear(b, names[3], "btc,cnd->btnd", 3, kv_dims, context);
    y = zoo_op2(b, AP_OP_EINSUM, names[4], "bsnd,btnd->bnst", 2, q, k);
    y = zoo_op1(b, AP_OP_SOFTMAX, names[5], "bnst->bnst", 6, y);
    y = zoo_op2(b, AP_OP_EINSUM, names[6], "bnst,btnd->bsnd", 2, y, v);
    y = zoo_linear(b, names[7], "bsnd,ndc->bsc", 3, out_dims, y);
    y = zoo_bias(b, names[7], "bsc,c->bsc", 1, &channels, y);
    return zoo_op2(b, AP_OP_ELEMENTWISE, names[8], "bsc,bsc->bsc", 1, x, y);
}

/* Self-attention, attention to the text, and a gated feed-forward layer, on the image as a sequence
 * of its pixels. */
static int transformer(zoo_builder_t *b, const char *name, int context, int image)
{
    static const char *const self[] = {"self.norm",   "self.q",      "self.k",
                                       "self.v",      "self.scores", "self.softmax",
                                       "self.values", "self.out",    "self.residual"};
    static const char *const cross[] = {"cross.norm",   "cross.q",      "cross.k",
                                        "cross.v",      "cross.scores", "cross.softmax",
                                        "cross.values", "cross.out",    "cross.residual"};
    const int64_t channels = extent(b, image, 3), pixels = extent(b, image, 1);
    const int64_t up[] = {channels, 2, 4 * channels}, up_bias[] = {2, 4 * channels};
    const int64_t down[] = {4 * channels, channels};
    char sizes[TEXT_TEXT];
    const zoo_op_t flatten = {.kind = AP_OP_RESHAPE, .name = "flatten", .rule = "bxyc->b(xy)c"};
    const zoo_op_t unflatten = {
        .kind = AP_OP_RESHAPE, .name = "unflatten", .rule = "b(xy)c->bxyc", .sizes = sizes};
    const zoo_op_t gate = {.kind = AP_OP_CUSTOM,
                           .name = "geglu",
                           .rule = "bsmf->bsf",
                           .whole = "m",
                           .flops = 9.0 * (double)(extent(b, image, 0) * pixels * pixels) *
                                    (double)(4 * channels)};
    int x, y;

    b->prefix = name;
    (void)snprintf(sizes, sizeof(sizes), "x=%lld", (long long)pixels);
    x = group_norm(b, "norm", 32, image);
    x = zoo_any1(b, &flatten, biased_convolution(b, "in", channels, 1, 1, x));
    x = attend(b, self, channels, x, x);
    x = attend(b, cross, channels, context, x);
    y = zoo_norm(b, "mlp.norm", "bsh,h,h->bsh", channels, true, x);
    y = zoo_linear(b, "mlp.up", "bsc,cmf->bsmf", 3, up, y);
    y = zoo_any1(b, &gate, zoo_bias(b, "mlp.up", "bsmf,mf->bsmf", 2, up_bias, y));
    y = zoo_linear(b, "mlp.down", "bsf,fc->bsc", 2, down, y);
    y = zoo_bias(b, "mlp.down", "bsc,c->bsc", 1, &channels, y);
    x = zoo_op2(b, AP_OP_ELEMENTWISE, "mlp.residual", "bsc,bsc->bsc", 1, x, y);
    x = biased_convolution(b, "out", channels, 1, 1, zoo_any1(b, &unflatten, x));
    return zoo_op2(b, AP_OP_ELEMENTWISE, "residual", "bxyc,bxyc->bxyc", 1, x, image);
}

/* Every pixel becomes four; the two copies are minor factors of a compound dimension. */
static int upsample(zoo_builder_t *b, const char *name, int x)
{
    const zoo_op_t op = {
        .kind = AP_OP_RESHAPE, .name = "repeat", .rule = "bxyc->b(xu)(yv)c", .sizes = "u=2,v=2"};

    b->prefix = name;
    return biased_convolution(b, "conv", extent(b, x, 3), 3, 1, zoo_any1(b, &op, x));
}

static int join(zoo_builder_t *b, const char *name, int x, int skip)
{
    const int64_t made = extent(b, x, 3) + extent(b, skip, 3);
    char sizes[TEXT_TEXT];
    const zoo_op_t op = {.kind = AP_OP_RESHAPE,
                         .name = "concat",
                         .rule = "bxyi,bxyj->bxyk",
                         .whole = "ijk",
                         .sizes = sizes};

    b->prefix = name;
    (void)snprintf(sizes, sizeof(sizes), "k=%lld", (long long)made);
    return zoo_any2(b, &op, x, skip);
}

/* The tensors that the way down keeps for the way up, last in first out. */
typedef struct skips {
    int tensor[UNET_SKIPS];
    int count;
} skips_t;

static int go_down(zoo_builder_t *b, const zoo_model_t *model, int time, int context,
                   skips_t *skips, int x)
{
    int64_t channels = model->hidden;

    skips->tensor[skips->count++] = x;
    for (int i = 0; i < UNET_BLOCKS; ++i) {
        const bool last = i + 1 == UNET_BLOCKS;
        const int64_t out = last ? channels : (int64_t)model->hidden << i;
        char name[TEXT_TEXT];

        zoo_layer(b, 2 * i + 1);
        (void)snprintf(name, sizeof(name), "down%d.block", i + 1);
        x = residual_block(b, name, out, out != channels, time, x);
        channels = out;
        if (!last) {
            zoo_layer(b, 2 * i + 2);
            (void)snprintf(name, sizeof(name), "down%d.transformer", i + 1);
            x = transformer(b, name, context, x);
        }
        skips->tensor[skips->count++] = x;
        if (!last) {
            (void)snprintf(name, sizeof(name), "down%d.smaller", i + 1);
            b->prefix = name;
            x = biased_convolution(b, "conv", out, 3, 2, x);
            skips->tensor[skips->count++] = x;
        }
    }
    b->prefix = NULL;
    return x;
}

/* Each block takes two skipped tensors; the first, without transformers, uses both, the others the
 * later one, as the reference does. */
static int go_up(zoo_builder_t *b, const zoo_model_t *model, int time, int context, skips_t *skips,
                 int x)
{
    for (int i = 0; i < UNET_BLOCKS; ++i) {
        const int64_t out = (int64_t)model->hidden << (i == 0 ? 2 : 3 - i);
        char name[TEXT_TEXT];

        for (int k = 0; k < (i == 0 ? 2 : 1); ++k) {
            zoo_layer(b, UNET_UP + 2 * i + k);
            (void)snprintf(name, sizeof(name), "up%d.join%d", i + 1, k + 1);
            x = join(b, name, x, skips->tensor[skips->count - 1 - k]);
            (void)snprintf(name, sizeof(name), "up%d.block%d", i + 1, k + 1);
            x = residual_block(b, name, out, true, time, x);
        }
        skips->count -= 2;
        if (i > 0) {
            zoo_layer(b, UNET_UP + 2 * i + 1);
            (void)snprintf(name, sizeof(name), "up%d.transformer", i + 1);
            x = transformer(b, name, context, x);
        }
        if (i + 1 < UNET_BLOCKS) {
            (void)snprintf(name, sizeof(name), "up%d.larger", i + 1);
            x = upsample(b, name, x);
        }
    }
    b->prefix = NULL;
    return x;
}

/* Every residual block and every transformer is a layer. The skipped tensors, and the time step's,
 * pass over the layers between. */
static void build_unet(zoo_builder_t *b, const zoo_model_t *model, const ap_zoo_params_t *params)
{
    const int64_t batch = params->batch > 0 ? params->batch : 1, channels = model->hidden;
    const int64_t latent[] = {batch, LATENT_PIXELS, LATENT_PIXELS, LATENT_IN};
    const int64_t target[] = {batch, LATENT_PIXELS, LATENT_PIXELS, LATENT_OUT};
    const int64_t text[] = {batch, 16, 4 * channels};
    skips_t skips = {.count = 0};
    int x, time, context;

    b->dtype = AP_DTYPE_F32;
    x = zoo_input(b, "latent", b->dtype, 4, latent);
    context = zoo_input(b, "text", b->dtype, 3, text);
    time = zoo_input(b, "time", b->dtype, 1, &channels);
    time = dense(b, "time1", 4 * channels, time);
    time = zoo_op1(b, AP_OP_ELEMENTWISE, "time.silu", "c->c", 5, time);
    time = dense(b, "time2", 4 * channels, time);
    x = go_down(b, model, time, context, &skips, biased_convolution(b, "in", channels, 3, 1, x));
    zoo_layer(b, UNET_MIDDLE);
    x = residual_block(b, "middle.block1", 4 * channels, false, time, x);
    zoo_layer(b, UNET_MIDDLE + 1);
    x = transformer(b, "middle.transformer", context, x);
    zoo_layer(b, UNET_MIDDLE + 2);
    x = residual_block(b, "middle.block2", 4 * channels, false, time, x);
    b->prefix = NULL;
    x = go_up(b, model, time, context, &skips, x);
    x = silu(b, "silu", group_norm(b, "norm", 4, x));
    x = biased_convolution(b, "out", LATENT_OUT, 3, 1, x);
    zoo_loss(b,
             zoo_op2(b, AP_OP_ELEMENTWISE, "error", "bxyc,bxyc->bxyc", 1, x,
                     zoo_input(b, "noise", b->dtype, 4, target)),
             true);
}
