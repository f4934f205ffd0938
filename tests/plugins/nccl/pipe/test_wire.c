/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/nccl/pipe/wire.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include "xm_test.h"

static xm_pipe_handle_t example(void)
{
    xm_pipe_handle_t handle = {.addresses.count = 2};
    struct sockaddr_in *first = (struct sockaddr_in *)&handle.addresses.list[0].socket;
    struct sockaddr_in6 *second = (struct sockaddr_in6 *)&handle.addresses.list[1].socket;

    for (int i = 0; i < XM_JOB_NONCE_SIZE; ++i) {
        handle.nonce[i] = (uint8_t)(i * 7 + 1);
    }
    first->sin_family = AF_INET;
    first->sin_port = htons(40001);
    ck_assert_int_eq(inet_pton(AF_INET, "10.1.2.3", &first->sin_addr), 1);
    second->sin6_family = AF_INET6;
    second->sin6_port = htons(40001);
    ck_assert_int_eq(inet_pton(AF_INET6, "fd00::42", &second->sin6_addr), 1);
    return handle;
}

START_TEST(handles)
{
    xm_pipe_handle_t handle = example(), got;
    uint8_t bytes[XM_PIPE_HANDLE_SIZE];
    char text[64];

    xm_pipe_pack_handle(&handle, bytes);
    for (int i = XM_PIPE_HANDLE_USED; i < XM_PIPE_HANDLE_SIZE; ++i) {
        ck_assert_uint_eq(bytes[i], 0);
    }
    ck_assert_xm_ok(xm_pipe_read_handle(bytes, &got));
    ck_assert_mem_eq(got.nonce, handle.nonce, sizeof(got.nonce));
    ck_assert_int_eq(got.addresses.count, 2);
    ck_assert_int_eq(xm_address_port(&got.addresses.list[0]), 40001);
    ck_assert_str_eq(inet_ntop(AF_INET,
                               &((struct sockaddr_in *)&got.addresses.list[0].socket)->sin_addr,
                               text, sizeof(text)),
                     "10.1.2.3");
    ck_assert_str_eq(inet_ntop(AF_INET6,
                               &((struct sockaddr_in6 *)&got.addresses.list[1].socket)->sin6_addr,
                               text, sizeof(text)),
                     "fd00::42");
}
END_TEST

START_TEST(no_handles)
{
    static const struct {
        int at;
        uint8_t byte;
        xm_status_t status;
        const char *sentence;
    } rows[] = {{0, 'Y', XM_ERR_CORRUPT, "no handle"}, {4, 2, XM_ERR_MISMATCH, "version 2"},
                {7, 0, XM_ERR_CORRUPT, "0 addresses"}, {7, 6, XM_ERR_CORRUPT, "6 addresses"},
                {7, 3, XM_ERR_CORRUPT, "address 2"},   {26, 5, XM_ERR_CORRUPT, "address 0"}};
    xm_pipe_handle_t handle = example(), got;
    uint8_t bytes[XM_PIPE_HANDLE_SIZE];

    xm_pipe_pack_handle(&handle, bytes);
    bytes[rows[_i].at] = rows[_i].byte;
    ck_assert_xm_fails(xm_pipe_read_handle(bytes, &got), rows[_i].status, rows[_i].sentence);
}
END_TEST

/* Each side proves what it says, to this other side, in its own role. */
START_TEST(hellos)
{
    xm_pipe_hello_t hello = {.host = 1, .machine = UINT64_C(0x8123456789abcdef), .pid = 77}, got;
    uint8_t bytes[XM_PIPE_HELLO_SIZE], other[XM_JOB_NONCE_SIZE] = {9};
    xm_job_secret_t secret;

    xm_job_secret_set(&secret, "0123456789abcdef", 16);
    hello.nonce[0] = 5;
    memcpy(hello.name, "node7", 6);
    xm_pipe_pack_hello(&hello, &secret, "sender", other, bytes);
    ck_assert_xm_ok(xm_pipe_read_hello(bytes, &secret, "sender", other, &got));
    ck_assert_uint_eq(got.host, 1);
    ck_assert_uint_eq(got.machine, hello.machine);
    ck_assert_uint_eq(got.pid, 77);
    ck_assert_str_eq(got.name, "node7");
    ck_assert_xm_fails(xm_pipe_read_hello(bytes, &secret, "receiver", other, &got), XM_ERR_MISMATCH,
                       "a stranger");
    other[0] = 8;
    ck_assert_xm_fails(xm_pipe_read_hello(bytes, &secret, "sender", other, &got), XM_ERR_MISMATCH,
                       "a stranger");
    other[0] = 9;
    for (int i = 8; i < XM_PIPE_HELLO_SIZE; ++i) {
        bytes[i] ^= 0x40;
        ck_assert_xm_fails(xm_pipe_read_hello(bytes, &secret, "sender", other, &got),
                           XM_ERR_MISMATCH, "a stranger");
        bytes[i] ^= 0x40;
    }
    bytes[4] = 3;
    ck_assert_xm_fails(xm_pipe_read_hello(bytes, &secret, "sender", other, &got), XM_ERR_MISMATCH,
                       "version 3");
}
END_TEST

START_TEST(headers)
{
    static const size_t lengths[] = {0, 1, XM_PIPE_INLINE_MAX, XM_PIPE_INLINE_MAX + 1};
    uint8_t bytes[XM_PIPE_HEADER_SIZE], data[XM_PIPE_INLINE_MAX + 1];
    xm_pipe_header_t header = {.tag = -5, .number = UINT32_MAX}, got;
    const uint8_t *inside;

    memset(data, 0x5a, sizeof(data));
    header.length = lengths[_i];
    xm_pipe_pack_header(&header, data, bytes);
    xm_pipe_read_header(bytes, &got, &inside);
    ck_assert_uint_eq(got.length, header.length);
    ck_assert_int_eq(got.tag, -5);
    ck_assert_uint_eq(got.number, UINT32_MAX);
    if (lengths[_i] > XM_PIPE_INLINE_MAX) {
        ck_assert_ptr_null(inside);
    } else {
        ck_assert_mem_eq(inside, data, lengths[_i]);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pipe wire");
    TCase *tcase = tcase_create("wire");

    tcase_add_test(tcase, handles);
    tcase_add_loop_test(tcase, no_handles, 0, 6);
    tcase_add_test(tcase, hellos);
    tcase_add_loop_test(tcase, headers, 0, 4);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
