/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measured FLOP/s of Alpa's published plans, and the FLOPs that they were divided by. The FLOPs
 * are those of the formulas in Alpa's benchmarks, from the sizes of the models, and not those of
 * our graphs: a graph that has too many must not make its price look right.
 */
#include "published_measured.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

enum { SEQUENCE = 1024, GPT_WORDS = 51200, MOE_WORDS = 32000, MOE_GROUP = 2048, CLASSES = 1024 };

/* Forward pass, its second run, and a backward pass of twice as much; the last layer runs once. */
static const double passes = 4, passes_of_the_last = 3;

typedef struct measured {
    const char *model;
    double tera;    /* FLOP/s of a GPU, 1e12 */
    double hidden;  /* or channels of a Wide-ResNet's first block */
    double layers;  /* or the width factor */
    double experts; /* 0: a GPT */
} measured_t;

static const measured_t table[] = {
    {"gpt-350m", 46.20, 1024, 24, 0},  {"gpt-760m", 57.92, 1536, 24, 0},
    {"gpt-1.3b", 58.21, 2048, 24, 0},  {"gpt-2.6b", 61.61, 2560, 32, 0},
    {"gpt-6.7b", 60.0, 4096, 32, 0},   {"gpt-15b", 59.9, 5120, 48, 0},
    {"gpt-39b", 57, 8192, 48, 0},      {"moe-690m", 43.03, 768, 8, 16},
    {"moe-1.3b", 39.92, 768, 16, 16},  {"moe-2.4b", 45.76, 1024, 16, 16},
    {"moe-10b", 45.36, 1536, 16, 32},  {"moe-27b", 38.84, 2048, 16, 48},
    {"wresnet-250m", 8.37, 160, 2, 0}, {"wresnet-500m", 8.46, 224, 2, 0},
    {"wresnet-1b", 8.16, 320, 2, 0},   {"wresnet-2b", 8.04, 448, 2, 0},
    {"wresnet-4b", 6.76, 640, 2, 0},   {"wresnet-6.8b", 6.60, 320, 16, 0},
};

/* FLOPs of one token in the attention of a layer, forward. */
static double attention(double hidden)
{
    return 8 * hidden * hidden + 4 * SEQUENCE * hidden;
}

static double gpt(const measured_t *of)
{
    double layer = attention(of->hidden) + 16 * of->hidden * of->hidden;

    return SEQUENCE *
           (passes * of->layers * layer + passes_of_the_last * 2 * of->hidden * GPT_WORDS);
}

/* Every second layer has experts, of which a token goes to two; it is sent there and back by
 * products with one-hot matrices. */
static double moe(const measured_t *of)
{
    double dense = attention(of->hidden) + 32 * of->hidden * of->hidden;
    double expert = attention(of->hidden) + 64 * of->hidden * of->hidden +
                    2 * of->hidden * of->experts + 4 * MOE_GROUP + 8 * of->hidden * MOE_GROUP;

    return SEQUENCE * (passes * of->layers / 2 * (dense + expert) +
                       passes_of_the_last * 2 * of->hidden * MOE_WORDS);
}

/* ResNet-50 whose 3x3 convolutions have `layers` times the channels, on images of 224 x 224. */
static double wide_resnet(const measured_t *of)
{
    static const int blocks[] = {3, 4, 6, 3};
    double in = of->hidden, pixels = 56, sum = 2 * 112 * 112 * 7 * 7 * 3 * of->hidden;

    for (int stage = 0; stage < 4; ++stage) {
        double channels = of->hidden * (1 << stage), wide = channels * of->layers;

        for (int block = 0; block < blocks[stage]; ++block) {
            bool halves = stage > 0 && block == 0;
            double area = pixels * pixels, smaller = halves ? area / 4 : area;

            sum += 2 * area * in * channels + 2 * smaller * (9 * channels + 4 * channels) * wide;
            sum += block == 0 ? 2 * smaller * in * 4 * channels : 0;
            in = 4 * channels;
            pixels = halves ? pixels / 2 : pixels;
        }
    }
    return passes * (sum + 2 * in * CLASSES);
}

double published_measured_seconds(const char *model, int batch, int devices)
{
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); ++i) {
        const measured_t *of = &table[i];

        if (strcmp(of->model, model) == 0) {
            double flops = model[0] == 'w' ? wide_resnet(of) : of->experts > 0 ? moe(of) : gpt(of);

            return batch * flops / (devices * of->tera * 1e12);
        }
    }
    return 0;
}
