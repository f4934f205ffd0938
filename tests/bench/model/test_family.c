/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/model/family.h"

#include "bench/model/file.h"
#include "tests/bench/model/model_fixture.h"

typedef struct {
    rb_family_t family;
    double published; /* parameters as the models' cards give them, 10^9 */
    int64_t elements; /* of the list */
    int tensors;
} row_t;

/* Dense: tensors as in the checkpoints' indices. Experts: 3 + 61 x 9 + 3 x 3 + 58 x (2 + 257 x 3).

 * Qwen3: the parameters of the cards' safetensors; 2 + 36 x 11, and 3 + layers x (9 + 128 x 3). */
static const row_t rows[] = {
    {RB_FAMILY_7B, 6.74, INT64_C(6738415616), 291},
    {RB_FAMILY_32B, 32.8, INT64_C(32762123264), 707},
    {RB_FAMILY_70B, 70.6, INT64_C(70553706496), 723},
    {RB_FAMILY_256E, 671, INT64_C(671026419200), 45395},
    {RB_FAMILY_4B, 4.02, INT64_C(4022468096), 398},
    {RB_FAMILY_30B, 30.5, INT64_C(30532122624), 18867},
    {RB_FAMILY_235B, 235, INT64_C(235093634560), 36945},
};

START_TEST(families_have_the_published_sizes)
{
    const row_t *row = &rows[_i];
    rb_tensor_list_t list = {0};
    int64_t elements;
    uint64_t bytes;

    ck_assert_xm_ok(rb_model_family(row->family, &list));
    ck_assert_xm_ok(rb_tensor_list_totals(&list, &elements, &bytes));
    ck_assert_double_eq_tol((double)elements / 1e9, row->published, row->published / 100);
    ck_assert_int_eq(elements, row->elements);
    ck_assert_int_eq(list.count, row->tensors);
    rb_tensor_list_clear(&list);
}
END_TEST

START_TEST(qwen3_32b_is_the_recorded_list)
{
    rb_tensor_list_t list = {0}, recorded = {0};
    char path[MODEL_FIXTURE_PATH];

    ck_assert_xm_ok(rb_model_family(RB_FAMILY_32B, &list));
    ck_assert_xm_ok(rb_model_file_read(model_fixture_path(QWEN_MODEL, path), &recorded));
    ck_assert_int_eq(list.count, recorded.count);
    ck_assert_int_eq(list.head_size, recorded.head_size);
    for (int i = 0; i < list.count; ++i) {
        const rb_tensor_t *tensor = &list.tensors[i], *other = &recorded.tensors[i];

        ck_assert_str_eq(tensor->name, other->name);
        ck_assert_int_eq(tensor->bits, other->bits);
        ck_assert_int_eq(tensor->dims, other->dims);
        ck_assert_mem_eq(tensor->shape, other->shape, sizeof(tensor->shape));
    }
    rb_tensor_list_clear(&list);
    rb_tensor_list_clear(&recorded);
}
END_TEST

START_TEST(experts_have_numbers)
{
    rb_tensor_list_t list = {0};
    int experts = 0;

    ck_assert_xm_ok(rb_model_family(RB_FAMILY_256E, &list));
    ck_assert_int_eq(rb_tensor_list_layers(&list), 61);
    ck_assert_int_eq(rb_tensor_list_experts(&list), 256);
    for (int i = 0; i < list.count; ++i) {
        experts += rb_tensor_expert(list.tensors[i].name) >= 0;
    }
    ck_assert_int_eq(experts, 58 * 256 * 3);
    ck_assert_int_eq(rb_tensor_expert("model.layers.3.mlp.shared_experts.gate_proj.weight"), -1);
    ck_assert_int_eq(rb_tensor_layer("transformer.h.17.ln_1.weight"), 17);
    ck_assert_int_eq(rb_tensor_layer("model.norm.weight"), -1);
    ck_assert_int_eq(rb_tensor_layer("my_layers.4.weight"), -1);
    rb_tensor_list_clear(&list);
}
END_TEST

START_TEST(scale_keeps_the_structure)
{
    rb_tensor_list_t list = {0};

    ck_assert_xm_ok(rb_model_family(RB_FAMILY_70B, &list));
    ck_assert_xm_ok(rb_tensor_list_scale(&list, 64, 8));
    ck_assert_int_eq(list.count, 8 * 9 + 3);
    ck_assert_int_eq(list.head_size, 2);
    ck_assert_int_eq(list.tensors[0].shape[0], 128256 / 64);
    ck_assert_int_eq(list.tensors[0].shape[1], 128);
    ck_assert_xm_fails(rb_tensor_list_scale(&list, 3, 8), XM_ERR_INVALID_ARGUMENT,
                       "scale 3 does not divide the head size 2");
    rb_tensor_list_clear(&list);
}
END_TEST

START_TEST(types_have_sizes)
{
    static const struct {
        const char *name;
        int bits;
    } types[] = {{"BF16", 16},    {"F16", 16},         {"F32", 32},
                 {"F8_E4M3", 8},  {"F8_E5M2", 8},      {"I8", 8},
                 {"U8", 8},       {"I4", 4},           {"F64", 64},
                 {"BOOL", 8},     {"I64", 64},         {"torch.bfloat16", 16},
                 {"bf16", 16},    {"fp8_e5m2", 8},     {"U64", 64},
                 {"float32", 32}, {"C128", 128},       {"float8_e4m3fn", 8},
                 {"int4", 4},     {"complex128", 128}, {"float64", 64},
                 {"int8", 8},     {"C64", 64},         {"uint16", 16},
                 {"I16", 16},     {"uint64", 64}};
    int bits;

    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); ++i) {
        ck_assert_xm_ok(rb_model_dtype_bits(types[i].name, &bits));
        ck_assert_msg(bits == types[i].bits, "%s has %d bits", types[i].name, bits);
    }
    ck_assert_xm_fails(rb_model_dtype_bits("BF61", &bits), XM_ERR_INVALID_ARGUMENT, "bf16");
}
END_TEST

typedef struct {
    const char *text, *sentence;
} bad_t;

static const bad_t bad_files[] = {
    {"[1]", "the document is an array; it must be an object"},
    {"{}", "the file names no tensor"},
    {"{\"_comment\": \"nothing\"}", "the file names no tensor"},
    {"{\"a\": {\"shape\": [1]}, \"a\": {\"shape\": [1]}}", "duplicate object key"},
    {"{\"a\": [2, 3]}", "tensor 'a': the entry is an array"},
    {"{\"a\": {}}", "tensor 'a': 'shape' is nothing"},
    {"{\"a\": {\"shape\": 5}}", "'shape' is an integer; it must be an array"},
    {"{\"a\": {\"shape\": [2, 1.5]}}", "'shape'[1] is a number; it must be an integer"},
    {"{\"a\": {\"shape\": [2, -1]}}", "'shape'[1] is -1; it cannot be negative"},
    {"{\"a\": {\"shape\": [1,1,1,1,1,1,1,1,1,1,1,1,1]}}", "13 dimensions; the most is 12"},
    {"{\"a\": {\"shape\": [4294967296, 4294967296]}}", "more than 2^62 elements"},
    {"{\"a\": {\"shape\": [2], \"dtype\": \"BF17\"}}", "did you mean bf16"},
    {"{\"a\": {\"shape\": [2], \"dtype\": 16}}", "'dtype' is an integer; it must be a string"},
    {"{\"a\": {\"shpae\": [2]}}", "did you mean shape"},
    {"{\"a\": {\"shape\": [2]}", "line 1"},
};

START_TEST(bad_files_are_refused)
{
    rb_tensor_list_t list = {0};
    char path[MODEL_FIXTURE_PATH];

    (void)model_fixture_write(bad_files[_i].text, path);
    ck_assert_int_lt(rb_model_file_read(path, &list), 0);
    ck_assert_msg(strstr(xm_last_error(), bad_files[_i].sentence) != NULL, "'%s' lacks '%s'",
                  xm_last_error(), bad_files[_i].sentence);
    ck_assert_msg(strncmp(xm_last_error(), path, strlen(path)) == 0, "'%s' lacks the path",
                  xm_last_error());
    ck_assert_ptr_null(list.tensors);
    (void)unlink(path);
}
END_TEST

START_TEST(files_may_have_any_names_and_types)
{
    rb_tensor_list_t list = {0};
    char path[MODEL_FIXTURE_PATH];

    (void)model_fixture_write(
        "{\"__metadata__\": {\"format\": \"pt\"}, \"z\": {\"shape\": [], \"dtype\": \"F64\"},"
        " \"b.q\": {\"dtype\": \"I4\", \"shape\": [7, 0, 3], \"data_offsets\": [0, 0]},"
        " \"a\": {\"shape\": [5], \"_note\": 1}}",
        path);
    ck_assert_xm_ok(rb_model_file_read(path, &list));
    ck_assert_int_eq(list.count, 3);
    ck_assert_str_eq(list.tensors[0].name, "z");
    ck_assert_int_eq(list.tensors[0].dims, 0);
    ck_assert_int_eq(rb_tensor_elements(&list.tensors[0]), 1);
    ck_assert_int_eq(list.tensors[1].bits, 4);
    ck_assert_int_eq(list.tensors[1].dims, 3);
    ck_assert_int_eq(list.tensors[2].bits, 16);
    ck_assert_int_eq(list.head_size, 0);
    rb_tensor_list_clear(&list);
    (void)unlink(path);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("model_family");
    TCase *tests = tcase_create("model_family");

    tcase_add_loop_test(tests, families_have_the_published_sizes, 0, RB_FAMILY_COUNT);
    tcase_add_test(tests, qwen3_32b_is_the_recorded_list);
    tcase_add_test(tests, experts_have_numbers);
    tcase_add_test(tests, scale_keeps_the_structure);
    tcase_add_test(tests, types_have_sizes);
    tcase_add_loop_test(tests, bad_files_are_refused, 0,
                        (int)(sizeof(bad_files) / sizeof(bad_files[0])));
    tcase_add_test(tests, files_may_have_any_names_and_types);
    suite_add_tcase(suite, tests);
    return xm_test_run(suite);
}
