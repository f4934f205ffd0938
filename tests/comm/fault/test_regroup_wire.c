/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/fault/regroup_wire.h"

#include <stdio.h>

#include "xm_test.h"

enum { RANKS = 21 };
static const uint8_t key[XM_SIPHASH_KEY_SIZE] = {2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5, 9, 0, 4, 5};

static size_t encode(xm_regroup_type_t type, bool *set, uint8_t *bytes)
{
    xm_regroup_frame_t frame = {.type = type, .sender = 20, .generation = 9, .set = set};

    frame.fault = (xm_bootstrap_fault_t){.rank = 3, .status = XM_ERR_TIMEOUT};
    (void)snprintf(frame.fault.sentence, sizeof(frame.fault.sentence), "too late");
    return xm_regroup_encode(&frame, RANKS, key, bytes);
}

START_TEST(frames_survive)
{
    uint8_t *bytes = malloc(xm_regroup_max_size(RANKS));

    for (int type = XM_REGROUP_HELLO; type <= XM_REGROUP_REFUSAL; ++type) {
        bool set[RANKS] = {false}, read[RANKS] = {false};
        xm_regroup_frame_t frame = {.set = read};
        size_t length, used = 0;

        set[0] = set[9] = set[20] = true;
        length = encode((xm_regroup_type_t)type, set, bytes);
        ck_assert_uint_le(length, xm_regroup_max_size(RANKS));
        for (size_t cut = 0; cut < length; ++cut) {
            ck_assert_int_eq(xm_regroup_decode(bytes, cut, RANKS, key, &frame, &used),
                             XM_IN_PROGRESS);
        }
        ck_assert_xm_ok(xm_regroup_decode(bytes, length, RANKS, key, &frame, &used));
        ck_assert_uint_eq(used, length);
        ck_assert_int_eq(frame.type, type);
        ck_assert_int_eq(frame.sender, 20);
        ck_assert_uint_eq(frame.generation, 9);
        if (type == XM_REGROUP_REFUSAL) {
            ck_assert_int_eq(frame.fault.status, XM_ERR_TIMEOUT);
            ck_assert_str_eq(frame.fault.sentence, "too late");
        } else {
            ck_assert_mem_eq(read, set, sizeof(set));
        }
    }
    free(bytes);
}
END_TEST

START_TEST(forged_frames_are_refused)
{
    uint8_t *bytes = malloc(xm_regroup_max_size(RANKS));

    for (int type = XM_REGROUP_HELLO; type <= XM_REGROUP_REFUSAL; ++type) {
        bool set[RANKS] = {true}, read[RANKS];
        xm_regroup_frame_t frame = {.set = read};
        size_t length = encode((xm_regroup_type_t)type, set, bytes), used;

        for (size_t i = 0; i < length; ++i) {
            xm_status_t status;

            bytes[i] ^= 0x40;
            status = xm_regroup_decode(bytes, length, RANKS, key, &frame, &used);
            /* A larger length only waits for more, which then is wrong. */
            ck_assert(status == XM_ERR_CORRUPT || (i >= 16 && i < 20 && status == XM_IN_PROGRESS));
            bytes[i] ^= 0x40;
        }
        /* A frame of a job of another size. */
        ck_assert_int_eq(xm_regroup_decode(bytes, length, 8, key, &frame, &used), XM_ERR_CORRUPT);
    }
    free(bytes);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("regroup_wire");
    TCase *tcase = tcase_create("frames");

    tcase_add_test(tcase, frames_survive);
    tcase_add_test(tcase, forged_frames_are_refused);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
