/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/model.h"

#include "tests/bench/model/model_fixture.h"

/* Tiles partition the tensor, and tiles x replicas are the mesh, each rank of which is on the side.
 */
static void check_layout(const rb_model_tensor_t *tensor, const xm_layout_t *layout, int first,
                         int ranks)
{
    int64_t volume = 1, covered = 0, held = 0;
    const int64_t *shape = xm_layout_shape(layout);

    for (int d = 0; d < xm_layout_dims(layout); ++d) {
        const int64_t *cuts = xm_layout_cuts(layout, d);
        int parts = xm_layout_parts(layout, d);

        volume *= shape[d];
        ck_assert_int_eq(cuts[0], 0);
        ck_assert_int_eq(cuts[parts], shape[d]);
        for (int p = 0; p < parts; ++p) {
            ck_assert_int_le(cuts[p], cuts[p + 1]);
        }
    }
    for (int t = 0; t < xm_layout_tiles(layout); ++t) {
        xm_box_t box;
        int count;
        const int *replicas = xm_layout_replicas(layout, t, &count);

        xm_layout_tile_box(layout, t, &box);
        covered += xm_box_volume(&box);
        held += count;
        for (int r = 0; r < count; ++r) {
            ck_assert_msg(replicas[r] >= first && replicas[r] < first + ranks,
                          "%s: rank %d is not on its side", tensor->name, replicas[r]);
        }
    }
    ck_assert_msg(covered == volume, "%s: the tiles do not fill the tensor", tensor->name);
    ck_assert_int_eq(held, xm_mesh_size(xm_layout_mesh(layout)));
}

/* Equal layouts are one object, and the matrices of one expert follow those of another: whether one
 * of the three tensors before had the same. */
static bool is_checked(const rb_model_t *model, int index, int side)
{
    for (int before = index - 1; before >= 0 && before >= index - 3; --before) {
        if (side == 0 ? model->tensors[before].src == model->tensors[index].src
                      : model->tensors[before].dst == model->tensors[index].dst) {
            return true;
        }
    }
    return false;
}

/* Every tensor lies on both sides, and every rank of both holds something. */
static void check_model(const rb_model_t *model)
{
    int ranks = model->src_ranks + model->dst_ranks;
    bool *holds = calloc((size_t)ranks, sizeof(*holds));
    int64_t elements = 0;

    ck_assert_ptr_nonnull(holds);
    for (int i = 0; i < model->count; ++i) {
        const rb_model_tensor_t *tensor = &model->tensors[i];
        const xm_layout_t *sides[] = {tensor->src, tensor->dst};
        int64_t volume = 1;

        for (int s = 0; s < 2; ++s) {
            const xm_mesh_t *mesh = xm_layout_mesh(sides[s]);

            if (is_checked(model, i, s)) {
                continue;
            }
            check_layout(tensor, sides[s], s == 0 ? 0 : model->src_ranks,
                         s == 0 ? model->src_ranks : model->dst_ranks);
            for (int p = 0; p < xm_mesh_size(mesh); ++p) {
                holds[xm_mesh_rank(mesh, p)] = true;
            }
        }
        ck_assert_int_eq(xm_layout_dims(tensor->src), xm_layout_dims(tensor->dst));
        for (int d = 0; d < xm_layout_dims(tensor->src); ++d) {
            ck_assert_int_eq(xm_layout_shape(tensor->src)[d], xm_layout_shape(tensor->dst)[d]);
            volume *= xm_layout_shape(tensor->src)[d];
        }
        elements += volume;
    }
    ck_assert_int_eq(elements, model->elements);
    for (int r = 0; r < ranks; ++r) {
        ck_assert_msg(holds[r], "rank %d holds nothing", r);
    }
    free(holds);
}

static const rb_model_tensor_t *find(const rb_model_t *model, const char *name)
{
    for (int i = 0; i < model->count; ++i) {
        if (strcmp(model->tensors[i].name, name) == 0) {
            return &model->tensors[i];
        }
    }
    ck_abort_msg("no tensor %s", name);
    return NULL;
}

static int find_group(const rb_model_t *model, const char *name)
{
    for (int g = 0; g < model->group_count; ++g) {
        if (strcmp(model->groups[g].name, name) == 0) {
            return g;
        }
    }
    ck_abort_msg("no packed parameter %s", name);
    return -1;
}

/* Rows of dimension 0 that a rank holds. */
static void check_rows(const xm_layout_t *layout, int rank, int64_t lo, int64_t hi)
{
    xm_box_t box;

    ck_assert_int_ge(xm_layout_tile_of_rank(layout, rank), 0);
    xm_layout_tile_box(layout, xm_layout_tile_of_rank(layout, rank), &box);
    ck_assert_msg(box.lo[0] == lo && box.hi[0] == hi, "rank %d holds rows %lld to %lld", rank,
                  (long long)box.lo[0], (long long)box.hi[0]);
}

static uint64_t rank_bytes(const rb_model_t *model, int rank)
{
    uint64_t bytes = 0;

    for (int i = 0; i < model->count; ++i) {
        bytes += rb_model_tile_bytes(model->tensors[i].src, rank, model->tensors[i].element_bits) +
                 rb_model_tile_bytes(model->tensors[i].dst, rank, model->tensors[i].element_bits);
    }
    return bytes;
}

START_TEST(built_in_cases_cover_tensors_and_ranks)
{
    rb_model_request_t request = {.name = rb_model_case_name(_i), .scale = 64, .packed = true};
    rb_model_t *model;

    ck_assert_xm_ok(rb_model_load(&request, &model));
    check_model(model);
    for (int g = 0; g < model->group_count; ++g) {
        ck_assert_int_ge(model->groups[g].parts, 2);
    }
    rb_model_destroy(model);
}
END_TEST

/* Matrices are split four ways, vectors are whole: a rank's bytes follow from the list alone. */
START_TEST(recorded_h100_configuration)
{
    char tensors[MODEL_FIXTURE_PATH], meshes[MODEL_FIXTURE_PATH];
    rb_model_request_t request = {.model_config = model_fixture_path(QWEN_MODEL, tensors),
                                  .system_config = model_fixture_path(QWEN_H100, meshes)};
    uint64_t vectors = 2 * (64 * (2 * 5120 + 2 * 128) + 5120);
    uint64_t layer = 2 * ((2 * 8192 + 2 * 1024 + 3 * 25600) * UINT64_C(5120) / 4 + 2 * 5120 + 256);
    uint64_t vocabulary = 2 * UINT64_C(151936) * 5120 / 4;
    const rb_model_tensor_t *tensor;
    rb_model_t *model;

    ck_assert_xm_ok(rb_model_load(&request, &model));
    check_model(model);
    ck_assert_int_eq(model->count, 707);
    ck_assert_uint_eq(model->bytes, UINT64_C(2) * 32762123264u);
    for (int r = 32; r < 64; ++r) {
        ck_assert_uint_eq(rank_bytes(model, r), (model->bytes - vectors) / 4 + vectors);
    }
    ck_assert_uint_eq(rank_bytes(model, 7), 16 * layer + vocabulary);
    ck_assert_uint_eq(rank_bytes(model, 8), 16 * layer);
    ck_assert_uint_eq(rank_bytes(model, 31), 16 * layer + vocabulary + 2 * 5120);

    /* tp innermost: neighbours hold different rows; layer 16 is the second stage's first. */
    tensor = find(model, "model.layers.16.self_attn.q_proj.weight");
    check_rows(tensor->src, 8, 0, 2048);
    check_rows(tensor->src, 9, 2048, 4096);
    check_rows(tensor->src, 15, 6144, 8192);
    ck_assert_int_eq(xm_layout_tile_of_rank(tensor->src, 7), -1);
    check_rows(tensor->dst, 33, 2048, 4096);
    ck_assert_int_eq(xm_mesh_rank(xm_layout_mesh(find(model, "lm_head.weight")->src), 0), 24);
    ck_assert_int_eq(xm_mesh_rank(xm_layout_mesh(find(model, "model.norm.weight")->src), 0), 24);
    rb_model_destroy(model);
}
END_TEST

START_TEST(recorded_gb200_configuration)
{
    char tensors[MODEL_FIXTURE_PATH], meshes[MODEL_FIXTURE_PATH];
    rb_model_request_t request = {.model_config = model_fixture_path(QWEN_MODEL, tensors),
                                  .system_config = model_fixture_path(QWEN_GB200, meshes)};
    rb_model_t *model;

    ck_assert_xm_ok(rb_model_load(&request, &model));
    check_model(model);
    ck_assert_int_eq(model->src_ranks, 16);
    for (int r = 16; r < 32; ++r) {
        ck_assert_uint_eq(rank_bytes(model, r), model->bytes);
    }
    rb_model_destroy(model);
}
END_TEST

/* 8 key heads for 16 tp ranks: pairs of neighbours hold the same head; 64 query heads are dealt. */
START_TEST(few_heads_are_replicated)
{
    rb_parallel_t train = {.num_gpus = 8, .tp = 8};
    rb_parallel_t generation = {.num_gpus = 32, .tp = 16, .dp = 2};
    rb_model_request_t request = {.name = "dense-70b", .train = &train, .generation = &generation};
    const rb_model_tensor_t *tensor;
    rb_model_t *model;

    ck_assert_xm_ok(rb_model_load(&request, &model));
    check_model(model);
    tensor = find(model, "model.layers.79.self_attn.k_proj.weight");
    for (int r = 0; r < 32; ++r) {
        check_rows(tensor->dst, 8 + r, r % 16 / 2 * 128, r % 16 / 2 * 128 + 128);
    }
    tensor = find(model, "model.layers.79.self_attn.q_proj.weight");
    check_rows(tensor->dst, 8 + 17, 512, 1024);
    rb_model_destroy(model);
}
END_TEST

static rb_model_t *load_small(const char *tensors, const char *table, rb_parallel_t train,
                              rb_parallel_t generation)
{
    char model_path[MODEL_FIXTURE_PATH], table_path[MODEL_FIXTURE_PATH];
    rb_model_request_t request = {.model_config = model_fixture_write(tensors, model_path),
                                  .shard_table = model_fixture_write(table, table_path),
                                  .train = &train,
                                  .generation = &generation,
                                  .packed = true};
    rb_model_t *model;

    ck_assert_xm_ok(rb_model_load(&request, &model));
    (void)unlink(model_path);
    (void)unlink(table_path);
    check_model(model);
    return model;
}

START_TEST(heads_that_do_not_divide_stay_whole)
{
    static const int64_t heads[] = {0, 4, 8, 12, 16, 19, 22, 25, 28};
    rb_model_t *model = load_small("{\"layers.0.q_proj.weight\": {\"shape\": [3584, 64]}}",
                                   "{\"head_size\": 128}", (rb_parallel_t){.num_gpus = 2, .dp = 2},
                                   (rb_parallel_t){.num_gpus = 16, .tp = 8, .fsdp = 2});
    const xm_layout_t *layout = model->tensors[0].dst;

    /* fsdp 2 halves what each of the 8 tp ranks has; its axis is outside. */
    for (int r = 0; r < 16; ++r) {
        int64_t lo = heads[r % 8] * 128, hi = heads[r % 8 + 1] * 128, half = (hi - lo) / 2;

        check_rows(layout, 2 + r, lo + r / 8 * half, lo + r / 8 * half + half);
    }
    rb_model_destroy(model);
}
END_TEST

START_TEST(fsdp_splits_rows_within_tp)
{
    rb_model_t *model = load_small("{\"a.gate_proj.weight\": {\"shape\": [64, 6]}, "
                                   "\"a.down_proj.weight\": {\"shape\": [6, 64]},"
                                   " \"a.norm.weight\": {\"shape\": [6]}, \"s\": {\"shape\": []}}",
                                   "{\"rules\": [{\"name\": \"s\", \"tp\": null}]}",
                                   (rb_parallel_t){.num_gpus = 8, .tp = 2, .fsdp = 4},
                                   (rb_parallel_t){.num_gpus = 1});
    xm_box_t box;

    for (int r = 0; r < 8; ++r) {
        int64_t lo = r % 2 * 32 + r / 2 * 8;

        check_rows(model->tensors[0].src, r, lo, lo + 8);
    }
    /* 6 rows in torch's chunks of 2 over fsdp 4; columns over tp. */
    check_rows(model->tensors[1].src, 5, 4, 6);
    check_rows(model->tensors[1].src, 7, 6, 6);
    xm_layout_tile_box(model->tensors[1].src, xm_layout_tile_of_rank(model->tensors[1].src, 5),
                       &box);
    ck_assert_int_eq(box.lo[1], 32);
    check_rows(model->tensors[2].src, 3, 2, 4);
    ck_assert_int_eq(xm_layout_tiles(model->tensors[3].src), 1);
    rb_model_destroy(model);
}
END_TEST

/* Training stage of 32 ranks: 2 replicas x ep 8 x tp 2; serving: 64 ep ranks of 4 experts. */
START_TEST(experts_lie_on_their_ep_ranks)
{
    static const int first_group[] = {0, 1, 16, 17};
    rb_model_request_t request = {.name = "moe-256e", .scale = 64};
    const rb_model_tensor_t *tensor;
    const xm_mesh_t *mesh;
    rb_model_t *model;

    ck_assert_xm_ok(rb_model_load(&request, &model));
    tensor = find(model, "model.layers.3.mlp.experts.31.up_proj.weight");
    mesh = xm_layout_mesh(tensor->src);
    ck_assert_int_eq(xm_mesh_size(mesh), 4);
    for (int p = 0; p < 4; ++p) {
        ck_assert_int_eq(xm_mesh_rank(mesh, p), 96 + first_group[p]);
    }
    check_rows(tensor->src, 97, 16, 32);
    check_rows(tensor->src, 112, 0, 16);
    ck_assert_int_eq(xm_mesh_size(xm_layout_mesh(tensor->dst)), 1);
    ck_assert_int_eq(xm_mesh_rank(xm_layout_mesh(tensor->dst), 0), 128 + 7);
    tensor = find(model, "model.layers.3.mlp.experts.32.up_proj.weight");
    ck_assert_int_eq(xm_mesh_rank(xm_layout_mesh(tensor->src), 0), 98);
    ck_assert_int_eq(
        xm_mesh_size(xm_layout_mesh(find(model, "model.layers.3.mlp.gate.weight")->dst)), 64);
    ck_assert_int_eq(find(model, "model.layers.3.mlp.gate.e_score_correction_bias")->element_bits,
                     32);
    rb_model_destroy(model);
}
END_TEST

START_TEST(stacked_experts_are_split_over_ep)
{
    rb_model_t *model = load_small(
        "{\"layers.0.mlp.experts.gate_proj.weight\": {\"shape\": [8, 6, 4]}}", "{}",
        (rb_parallel_t){.num_gpus = 8, .dp = 8, .ep = 4}, (rb_parallel_t){.num_gpus = 2, .tp = 2});
    xm_box_t box;

    /* etp 1: ranks 0 and 4 hold experts 0 and 1. */
    check_rows(model->tensors[0].src, 4, 0, 2);
    check_rows(model->tensors[0].src, 7, 6, 8);
    check_rows(model->tensors[0].dst, 9, 0, 8);
    xm_layout_tile_box(model->tensors[0].dst, 1, &box);
    ck_assert_int_eq(box.lo[1], 3);
    rb_model_destroy(model);
}
END_TEST

/* Per rank [q; k; v] rows of 80 elements of 2 bytes: 8192, 1024 and 1024 rows / 64 / 4. */
START_TEST(packed_parameters_have_offsets)
{
    rb_model_request_t request = {.name = "dense-32b", .scale = 64, .packed = true};
    rb_model_t *model;
    const rb_model_group_t *group;
    int g;

    ck_assert_xm_ok(rb_model_load(&request, &model));
    ck_assert_int_eq(model->group_count, 2 * 4);
    g = find_group(model, "model.layers.2.self_attn.qkv_proj.weight");
    group = &model->groups[g];
    ck_assert_int_eq(group->parts, 3);
    ck_assert_str_eq(model->tensors[group->tensors[0]].name,
                     "model.layers.2.self_attn.q_proj.weight");
    ck_assert_str_eq(model->tensors[group->tensors[2]].name,
                     "model.layers.2.self_attn.v_proj.weight");
    for (int r = 32; r < 64; ++r) {
        ck_assert_uint_eq(rb_model_packed_offset(model, group->tensors[0], r), 0);
        ck_assert_uint_eq(rb_model_packed_offset(model, group->tensors[1], r), 32 * 80 * 2);
        ck_assert_uint_eq(rb_model_packed_offset(model, group->tensors[2], r), 36 * 80 * 2);
        ck_assert_uint_eq(rb_model_group_bytes(model, g, r), 40 * 80 * 2);
    }
    g = find_group(model, "model.layers.2.mlp.gate_up_proj.weight");
    ck_assert_uint_eq(rb_model_packed_offset(model, model->groups[g].tensors[1], 40), 100 * 80 * 2);
    ck_assert_uint_eq(rb_model_packed_offset(model, 0, 40), 0);
    ck_assert_int_eq(model->tensors[0].group, -1);
    rb_model_destroy(model);

    request.packed = false;
    ck_assert_xm_ok(rb_model_load(&request, &model));
    ck_assert_int_eq(model->group_count, 0);
    rb_model_destroy(model);
}
END_TEST

START_TEST(packed_offsets_follow_uneven_parts)
{
    rb_model_t *model =
        load_small("{\"a.gate_proj.weight\": {\"shape\": [5, 4], \"dtype\": \"I4\"},"
                   " \"a.up_proj.weight\": {\"shape\": [5, 4], \"dtype\": \"I4\"}}",
                   "{}", (rb_parallel_t){.num_gpus = 1}, (rb_parallel_t){.num_gpus = 3, .tp = 3});
    static const uint64_t rows[] = {2, 2, 1};

    for (int r = 0; r < 3; ++r) {
        ck_assert_uint_eq(rb_model_packed_offset(model, 1, 1 + r), rows[r] * 2);
        ck_assert_uint_eq(rb_model_group_bytes(model, 0, 1 + r), rows[r] * 4);
    }
    rb_model_destroy(model);
}
END_TEST

/* 70B between 4096 and 4096 ranks: as many layouts as stages and shapes ask for, not as tensors. */
START_TEST(large_meshes_share_layouts)
{
    rb_parallel_t train = {.num_gpus = 4096, .tp = 8, .pp = 8, .dp = 64};
    rb_parallel_t generation = {.num_gpus = 4096, .tp = 8, .dp = 512};
    rb_model_request_t request = {
        .name = "dense-70b", .train = &train, .generation = &generation, .packed = true};
    rb_model_t *model;

    ck_assert_xm_ok(rb_model_load(&request, &model));
    ck_assert_int_eq(model->count, 723);
    ck_assert_ptr_eq(find(model, "model.layers.0.self_attn.k_proj.weight")->src,
                     find(model, "model.layers.9.self_attn.v_proj.weight")->src);
    ck_assert_ptr_ne(find(model, "model.layers.0.self_attn.k_proj.weight")->src,
                     find(model, "model.layers.10.self_attn.v_proj.weight")->src);
    rb_model_destroy(model);
}
END_TEST

typedef struct {
    const char *tensors, *table;
    rb_parallel_t train;
    const char *sentence;
} bad_t;

static const bad_t bad_models[] = {
    {"{\"a.qkv.weight\": {\"shape\": [4, 4]}}",
     "{}",
     {.num_gpus = 1},
     "no entry for tensor 'a.qkv.weight'"},
    {"{\"a.k_proj.weight\": {\"shape\": [24, 4]}}",
     "{\"head_size\": 8}",
     {.num_gpus = 4, .tp = 4},
     "train: tensor 'a.k_proj.weight' has 3 heads, which tp 4 ranks can neither"},
    {"{\"a.k_proj.weight\": {\"shape\": [20, 4]}}",
     "{\"head_size\": 8}",
     {.num_gpus = 1},
     "has 20 rows, which do not make whole heads of 8 rows"},
    {"{\"a.experts.2.up_proj.weight\": {\"shape\": [4, 4]}}",
     "{}",
     {.num_gpus = 2, .dp = 2, .ep = 2},
     "the model has 3 experts, which ep 2 does not divide"},
    {"{\"a.gate_proj.weight\": {\"shape\": [4, 4]},"
     " \"a.up_proj.weight\": {\"shape\": [4, 4], \"dtype\": \"F32\"}}",
     "{}",
     {.num_gpus = 1},
     "elements of 16 bits and 'a.up_proj.weight' of 32; they cannot be packed"},
    {"{\"a.gate_proj.weight\": {\"shape\": [4, 4]}, \"a.g.weight\": {\"shape\": [4, 4]}}",
     "{\"rules\": [{\"name\": \"a.g.weight\", \"tp\": 0, \"pack\": \"gate_up_proj\", \"part\": "
     "0}]}",
     {.num_gpus = 1},
     "are both part 0 of 'a.gate_up_proj.weight'"},
    {"{\"w\": {\"shape\": [4, 4]}}",
     "{\"rules\": [{\"name\": \"w\", \"tp\": 0, \"pack\": \"p\", \"part\": 0}]}",
     {.num_gpus = 1},
     "names no module and parameter"},
    {"{\"a.gate_proj.weight\": {\"shape\": [3, 3], \"dtype\": \"I4\"}}",
     "{}",
     {.num_gpus = 1},
     "a tile of 9 elements of 4 bits is no whole number of bytes"},
};

START_TEST(bad_models_are_refused)
{
    char model_path[MODEL_FIXTURE_PATH], table_path[MODEL_FIXTURE_PATH];
    rb_parallel_t generation = {.num_gpus = 1};
    rb_model_request_t request = {
        .model_config = model_fixture_write(bad_models[_i].tensors, model_path),
        .shard_table = model_fixture_write(bad_models[_i].table, table_path),
        .train = &bad_models[_i].train,
        .generation = &generation,
        .packed = true};
    rb_model_t *model = NULL;

    ck_assert(xm_status_is_caller(rb_model_load(&request, &model)));
    ck_assert_msg(strstr(xm_last_error(), bad_models[_i].sentence) != NULL, "'%s' lacks '%s'",
                  xm_last_error(), bad_models[_i].sentence);
    ck_assert_ptr_null(model);
    (void)unlink(model_path);
    (void)unlink(table_path);
}
END_TEST

START_TEST(bad_requests_are_refused)
{
    rb_parallel_t one = {.num_gpus = 1}, none = {0};
    rb_model_t *model;

    ck_assert_xm_fails(rb_model_load(&(rb_model_request_t){.name = "dense-33b"}, &model),
                       XM_ERR_INVALID_ARGUMENT, "did you mean dense-32b");
    ck_assert_xm_fails(rb_model_load(&(rb_model_request_t){0}, &model), XM_ERR_INVALID_ARGUMENT,
                       "neither is given");
    ck_assert_xm_fails(rb_model_load(&(rb_model_request_t){.model_config = "x.json"}, &model),
                       XM_ERR_INVALID_ARGUMENT, "needs --system-config");
    ck_assert_xm_fails(
        rb_model_load(&(rb_model_request_t){.name = "dense-7b", .scale = -2}, &model),
        XM_ERR_INVALID_ARGUMENT, "scale is -2");
    ck_assert_xm_fails(
        rb_model_load(&(rb_model_request_t){.name = "dense-7b", .train = &one}, &model),
        XM_ERR_INVALID_ARGUMENT, "training and generation");
    ck_assert_xm_fails(
        rb_model_load(&(rb_model_request_t){.name = "dense-7b", .train = &none, .generation = &one},
                      &model),
        XM_ERR_INVALID_ARGUMENT, "train: num_gpus is 0");
    ck_assert_xm_fails(rb_model_load(&(rb_model_request_t){.name = "dense-7b", .scale = 3}, &model),
                       XM_ERR_INVALID_ARGUMENT, "does not divide the head size 128");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("model");
    TCase *tests = tcase_create("model");

    tcase_set_timeout(tests, 0);
    tcase_add_loop_test(tests, built_in_cases_cover_tensors_and_ranks, 0, rb_model_cases());
    tcase_add_test(tests, recorded_h100_configuration);
    tcase_add_test(tests, recorded_gb200_configuration);
    tcase_add_test(tests, few_heads_are_replicated);
    tcase_add_test(tests, heads_that_do_not_divide_stay_whole);
    tcase_add_test(tests, fsdp_splits_rows_within_tp);
    tcase_add_test(tests, experts_lie_on_their_ep_ranks);
    tcase_add_test(tests, stacked_experts_are_split_over_ep);
    tcase_add_test(tests, packed_parameters_have_offsets);
    tcase_add_test(tests, packed_offsets_follow_uneven_parts);
    tcase_add_test(tests, large_meshes_share_layouts);
    tcase_add_loop_test(tests, bad_models_are_refused, 0,
                        (int)(sizeof(bad_models) / sizeof(bad_models[0])));
    tcase_add_test(tests, bad_requests_are_refused);
    suite_add_tcase(suite, tests);
    return xm_test_run(suite);
}
