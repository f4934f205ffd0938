/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/transport/rails/frame.h"

#include <string.h>

#include "xm_test.h"

static const xm_rails_frame_t frames[] = {
    {.kind = XM_RAILS_FRAME_EAGER, .sender = 3, .message = 7, .tag = 9, .length = 100},
    {.kind = XM_RAILS_FRAME_START,
     .life = {1, 0, 255, 4, 0, 0, 0, 130},
     .sender = 70000,
     .message = UINT64_C(1) << 40,
     .tag = (UINT64_C(1) << 48) - 1,
     .length = UINT64_C(1) << 50,
     .chunk = 1u << 31},
    {.kind = XM_RAILS_FRAME_CHUNK, .message = 1, .offset = UINT64_C(1) << 49},
    {.kind = XM_RAILS_FRAME_GRANT, .message = 1, .offset = XM_RAILS_FRAME_ALL, .length = 12},
    {.kind = XM_RAILS_FRAME_PING, .sender = INT32_MAX},
    {.kind = XM_RAILS_FRAME_PONG},
    {.kind = XM_RAILS_FRAME_FIN},
    {.kind = XM_RAILS_FRAME_CREDIT, .credits = 0xfedc},
    {.kind = XM_RAILS_FRAME_BACK, .message = UINT32_MAX, .offset = 7},
    {.kind = XM_RAILS_FRAME_HERE, .message = 77, .offset = 1},
};

START_TEST(frames_survive)
{
    const xm_rails_frame_t *frame = &frames[_i];
    uint8_t bytes[XM_RAILS_FRAME_SIZE];
    xm_rails_frame_t read;

    xm_rails_frame_encode(frame, bytes);
    ck_assert_xm_ok(xm_rails_frame_decode(bytes, sizeof(bytes), &read));
    ck_assert_int_eq(read.kind, frame->kind);
    ck_assert_mem_eq(read.life, frame->life, sizeof(read.life));
    ck_assert_int_eq(read.sender, frame->sender);
    ck_assert_uint_eq(read.message, frame->message);
    ck_assert_uint_eq(read.tag, frame->tag);
    ck_assert_uint_eq(read.length, frame->length);
    ck_assert_uint_eq(read.offset, frame->offset);
    ck_assert_uint_eq(read.chunk, frame->chunk);
    ck_assert_uint_eq(read.credits, frame->credits);
    for (size_t length = 0; length < sizeof(bytes); ++length) {
        ck_assert_int_eq(xm_rails_frame_decode(bytes, length, &read), XM_ERR_CORRUPT);
    }
}
END_TEST

/* Byte of a START that is changed, and to what. */
static const struct {
    size_t at;
    uint8_t value;
} wrong[] = {
    {0, 0},    {1, 0},              /* magic */
    {2, 0},    {2, 11},             /* kind */
    {7, 0x80},                      /* a negative sender */
    {22, 1},   {23, 0xff},          /* a tag of 49 bits and more */
    {3, 1},    {46, 1},    {47, 1}, /* what has to be zero */
    {40, 0},                        /* chunks of no bytes */
    {24, 0},                        /* a message of no bytes */
};

START_TEST(impossible_frames_are_refused)
{
    xm_rails_frame_t frame = {.kind = XM_RAILS_FRAME_START, .length = 1, .chunk = 1}, read;
    uint8_t bytes[XM_RAILS_FRAME_SIZE];

    xm_rails_frame_encode(&frame, bytes);
    ck_assert_xm_ok(xm_rails_frame_decode(bytes, sizeof(bytes), &read));
    bytes[wrong[_i].at] = wrong[_i].value;
    ck_assert_int_eq(xm_rails_frame_decode(bytes, sizeof(bytes), &read), XM_ERR_CORRUPT);
}
END_TEST

/* An answer for no message at all. */
START_TEST(empty_answers_are_refused)
{
    xm_rails_frame_t frame = {.kind = XM_RAILS_FRAME_GRANT, .offset = XM_RAILS_FRAME_ALL}, read;
    uint8_t bytes[XM_RAILS_FRAME_SIZE];

    xm_rails_frame_encode(&frame, bytes);
    ck_assert_int_eq(xm_rails_frame_decode(bytes, sizeof(bytes), &read), XM_ERR_CORRUPT);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("transport_rails_frame");
    TCase *tcase = tcase_create("frames");

    tcase_add_loop_test(tcase, frames_survive, 0, (int)(sizeof(frames) / sizeof(frames[0])));
    tcase_add_loop_test(tcase, impossible_frames_are_refused, 0,
                        (int)(sizeof(wrong) / sizeof(wrong[0])));
    tcase_add_test(tcase, empty_answers_are_refused);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
