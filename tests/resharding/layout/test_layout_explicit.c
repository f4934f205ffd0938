/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "tests/resharding/plan/random_case.h"
#include "resharding/layout/layout.h"
#include "xm_test.h"

START_TEST(explicit_cuts_are_the_callers)
{
    /* Packed Q, K, V: 32, 8 and 8 heads, and a device in between that holds none. */
    static const int64_t heads[] = {0, 32, 32, 40, 48};
    const int64_t *cuts[] = {NULL, heads}, shape[] = {6, 48};
    xm_layout_t *layout, *same;
    xm_mesh_t *mesh;
    xm_spec_t spec;
    xm_box_t box;
    char text[64];

    ck_assert_xm_ok(xm_mesh_parse("2x2", "9,5,7,3", 0, &mesh));
    ck_assert_xm_ok(xm_spec_parse("RS10", &spec));
    ck_assert_xm_ok(xm_layout_create_explicit(mesh, &spec, shape, cuts, &layout));
    ck_assert_str_eq(xm_partition_name(xm_layout_partition(layout)), "explicit");
    /* Rank 5 is at (0, 1): part 1 · 2 + 0. */
    xm_layout_tile_box(layout, xm_layout_tile_of_rank(layout, 5), &box);
    ck_assert_int_eq(box.lo[1], 32);
    ck_assert_int_eq(box.hi[1], 40);
    ck_assert_uint_eq(xm_layout_buffer_bytes(layout, 7, 4), 0);
    ck_assert_str_eq(xm_layout_format_partition(layout, text, sizeof(text)),
                     "explicit (dimension 1 at 0,32,32,40,48)");
    ck_assert_str_eq(xm_layout_format_partition(layout, text, 14), "explicit (dim");
    /* The cuts of one layout, whole dimensions included, will do for another. */
    cuts[0] = xm_layout_cuts(layout, 0);
    ck_assert_xm_ok(xm_layout_create_explicit(mesh, &spec, shape, cuts, &same));
    ck_assert_mem_eq(xm_layout_cuts(same, 1), heads, sizeof(heads));
    xm_layout_destroy(same);
    xm_layout_destroy(layout);
    xm_mesh_destroy(mesh);
}
END_TEST

/* What xm_layout_create_explicit() says of the cuts of dimension 1 (3 parts of 10 elements). */
static void refuse_cuts(const int64_t *given, const char *text)
{
    const int64_t *cuts[] = {NULL, given}, shape[] = {4, 10};
    xm_layout_t *layout = NULL;
    xm_mesh_t *mesh;
    xm_spec_t spec;

    ck_assert_xm_ok(xm_mesh_parse("3", NULL, 0, &mesh));
    ck_assert_xm_ok(xm_spec_parse("RS0", &spec));
    ck_assert_xm_fails(xm_layout_create_explicit(mesh, &spec, shape, cuts, &layout),
                       XM_ERR_INVALID_ARGUMENT, text);
    ck_assert_ptr_null(layout);
    xm_mesh_destroy(mesh);
}

START_TEST(bad_cuts_are_named)
{
    xm_layout_t *layout = layout_from_text("3", "S0", "6", XM_PARTITION_EVEN), *none = NULL;
    const int64_t whole[] = {0, 5}, *cuts[] = {whole, NULL}, shape[] = {4, 10};
    xm_spec_t spec;

    refuse_cuts((const int64_t[]){1, 2, 3, 10}, "dimension 1: the first cut point is 1, not 0");
    refuse_cuts((const int64_t[]){0, 7, 3, 10},
                "dimension 1: cut point 2 is 3, before cut point 1, which is 7");
    refuse_cuts((const int64_t[]){0, 7, 11, 10},
                "dimension 1: cut point 2 is 11, beyond its 10 elements");
    refuse_cuts((const int64_t[]){0, 7, 8, 9},
                "dimension 1: the last cut point, number 3, is 9, not its 10 elements");
    refuse_cuts(NULL, "dimension 1 has 3 parts, but no cut points are given for it");
    ck_assert_xm_ok(xm_spec_parse("RR", &spec));
    ck_assert_xm_fails(xm_layout_create_explicit(xm_layout_mesh(layout), &spec, shape, cuts, &none),
                       XM_ERR_INVALID_ARGUMENT,
                       "dimension 0: cut point 1 is 5, beyond its 4 elements");
    ck_assert_xm_fails(xm_layout_create_explicit(xm_layout_mesh(layout), xm_layout_spec(layout),
                                                 shape, NULL, &none),
                       XM_ERR_INVALID_ARGUMENT, "dimension 0 has 3 parts");
    ck_assert_xm_fails(xm_layout_create(xm_layout_mesh(layout), xm_layout_spec(layout),
                                        XM_PARTITION_EXPLICIT, shape, &none),
                       XM_ERR_INVALID_ARGUMENT, "the explicit partition needs its cut points");
    ck_assert_ptr_null(none);
    xm_layout_destroy(layout);
}
END_TEST

START_TEST(packed_elements_are_counted_in_bytes)
{
    static const int64_t points[] = {0, 4, 4, 24, 32}, bytes[] = {0, 1, 1, 6, 8};
    const int64_t *cuts[] = {NULL, points}, shape[] = {3, 32};
    xm_layout_t *layout = layout_from_text("4", "RS0", "3x32", XM_PARTITION_EVEN), *packed,
                *explicit_layout;

    ck_assert_xm_ok(xm_layout_pack_innermost(layout, 2, &packed));
    ck_assert_int_eq(xm_layout_shape(packed)[0], 3);
    ck_assert_int_eq(xm_layout_shape(packed)[1], 16);
    ck_assert_int_eq(xm_layout_partition(packed), XM_PARTITION_EVEN);
    ck_assert_uint_eq(xm_layout_buffer_bytes(packed, 3, 1), 3 * 4);
    xm_layout_destroy(packed);
    ck_assert_xm_ok(xm_layout_pack_innermost(layout, 8, &packed));
    ck_assert_uint_eq(xm_layout_buffer_bytes(packed, 3, 1), 3);
    xm_layout_destroy(packed);
    ck_assert_xm_ok(xm_layout_pack_innermost(layout, 1, &packed));
    ck_assert_ptr_eq(packed, layout);
    xm_layout_destroy(packed);
    ck_assert_xm_ok(xm_layout_create_explicit(xm_layout_mesh(layout), xm_layout_spec(layout), shape,
                                              cuts, &explicit_layout));
    ck_assert_xm_ok(xm_layout_pack_innermost(explicit_layout, 4, &packed));
    ck_assert_mem_eq(xm_layout_cuts(packed, 1), bytes, sizeof(bytes));
    ck_assert_int_eq(xm_layout_partition(packed), XM_PARTITION_EXPLICIT);
    xm_layout_destroy(packed);
    xm_layout_destroy(explicit_layout);
    xm_layout_destroy(layout);
}
END_TEST

static void refuse_packing(const char *spec, const char *shape, xm_partition_t partition,
                           int per_byte, const char *text)
{
    xm_layout_t *layout = layout_from_text("4", spec, shape, partition), *packed = NULL;

    ck_assert_xm_fails(xm_layout_pack_innermost(layout, per_byte, &packed), XM_ERR_INVALID_ARGUMENT,
                       text);
    ck_assert_ptr_null(packed);
    xm_layout_destroy(layout);
}

START_TEST(bytes_are_not_cut)
{
    refuse_packing("RRS0", "1x1x12", XM_PARTITION_EVEN, 2,
                   "dimension 2 is cut at element 3, inside a byte of 2 packed elements");
    refuse_packing("S0", "10", XM_PARTITION_BALANCED, 2,
                   "dimension 0 is cut at element 3, inside a byte of 2 packed elements");
    refuse_packing("S0R", "8x12", XM_PARTITION_EVEN, 8,
                   "dimension 1 has 12 elements, which do not fill bytes of 8 packed elements");
    refuse_packing("", "scalar", XM_PARTITION_EVEN, 2,
                   "a scalar has no dimension to pack 2 elements a byte along");
    refuse_packing("R", "12", XM_PARTITION_EVEN, 3, "a byte packs 1, 2, 4 or 8 elements, not 3");
}
END_TEST

START_TEST(packing_keeps_the_partition)
{
    random_t random = {31};
    int packed_ones = 0;

    for (int i = 0; i < 1000; ++i) {
        xm_layout_t *packed, *expected;
        random_case_t c;

        random_case_create(&random, &c);
        if (xm_layout_partition(c.src) != XM_PARTITION_EXPLICIT && xm_layout_dims(c.src) > 0 &&
            xm_layout_pack_innermost(c.src, 2, &packed) == XM_OK) {
            ck_assert_xm_ok(xm_layout_create(xm_layout_mesh(packed), xm_layout_spec(packed),
                                             xm_layout_partition(c.src), xm_layout_shape(packed),
                                             &expected));
            for (int d = 0; d < xm_layout_dims(packed); ++d) {
                ck_assert_mem_eq(xm_layout_cuts(packed, d), xm_layout_cuts(expected, d),
                                 ((size_t)xm_layout_parts(packed, d) + 1) * sizeof(int64_t));
            }
            xm_layout_destroy(expected);
            xm_layout_destroy(packed);
            ++packed_ones;
        }
        random_case_destroy(&c);
    }
    ck_assert_int_gt(packed_ones, 100);
}
END_TEST

START_TEST(a_plan_writes_explicit_cuts)
{
    static const int64_t points[] = {0, 0, 3, 4};
    static const int hosts[3] = {0, 1, 2};
    const int64_t *cuts[] = {NULL, points}, shape[] = {2, 4};
    xm_layout_t *src = layout_from_text("3", "RR", "2x4", XM_PARTITION_BALANCED), *dst;
    xm_network_params_t network_params = XM_NETWORK_PARAMS_INIT;
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
    xm_network_t *network;
    xm_plan_t *plan;
    xm_spec_t spec;
    char text[16384], squeezed[16384];
    size_t length = 0;
    FILE *file = fmemopen(text, sizeof(text), "w");

    ck_assert_ptr_nonnull(file);
    ck_assert_xm_ok(xm_spec_parse("RS0", &spec));
    ck_assert_xm_ok(xm_layout_create_explicit(xm_layout_mesh(src), &spec, shape, cuts, &dst));
    network_params.ranks = 3;
    network_params.host_of_rank = hosts;
    network_params.nic_bandwidth = 1e9;
    network_params.host_bandwidth = 1e10;
    ck_assert_xm_ok(xm_network_create(&network_params, &network));
    params.src = src;
    params.dst = dst;
    params.element_size = 4;
    params.network = network;
    ck_assert_xm_ok(xm_plan_create(&params, &plan));
    ck_assert_xm_ok(xm_plan_write_json(plan, file));
    ck_assert_int_eq(fclose(file), 0);
    for (const char *c = text; *c != '\0'; ++c) {
        if (*c != ' ' && *c != '\n') {
            squeezed[length++] = *c;
        }
    }
    squeezed[length] = '\0';
    ck_assert_ptr_nonnull(strstr(squeezed, "\"partition\":\"balanced\"}"));
    ck_assert_ptr_nonnull(
        strstr(squeezed, "\"partition\":\"explicit\",\"cuts\":[null,[0,0,3,4]]}"));
    xm_plan_destroy(plan);
    xm_network_destroy(network);
    xm_layout_destroy(dst);
    xm_layout_destroy(src);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("layout_explicit");
    TCase *tcase = tcase_create("all");

    tcase_add_test(tcase, explicit_cuts_are_the_callers);
    tcase_add_test(tcase, bad_cuts_are_named);
    tcase_add_test(tcase, packed_elements_are_counted_in_bytes);
    tcase_add_test(tcase, bytes_are_not_cut);
    tcase_add_test(tcase, packing_keeps_the_partition);
    tcase_add_test(tcase, a_plan_writes_explicit_cuts);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
