/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cases that move whole models. A case is made without reading any file, so that suites
 * can be listed quickly, and the model is loaded when the case is selected.
 */
#include <stdio.h>
#include <string.h>

#include "bench/cases/case.h"

enum { DEVICES_PER_HOST = 8 };

/*
 * One axis over the ranks 0, 1, …: the meshes of the single tensors are the model's
 * business. The text names the axes that are larger than 1, as people write parallel
 * configurations.
 */
static void fill_side(const rb_parallel_t *parallel, int ranks, rb_side_t *side)
{
    const struct {
        const char *name;
        int size;
    } axes[] = {{"tp", parallel->tp},     {"pp", parallel->pp}, {"dp", parallel->dp},
                {"fsdp", parallel->fsdp}, {"ep", parallel->ep}, {"cp", parallel->cp}};
    size_t used = 0;

    side->axes = 1;
    side->sizes[0] = ranks;
    (void)snprintf(side->text, sizeof(side->text), "%d", ranks);
    for (size_t i = 0; i < sizeof(axes) / sizeof(axes[0]) && used < sizeof(side->text); ++i) {
        if (axes[i].size > 1) {
            used += (size_t)snprintf(side->text + used, sizeof(side->text) - used, "%s%d",
                                     axes[i].name, axes[i].size);
        }
    }
}

/* One type for all, or "mixed". */
static void name_type(const rb_model_t *model, char *dtype)
{
    int bits = model->count > 0 ? model->tensors[0].element_bits : 0;

    (void)snprintf(dtype, RB_DTYPE_TEXT, "%d-bit", bits);
    for (int i = 0; i < model->count; ++i) {
        if (model->tensors[i].element_bits != bits) {
            (void)snprintf(dtype, RB_DTYPE_TEXT, "mixed");
            return;
        }
    }
}

/* The last part of a path up to its first dot, which is the name without ".model.json". */
static const char *file_name(const char *path, int *length)
{
    const char *slash = strrchr(path, '/'), *start = slash != NULL ? slash + 1 : path;

    *length = (int)strcspn(start, ".");
    return start;
}

void rb_case_of_model(const rb_model_request_t *request, rb_case_t *result)
{
    const char *name = request->name;
    int length = name != NULL ? (int)strlen(name) : 0;

    *result = (rb_case_t){.strategy = RB_ANY,
                          .scheduler = RB_ANY,
                          .ranks_per_host = DEVICES_PER_HOST,
                          .request = *request};
    if (name == NULL) {
        name = file_name(request->model_config, &length);
    }
    (void)snprintf(result->name, sizeof(result->name), "%.*s", length, name);
}

bool rb_case_is_model(const rb_case_t *one)
{
    return one->request.name != NULL || one->request.model_config != NULL;
}

xm_status_t rb_case_load_model(rb_case_t *one)
{
    rb_model_t *model;

    XM_TRY(rb_model_load(&one->request, &model));
    name_type(model, one->dtype);
    fill_side(&model->train, model->src_ranks, &one->src);
    fill_side(&model->generation, model->dst_ranks, &one->dst);
    one->model = model;
    return XM_OK;
}
