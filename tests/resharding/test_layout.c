#include "resharding/layout.h"

#include "random_case.h"
#include "xm_test.h"

static xm_layout_t *make(const char *mesh_text, const char *spec_text, const char *shape_text,
                         xm_partition_t partition)
{
    xm_mesh_t *mesh;
    xm_layout_t *layout;
    xm_spec_t spec;
    int64_t shape[XM_MAX_DIMS];
    int dims;

    ck_assert_xm_ok(xm_mesh_parse(mesh_text, NULL, 0, &mesh));
    ck_assert_xm_ok(xm_spec_parse(spec_text, &spec));
    ck_assert_xm_ok(xm_shape_parse(shape_text, &dims, shape));
    ck_assert_int_eq(dims, spec.dims);
    ck_assert_xm_ok(xm_layout_create(mesh, &spec, partition, shape, &layout));
    xm_mesh_destroy(mesh);
    return layout;
}

START_TEST(the_order_of_axes_decides_who_holds_what)
{
    xm_layout_t *s01 = make("2x4", "S01", "8", XM_PARTITION_EVEN);
    xm_layout_t *s10 = make("2x4", "S10", "8", XM_PARTITION_EVEN);
    xm_box_t box;

    /* Position 1 is coordinate (0, 1): part 1 of S01, part 1 · 2 + 0 = 2 of S10. */
    xm_layout_tile_box(s01, xm_layout_tile_at(s01, 1), &box);
    ck_assert_int_eq(box.lo[0], 1);
    xm_layout_tile_box(s10, xm_layout_tile_at(s10, 1), &box);
    ck_assert_int_eq(box.lo[0], 2);
    xm_layout_destroy(s01);
    xm_layout_destroy(s10);
}
END_TEST

START_TEST(replicas_are_listed_in_mesh_order)
{
    xm_layout_t *layout = make("2x3", "RS0", "5x4", XM_PARTITION_EVEN);
    int count;
    const int *ranks = xm_layout_replicas(layout, 1, &count);

    ck_assert_int_eq(xm_layout_tiles(layout), 2);
    ck_assert_int_eq(count, 3);
    ck_assert_int_eq(ranks[0], 3);
    ck_assert_int_eq(ranks[2], 5);
    ck_assert_uint_eq(xm_layout_buffer_bytes(layout, 3, 4), 5 * 2 * 4);
    ck_assert_uint_eq(xm_layout_buffer_bytes(layout, 6, 4), 0);
    xm_layout_destroy(layout);
}
END_TEST

START_TEST(chunk_follows_torch)
{
    /* torch.chunk(range(5), 4): 2, 2, 1, and a fourth rank with nothing. */
    xm_layout_t *layout = make("4", "S0", "5", XM_PARTITION_CHUNK);
    const int64_t *cuts = xm_layout_cuts(layout, 0);
    const int64_t expected[] = {0, 2, 4, 5, 5};

    for (int i = 0; i < 5; ++i) {
        ck_assert_int_eq(cuts[i], expected[i]);
    }
    xm_layout_destroy(layout);
    /* Two axes, one after the other: 7 → 4 + 3 → (2, 2) + (2, 1). */
    layout = make("2x2", "S01", "7", XM_PARTITION_CHUNK);
    cuts = xm_layout_cuts(layout, 0);
    ck_assert_int_eq(cuts[1], 2);
    ck_assert_int_eq(cuts[2], 4);
    ck_assert_int_eq(cuts[3], 6);
    xm_layout_destroy(layout);
}
END_TEST

START_TEST(tiles_are_a_partition_of_the_tensor)
{
    random_t random = {77};

    for (int i = 0; i < 500; ++i) {
        random_case_t c;
        int64_t volume = 0, total = 1;
        xm_box_t a, b, common;

        random_case_create(&random, &c);
        for (int t = 0; t < xm_layout_tiles(c.src); ++t) {
            xm_layout_tile_box(c.src, t, &a);
            volume += xm_box_volume(&a);
            for (int u = 0; u < t; ++u) {
                xm_layout_tile_box(c.src, u, &b);
                ck_assert(xm_box_volume(&a) == 0 || xm_box_volume(&b) == 0 || a.dims == 0 ||
                          !xm_box_intersect(&a, &b, &common));
            }
        }
        for (int d = 0; d < xm_layout_dims(c.src); ++d) {
            total *= xm_layout_shape(c.src)[d];
        }
        ck_assert_int_eq(volume, total);
        random_case_destroy(&c);
    }
}
END_TEST

START_TEST(scalars_and_large_tensors)
{
    xm_layout_t *layout = make("2x2", "", "scalar", XM_PARTITION_EVEN);
    int count;

    ck_assert_int_eq(xm_layout_tiles(layout), 1);
    (void)xm_layout_replicas(layout, 0, &count);
    ck_assert_int_eq(count, 4);
    ck_assert_uint_eq(xm_layout_buffer_bytes(layout, 2, 8), 8);
    xm_layout_destroy(layout);
    layout = make("4", "S0R", "65536x1048576", XM_PARTITION_EVEN);
    ck_assert_uint_eq(xm_layout_buffer_bytes(layout, 0, 16), UINT64_C(1) << 38);
    xm_layout_destroy(layout);
}
END_TEST

START_TEST(bad_layouts_are_named)
{
    xm_mesh_t *mesh;
    xm_layout_t *layout;
    xm_spec_t spec;
    int64_t shape[] = {6, 7}, huge[] = {INT64_C(1) << 40, INT64_C(1) << 40};
    xm_partition_t partition;
    int dims;

    ck_assert_xm_ok(xm_mesh_parse("2x2", NULL, 0, &mesh));
    ck_assert_xm_ok(xm_spec_parse("S0S1", &spec));
    ck_assert_xm_fails(xm_layout_create(mesh, &spec, XM_PARTITION_EVEN, shape, &layout),
                       XM_ERR_INVALID_ARGUMENT,
                       "dimension 1 has 7 elements, which 2 parts do not divide");
    ck_assert_xm_fails(xm_layout_create(mesh, &spec, XM_PARTITION_EVEN, huge, &layout),
                       XM_ERR_INVALID_ARGUMENT, "more than 2^62 elements (up to dimension 1)");
    ck_assert_xm_fails(xm_partition_parse("chunked", &partition), XM_ERR_INVALID_ARGUMENT,
                       "did you mean chunk?");
    ck_assert_xm_fails(xm_shape_parse("4x-1", &dims, shape), XM_ERR_INVALID_ARGUMENT,
                       "dimension 1");
    ck_assert_xm_fails(xm_shape_parse("4x", &dims, shape), XM_ERR_PARSE, "dimension 1");
    xm_mesh_destroy(mesh);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("layout");
    TCase *tcase = tcase_create("all");

    tcase_add_test(tcase, the_order_of_axes_decides_who_holds_what);
    tcase_add_test(tcase, replicas_are_listed_in_mesh_order);
    tcase_add_test(tcase, chunk_follows_torch);
    tcase_add_test(tcase, tiles_are_a_partition_of_the_tensor);
    tcase_add_test(tcase, scalars_and_large_tensors);
    tcase_add_test(tcase, bad_layouts_are_named);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
