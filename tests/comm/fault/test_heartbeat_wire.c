/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/fault/heartbeat_wire.h"

#include <stdio.h>

#include "xm_test.h"

static const uint8_t key[XM_SIPHASH_KEY_SIZE] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3};

static xm_heartbeat_frame_t example(xm_heartbeat_type_t type)
{
    xm_heartbeat_frame_t frame = {.type = type,
                                  .sender = 0x10203,
                                  .receiver = 7,
                                  .question = UINT64_C(0x1122334455667788),
                                  .activity = 99,
                                  .generation = 4,
                                  .probe = 17};

    if (type == XM_HEARTBEAT_FAULT_STATUS) {
        frame.fault.rank = 12;
        frame.fault.status = XM_ERR_PEER_DIED;
        (void)snprintf(frame.fault.sentence, sizeof(frame.fault.sentence), "rank 12 is gone");
    }
    return frame;
}

START_TEST(frames_survive)
{
    for (int type = XM_HEARTBEAT_PING; type <= XM_HEARTBEAT_FAULT_STATUS; ++type) {
        xm_heartbeat_frame_t frame = example((xm_heartbeat_type_t)type), decoded;
        uint8_t bytes[XM_HEARTBEAT_MAX_SIZE];
        size_t length = xm_heartbeat_encode(&frame, key, bytes);

        ck_assert_xm_ok(xm_heartbeat_decode(bytes, length, key, &decoded));
        ck_assert_int_eq(decoded.type, type);
        ck_assert_int_eq(decoded.sender, frame.sender);
        ck_assert_int_eq(decoded.receiver, frame.receiver);
        ck_assert_uint_eq(decoded.question, frame.question);
        ck_assert_uint_eq(decoded.activity, frame.activity);
        ck_assert_uint_eq(decoded.generation, frame.generation);
        ck_assert_uint_eq(decoded.probe, frame.probe);
        if (type == XM_HEARTBEAT_FAULT_STATUS) {
            ck_assert_int_eq(decoded.fault.rank, 12);
            ck_assert_int_eq(decoded.fault.status, XM_ERR_PEER_DIED);
            ck_assert_str_eq(decoded.fault.sentence, "rank 12 is gone");
        }
    }
}
END_TEST

START_TEST(the_layout_is_fixed)
{
    static const uint8_t expected[XM_HEARTBEAT_HEAD_SIZE] = {
        'X',  'M',  'H',  '1',  1,  0, 1, 0, 3, 2, 1, 0, 7, 0, 0, 0, 0x88, 0x77, 0x66, 0x55,
        0x44, 0x33, 0x22, 0x11, 99, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 17,   0,    0,    0};
    xm_heartbeat_frame_t frame = example(XM_HEARTBEAT_PING);
    uint8_t bytes[XM_HEARTBEAT_MAX_SIZE];

    ck_assert_uint_eq(xm_heartbeat_encode(&frame, key, bytes),
                      XM_HEARTBEAT_HEAD_SIZE + XM_HEARTBEAT_CODE_SIZE);
    ck_assert_mem_eq(bytes, expected, sizeof(expected));
}
END_TEST

/* No byte can be changed, none be missing, and another job's key is none. */
START_TEST(forged_frames_are_refused)
{
    for (int type = XM_HEARTBEAT_PING; type <= XM_HEARTBEAT_FAULT_STATUS; ++type) {
        xm_heartbeat_frame_t frame = example((xm_heartbeat_type_t)type), decoded;
        uint8_t bytes[XM_HEARTBEAT_MAX_SIZE + 1] = {0}, other[XM_SIPHASH_KEY_SIZE];
        size_t length = xm_heartbeat_encode(&frame, key, bytes);

        for (size_t i = 0; i < length; ++i) {
            bytes[i] ^= 1;
            ck_assert_int_eq(xm_heartbeat_decode(bytes, length, key, &decoded), XM_ERR_CORRUPT);
            bytes[i] ^= 1;
            ck_assert_int_eq(xm_heartbeat_decode(bytes, i, key, &decoded), XM_ERR_CORRUPT);
        }
        ck_assert_int_eq(xm_heartbeat_decode(bytes, length + 1, key, &decoded), XM_ERR_CORRUPT);
        memcpy(other, key, sizeof(other));
        other[5] ^= 1;
        ck_assert_int_eq(xm_heartbeat_decode(bytes, length, other, &decoded), XM_ERR_CORRUPT);
    }
}
END_TEST

/* Of this job, but nonsense: a type that does not exist, a PING with more to it. */
START_TEST(nonsense_is_refused)
{
    xm_heartbeat_frame_t frame = example(XM_HEARTBEAT_FAULT_STATUS), decoded;
    uint8_t bytes[XM_HEARTBEAT_MAX_SIZE];

    frame.type = (xm_heartbeat_type_t)4;
    ck_assert_xm_fails(
        xm_heartbeat_decode(bytes, xm_heartbeat_encode(&frame, key, bytes), key, &decoded),
        XM_ERR_CORRUPT, "type 4");
    frame.type = XM_HEARTBEAT_PING;
    frame.sender = XM_BOOTSTRAP_MAX_RANKS;
    ck_assert_xm_fails(
        xm_heartbeat_decode(bytes, xm_heartbeat_encode(&frame, key, bytes), key, &decoded),
        XM_ERR_CORRUPT, "from rank 1048576");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("heartbeat_wire");
    TCase *tcase = tcase_create("frames");

    tcase_add_test(tcase, frames_survive);
    tcase_add_test(tcase, the_layout_is_fixed);
    tcase_add_test(tcase, forged_frames_are_refused);
    tcase_add_test(tcase, nonsense_is_refused);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
