/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/run/tile_buffers.h"

#include "bench/run/pattern.h"
#include "tests/bench/cases/bench_fixture.h"

/* dense-7b at 1/64 on 32 ranks. */
static void open_model(bench_fixture_t *fixture)
{
    rb_rates_t rates = {.nic_bandwidth = {GIB}, .nic_rates = 1, .host_bandwidth = 8 * GIB};

    bench_fixture_case("dense-7b", &fixture->one);
    fixture->one.strategy = XM_STRATEGY_BROADCAST;
    fixture->one.scheduler = XM_SCHEDULER_BALANCE;
    fixture->one.request.scale = 64;
    ck_assert(rb_case_is_model(&fixture->one));
    ck_assert_xm_ok(rb_case_load_model(&fixture->one));
    ck_assert_xm_ok(rb_host_map_emulate(32, 8, &fixture->hosts));
    ck_assert_xm_ok(rb_rates_network(&rates, &fixture->hosts, NULL, &fixture->network));
    ck_assert_xm_ok(
        rb_prepare(&fixture->one, &fixture->hosts, fixture->network, &fixture->prepared));
}

/* Tiles start at multiples of 64 bytes, those of a packed parameter where its parts before end. */
START_TEST(tiles_are_aligned_and_packed)
{
    bench_fixture_t fixture;
    rb_tile_buffers_t buffers;
    const rb_model_t *model;
    int packed = 0;

    open_model(&fixture);
    model = fixture.one.model;
    ck_assert_xm_ok(rb_tile_buffers_create(&fixture.prepared, 16, false, &buffers));
    ck_assert_ptr_null(buffers.src);
    for (int i = 0; i < model->count; ++i) {
        const xm_tensor_buffers_t *tensor = &buffers.tensors[i];
        const rb_model_group_t *group;

        ck_assert_ptr_null(tensor->src);
        ck_assert_uint_gt(tensor->dst_bytes, 0);
        if (model->tensors[i].group < 0) {
            ck_assert_uint_eq((uintptr_t)tensor->dst % 64, 0);
            continue;
        }
        ++packed;
        group = &model->groups[model->tensors[i].group];
        for (int p = 1; p < group->parts; ++p) {
            const xm_tensor_buffers_t *before = &buffers.tensors[group->tensors[p - 1]];

            ck_assert_ptr_eq((char *)before->dst + before->dst_bytes,
                             buffers.tensors[group->tensors[p]].dst);
        }
        ck_assert_uint_eq((uintptr_t)buffers.tensors[group->tensors[0]].dst % 64, 0);
    }
    ck_assert_int_gt(packed, 0);
    rb_tile_buffers_clear(&buffers);
    bench_fixture_close(&fixture);
}
END_TEST

/* Tensors of equal shapes hold different data, so that one in the place of another is wrong. */
START_TEST(every_tensor_has_its_own_data)
{
    bench_fixture_t fixture;
    rb_tile_buffers_t src, dst;
    uint64_t wrong;
    int64_t bytes = 0;
    int norm = -1, other = -1;

    open_model(&fixture);
    for (int i = 0; i < fixture.one.model->count; ++i) {
        if (strstr(fixture.one.model->tensors[i].name, "norm.weight") != NULL) {
            other = norm >= 0 && other < 0 ? i : other;
            norm = norm < 0 ? i : norm;
        }
        bytes +=
            (int64_t)xm_layout_buffer_bytes(xm_plan_tensor_dst(fixture.prepared.plan, i), 16,
                                            xm_plan_tensor_element_size(fixture.prepared.plan, i));
    }
    ck_assert_int_ge(other, 0);
    ck_assert_xm_ok(rb_tile_buffers_create(&fixture.prepared, 0, true, &src));
    ck_assert_ptr_nonnull(src.src_shared);
    ck_assert_ptr_null(src.dst_shared);
    ck_assert_xm_ok(rb_tile_buffers_create(&fixture.prepared, 16, false, &dst));
    rb_tile_buffers_fill(&src, 7);
    rb_tile_buffers_fill(&dst, 7);
    wrong = rb_tile_buffers_check(&dst, 7);
    ck_assert_uint_eq(wrong, (uint64_t)bytes);
    memcpy(dst.tensors[norm].dst, src.tensors[norm].src, src.tensors[norm].src_bytes);
    ck_assert_uint_eq(rb_tile_buffers_check(&dst, 7), wrong - src.tensors[norm].src_bytes);
    memcpy(dst.tensors[norm].dst, src.tensors[other].src, src.tensors[norm].src_bytes);
    ck_assert_uint_gt(rb_tile_buffers_check(&dst, 7), wrong - src.tensors[norm].src_bytes / 2);
    rb_tile_buffers_clear(&dst);
    rb_tile_buffers_clear(&src);
    bench_fixture_close(&fixture);
}
END_TEST

START_TEST(salts_of_tensors_differ)
{
    ck_assert_uint_eq(rb_pattern_tensor_salt(5, 0), 5);
    ck_assert_uint_ne(rb_pattern_tensor_salt(5, 1), rb_pattern_tensor_salt(5, 2));
    ck_assert_uint_ne(rb_pattern_tensor_salt(5, 1), rb_pattern_tensor_salt(6, 1));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tile buffers");
    TCase *tests = tcase_create("tile buffers");

    tcase_add_test(tests, tiles_are_aligned_and_packed);
    tcase_add_test(tests, every_tensor_has_its_own_data);
    tcase_add_test(tests, salts_of_tensors_differ);
    suite_add_tcase(suite, tests);
    return xm_test_run(suite);
}
