/* SPDX-License-Identifier: Apache-2.0 */
#include "resharding/layout/unit_task.h"

#include "tests/resharding/plan/random_case.h"
#include "xm_test.h"

/* Every non-empty intersection of a source and a destination tile is exactly one task. */
START_TEST(tasks_are_the_intersections_of_tiles)
{
    random_t random = {5};

    for (int i = 0; i < 1000; ++i) {
        random_case_t c;
        xm_unit_task_t *tasks;
        int64_t count, next = 0;

        random_case_create(&random, &c);
        ck_assert_xm_ok(xm_unit_tasks_create(c.src, c.dst, i % 7, &tasks, &count));
        for (int d = 0; d < xm_layout_tiles(c.dst); ++d) {
            for (int s = 0; s < xm_layout_tiles(c.src); ++s) {
                xm_box_t from, to, common, box;

                xm_layout_tile_box(c.src, s, &from);
                xm_layout_tile_box(c.dst, d, &to);
                if (!xm_box_intersect(&from, &to, &common)) {
                    continue;
                }
                ck_assert_int_lt(next, count);
                ck_assert_int_eq(tasks[next].tensor, i % 7);
                ck_assert_int_eq(tasks[next].dst_tile, d);
                ck_assert_int_eq(tasks[next].src_tile, s);
                ck_assert_int_eq(tasks[next].elements, xm_box_volume(&common));
                xm_unit_task_box(c.src, c.dst, &tasks[next], &box);
                ck_assert_int_eq(box.dims, common.dims);
                for (int k = 0; k < common.dims; ++k) {
                    ck_assert_int_eq(box.lo[k], common.lo[k]);
                    ck_assert_int_eq(box.hi[k], common.hi[k]);
                }
                ++next;
            }
        }
        ck_assert_int_eq(next, count);
        free(tasks);
        random_case_destroy(&c);
    }
}
END_TEST

START_TEST(different_tensors_are_refused)
{
    xm_mesh_t *mesh;
    xm_spec_t matrix, vector;
    int64_t a[] = {4, 8}, b[] = {4, 9};
    xm_layout_t *src, *dst, *flat;
    xm_unit_task_t *tasks;
    int64_t count;

    ck_assert_xm_ok(xm_mesh_parse("2", NULL, 0, &mesh));
    ck_assert_xm_ok(xm_spec_parse("S0R", &matrix));
    ck_assert_xm_ok(xm_spec_parse("S0", &vector));
    ck_assert_xm_ok(xm_layout_create(mesh, &matrix, XM_PARTITION_EVEN, a, &src));
    ck_assert_xm_ok(xm_layout_create(mesh, &matrix, XM_PARTITION_EVEN, b, &dst));
    ck_assert_xm_ok(xm_layout_create(mesh, &vector, XM_PARTITION_EVEN, a, &flat));
    ck_assert_xm_fails(xm_unit_tasks_create(src, dst, 0, &tasks, &count), XM_ERR_MISMATCH,
                       "dimension 1 has 8 elements in the source layout and 9");
    ck_assert_xm_fails(xm_unit_tasks_create(src, flat, 0, &tasks, &count), XM_ERR_MISMATCH,
                       "2 dimensions");
    xm_layout_destroy(src);
    xm_layout_destroy(dst);
    xm_layout_destroy(flat);
    xm_mesh_destroy(mesh);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("unit_task");
    TCase *tcase = tcase_create("all");

    tcase_add_test(tcase, tasks_are_the_intersections_of_tiles);
    tcase_add_test(tcase, different_tensors_are_refused);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
