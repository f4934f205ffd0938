/* SPDX-License-Identifier: Apache-2.0 */
#include "resharding/layout/mesh.h"

#include "xm_test.h"

START_TEST(positions_ranks_and_coordinates)
{
    xm_mesh_t *mesh;
    char text[64];

    ck_assert_xm_ok(xm_mesh_parse("2x3", "9-7,0,4,2", 0, &mesh));
    ck_assert_int_eq(xm_mesh_axes(mesh), 2);
    ck_assert_int_eq(xm_mesh_size(mesh), 6);
    ck_assert_int_eq(xm_mesh_rank(mesh, 0), 9);
    ck_assert_int_eq(xm_mesh_rank(mesh, 5), 2);
    ck_assert_int_eq(xm_mesh_position(mesh, 4), 4);
    ck_assert_int_eq(xm_mesh_position(mesh, 5), -1);
    ck_assert_int_eq(xm_mesh_coordinate(mesh, 4, 0), 1);
    ck_assert_int_eq(xm_mesh_coordinate(mesh, 4, 1), 1);
    ck_assert_int_eq(xm_mesh_max_rank(mesh), 9);
    ck_assert_str_eq(xm_mesh_format_shape(mesh, text, sizeof(text)), "2x3");
    ck_assert_str_eq(xm_mesh_format_ranks(mesh, text, sizeof(text)), "9,8,7,0,4,2");
    xm_mesh_destroy(mesh);
}
END_TEST

START_TEST(defaults_and_scalars)
{
    xm_mesh_t *mesh, *clone;
    char text[64];

    ck_assert_xm_ok(xm_mesh_parse("2x4", NULL, 8, &mesh));
    ck_assert_str_eq(xm_mesh_format_ranks(mesh, text, sizeof(text)), "8-15");
    ck_assert_xm_ok(xm_mesh_clone(mesh, &clone));
    xm_mesh_destroy(mesh);
    ck_assert_int_eq(xm_mesh_rank(clone, 7), 15);
    xm_mesh_destroy(clone);
    ck_assert_xm_ok(xm_mesh_create(0, NULL, NULL, &mesh));
    ck_assert_int_eq(xm_mesh_size(mesh), 1);
    ck_assert_str_eq(xm_mesh_format_shape(mesh, text, sizeof(text)), "1");
    xm_mesh_destroy(mesh);
    xm_mesh_destroy(NULL);
}
END_TEST

START_TEST(ranks_are_found_however_they_lie)
{
    /* Steps that are powers of two, or large, fall together in careless hashing. */
    static const int steps[] = {1, 2, 3, 8, 1 << 10, 1 << 16, 99991};
    static const int sizes[] = {2, 2, 2, 2, 2, 2, 2, 2};
    int ranks[256];

    for (size_t s = 0; s < sizeof(steps) / sizeof(steps[0]); ++s) {
        xm_mesh_t *mesh;

        for (int p = 0; p < 256; ++p) {
            ranks[p] = 5 + steps[s] * (p * 37 % 256);
        }
        ck_assert_xm_ok(xm_mesh_create(8, sizes, ranks, &mesh));
        for (int p = 0; p < 256; ++p) {
            ck_assert_int_eq(xm_mesh_rank(mesh, p), ranks[p]);
            ck_assert_int_eq(xm_mesh_ranks(mesh)[p], ranks[p]);
            ck_assert_int_eq(xm_mesh_position(mesh, ranks[p]), p);
        }
        ck_assert_int_eq(xm_mesh_position(mesh, 4), -1);
        ck_assert_int_eq(xm_mesh_position(mesh, -1), -1);
        ck_assert_int_eq(xm_mesh_position(mesh, 5 + steps[s] * 256), -1);
        ck_assert_int_eq(xm_mesh_max_rank(mesh), 5 + steps[s] * 255);
        ck_assert_int_eq(xm_mesh_coordinate(mesh, 129, 0), 1);
        ck_assert_int_eq(xm_mesh_coordinate(mesh, 129, 7), 1);
        xm_mesh_destroy(mesh);
    }
}
END_TEST

START_TEST(bad_meshes_are_named)
{
    xm_mesh_t *mesh;
    int sizes[] = {2, 0}, ranks[] = {3, -1};

    ck_assert_xm_fails(xm_mesh_parse("2x2", "0,1,2,1", 0, &mesh), XM_ERR_INVALID_ARGUMENT,
                       "the mesh names rank 1 twice");
    ck_assert_xm_fails(xm_mesh_parse("2x2", "0-2", 0, &mesh), XM_ERR_INVALID_ARGUMENT,
                       "mesh 2x2 needs 4 ranks, the list names 3");
    ck_assert_xm_fails(xm_mesh_parse("2x", NULL, 0, &mesh), XM_ERR_PARSE, "'2x'");
    ck_assert_xm_fails(xm_mesh_parse("2x0", NULL, 0, &mesh), XM_ERR_INVALID_ARGUMENT,
                       "0 is outside");
    ck_assert_xm_fails(xm_mesh_parse("2", "0,-1", 0, &mesh), XM_ERR_PARSE, "''");
    ck_assert_xm_fails(xm_mesh_parse("1x1x1x1x1x1x1x1x1", NULL, 0, &mesh), XM_ERR_INVALID_ARGUMENT,
                       "more than 8 axes");
    ck_assert_xm_fails(xm_mesh_parse("4000x4000", NULL, 0, &mesh), XM_ERR_INVALID_ARGUMENT,
                       "more than 4194304 devices");
    ck_assert_xm_fails(xm_mesh_parse("1", "0-99999999", 0, &mesh), XM_ERR_INVALID_ARGUMENT,
                       "more than");
    ck_assert_xm_fails(xm_mesh_create(2, sizes, NULL, &mesh), XM_ERR_INVALID_ARGUMENT,
                       "axis 1 has size 0");
    sizes[1] = 1;
    ck_assert_xm_fails(xm_mesh_create(2, sizes, ranks, &mesh), XM_ERR_INVALID_ARGUMENT, "rank -1");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("mesh");
    TCase *tcase = tcase_create("all");

    tcase_add_test(tcase, positions_ranks_and_coordinates);
    tcase_add_test(tcase, defaults_and_scalars);
    tcase_add_test(tcase, ranks_are_found_however_they_lie);
    tcase_add_test(tcase, bad_meshes_are_named);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
