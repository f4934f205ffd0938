/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/fault/frame.h"

#include <stdio.h>

#include "xm_test.h"

enum { RANKS = 21 };
static const uint8_t key[XM_SIPHASH_KEY_SIZE] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3};

static xm_frame_t example(xm_frame_type_t type, uint8_t *standing)
{
    xm_frame_t frame = {.type = type,
                        .sender = 19,
                        .receiver = 7,
                        .question = UINT64_C(0x1122334455667788),
                        .activity = 99,
                        .generation = 4,
                        .probe = 17,
                        .about = 4,
                        .opinion = XM_OPINION_SILENT,
                        .hears = true,
                        .standing = standing};

    for (int rank = 0; rank < RANKS; ++rank) {
        standing[rank] = (uint8_t)(rank % (XM_STANDING_OUT + 1));
    }
    if (type == XM_FRAME_FINDING || type == XM_FRAME_REFUSAL) {
        frame.fault.rank = 12;
        frame.fault.status = XM_ERR_PEER_DIED;
        (void)snprintf(frame.fault.sentence, sizeof(frame.fault.sentence), "rank 12 is gone");
    }
    return frame;
}

static uint8_t *encode(const xm_frame_t *frame, size_t *length)
{
    uint8_t *bytes = calloc(1, xm_frame_max_size(RANKS) + 1);

    ck_assert_ptr_nonnull(bytes);
    *length = xm_frame_encode(frame, RANKS, key, bytes);
    ck_assert_uint_le(*length, xm_frame_max_size(RANKS));
    return bytes;
}

START_TEST(frames_survive)
{
    for (int type = XM_FRAME_ASK; type <= XM_FRAME_REFUSAL; ++type) {
        uint8_t sent[RANKS], got[RANKS] = {0};
        xm_frame_t frame = example((xm_frame_type_t)type, sent), decoded = {.standing = got};
        size_t length;
        uint8_t *bytes = encode(&frame, &length);

        ck_assert_xm_ok(xm_frame_decode(bytes, length, RANKS, key, &decoded));
        ck_assert_int_eq(decoded.type, type);
        ck_assert_int_eq(decoded.sender, frame.sender);
        ck_assert_int_eq(decoded.receiver, frame.receiver);
        ck_assert_uint_eq(decoded.question, frame.question);
        ck_assert_uint_eq(decoded.activity, frame.activity);
        ck_assert_uint_eq(decoded.generation, frame.generation);
        ck_assert_uint_eq(decoded.probe, frame.probe);
        ck_assert_int_eq(decoded.about, frame.about);
        ck_assert_int_eq(decoded.opinion, frame.opinion);
        ck_assert(decoded.hears);
        if (type == XM_FRAME_FINDING || type == XM_FRAME_REFUSAL) {
            ck_assert_int_eq(decoded.fault.rank, 12);
            ck_assert_int_eq(decoded.fault.status, XM_ERR_PEER_DIED);
            ck_assert_str_eq(decoded.fault.sentence, "rank 12 is gone");
        }
        if (type == XM_FRAME_HELLO || type == XM_FRAME_WELCOME) {
            ck_assert_mem_eq(got, sent, sizeof(sent));
        }
        free(bytes);
    }
}
END_TEST

START_TEST(the_layout_is_fixed)
{
    static const uint8_t expected[XM_FRAME_HEAD_SIZE] = {
        'X',  'M',  'D',  '1',  1,    0,    1,    0,    19, 0, 0, 0, 7, 0, 0, 0,
        0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 99, 0, 0, 0, 0, 0, 0, 0,
        4,    0,    0,    0,    17,   0,    0,    0,    5,  0, 0, 0, 2, 1, 0, 0};
    uint8_t standing[RANKS];
    xm_frame_t frame = example(XM_FRAME_ASK, standing);
    size_t length;
    uint8_t *bytes = encode(&frame, &length);

    ck_assert_uint_eq(length, XM_FRAME_HEAD_SIZE + XM_FRAME_CODE_SIZE);
    ck_assert_mem_eq(bytes, expected, sizeof(expected));
    free(bytes);
}
END_TEST

/* No byte can be changed, none be missing, and another job's key is none. */
START_TEST(forged_frames_are_refused)
{
    for (int type = XM_FRAME_ASK; type <= XM_FRAME_REFUSAL; ++type) {
        uint8_t standing[RANKS], got[RANKS], other[XM_SIPHASH_KEY_SIZE];
        xm_frame_t frame = example((xm_frame_type_t)type, standing), decoded = {.standing = got};
        size_t length;
        uint8_t *bytes = encode(&frame, &length);

        for (size_t i = 0; i < length; ++i) {
            bytes[i] ^= 1;
            ck_assert_int_eq(xm_frame_decode(bytes, length, RANKS, key, &decoded), XM_ERR_CORRUPT);
            bytes[i] ^= 1;
            ck_assert_int_eq(xm_frame_decode(bytes, i, RANKS, key, &decoded), XM_ERR_CORRUPT);
        }
        ck_assert_int_eq(xm_frame_decode(bytes, length + 1, RANKS, key, &decoded), XM_ERR_CORRUPT);
        memcpy(other, key, sizeof(other));
        other[5] ^= 1;
        ck_assert_int_eq(xm_frame_decode(bytes, length, RANKS, other, &decoded), XM_ERR_CORRUPT);
        free(bytes);
    }
}
END_TEST

/* Of this job, but nonsense: numbers that cannot be, in the place of right ones. */
START_TEST(nonsense_is_refused)
{
    static const struct {
        size_t at;
        uint8_t value;
        const char *sentence;
    } cases[] = {{6, 10, "type 10"},
                 {6, 0, "type 0"},
                 {8, RANKS, "from rank 21"},
                 {12, RANKS, "to rank 21"},
                 {40, RANKS + 1, "type 7"},
                 {44, 3, "type 7"},
                 {47, 1, "type 7"},
                 {6, XM_FRAME_ASK, "bytes after type 1"},
                 {48, 5, "no table of 21 ranks"},
                 {48 + RANKS / 2, 0x10, "no table of 21 ranks"}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i) {
        uint8_t standing[RANKS], got[RANKS];
        xm_frame_t frame = example(XM_FRAME_HELLO, standing), decoded = {.standing = got};
        size_t length;
        uint8_t *bytes = encode(&frame, &length);
        uint64_t code;

        bytes[cases[i].at] = cases[i].value;
        code = xm_siphash(key, bytes, length - XM_FRAME_CODE_SIZE);
        for (size_t b = 0; b < XM_FRAME_CODE_SIZE; ++b) {
            bytes[length - XM_FRAME_CODE_SIZE + b] = (uint8_t)(code >> (8 * b));
        }
        ck_assert_xm_fails(xm_frame_decode(bytes, length, RANKS, key, &decoded), XM_ERR_CORRUPT,
                           cases[i].sentence);
        free(bytes);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("frame");
    TCase *tcase = tcase_create("frames");

    tcase_add_test(tcase, frames_survive);
    tcase_add_test(tcase, the_layout_is_fixed);
    tcase_add_test(tcase, forged_frames_are_refused);
    tcase_add_test(tcase, nonsense_is_refused);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
