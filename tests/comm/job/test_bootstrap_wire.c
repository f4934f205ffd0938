/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/job/bootstrap_wire.h"

#include <stdio.h>
#include <stdlib.h>

#include "xm_test.h"

START_TEST(header_survives)
{
    xm_bootstrap_header_t header = {
        .type = XM_BOOTSTRAP_GATHER, .sequence = 0x01020304, .length = 0x00a0b0c0};
    xm_bootstrap_header_t decoded;
    uint8_t bytes[XM_BOOTSTRAP_HEADER_SIZE];
    const uint8_t expected[XM_BOOTSTRAP_HEADER_SIZE] = {'X', 'M', 'B', '1', 4,    0,    4,    0,
                                                        4,   3,   2,   1,   0xc0, 0xb0, 0xa0, 0};

    xm_bootstrap_header_encode(&header, bytes);
    ck_assert_mem_eq(bytes, expected, sizeof(bytes));
    ck_assert_xm_ok(xm_bootstrap_header_decode(bytes, &decoded));
    ck_assert_int_eq(decoded.type, header.type);
    ck_assert_uint_eq(decoded.sequence, header.sequence);
    ck_assert_uint_eq(decoded.length, header.length);
}
END_TEST

/* Each byte of a good header replaced by another: refused where it matters. */
START_TEST(bad_headers_are_refused)
{
    xm_bootstrap_header_t header = {.type = XM_BOOTSTRAP_GOODBYE}, decoded;
    uint8_t bytes[XM_BOOTSTRAP_HEADER_SIZE];

    xm_bootstrap_header_encode(&header, bytes);
    for (size_t i = 0; i < sizeof(bytes); ++i) {
        uint8_t good = bytes[i];
        xm_status_t expected = i >= 8 && i < 12   ? XM_OK /* the sequence */
                               : i == 4 || i == 5 ? XM_ERR_UNSUPPORTED
                                                  : XM_ERR_CORRUPT;

        bytes[i] ^= 0x80;
        ck_assert_int_eq(xm_bootstrap_header_decode(bytes, &decoded), expected);
        bytes[i] = good;
    }
    bytes[0] = 'G';
    ck_assert_xm_fails(xm_bootstrap_header_decode(bytes, &decoded), XM_ERR_CORRUPT,
                       "not one of crossmesh's");
    bytes[0] = 'X';
    bytes[4] = 1;
    ck_assert_xm_fails(xm_bootstrap_header_decode(bytes, &decoded), XM_ERR_UNSUPPORTED,
                       "version 1, this build speaks 4");
}
END_TEST

/* A seed of another version would lead the fuzzer nowhere. */
START_TEST(the_fuzzers_seeds_are_of_this_version)
{
    static const char *const seeds[] = {"challenge", "hello",     "welcome", "gather",
                                        "gatherv",   "gatheredv", "fault",   "goodbye"};

    for (size_t i = 0; i < sizeof(seeds) / sizeof(seeds[0]); ++i) {
        xm_bootstrap_header_t header;
        uint8_t bytes[XM_BOOTSTRAP_HEADER_SIZE];
        char path[1024];
        FILE *file;

        (void)snprintf(path, sizeof(path), "%s/tests/fuzz/corpus/bootstrap_wire/%s",
                       getenv("SOURCE_DIR"), seeds[i]);
        file = fopen(path, "re");
        ck_assert_msg(file != NULL, "%s", path);
        ck_assert_uint_eq(fread(bytes, 1, sizeof(bytes), file), sizeof(bytes));
        ck_assert_xm_ok(xm_bootstrap_header_decode(bytes, &header));
        (void)fclose(file);
    }
}
END_TEST

START_TEST(lengths_have_limits)
{
    static const struct {
        xm_bootstrap_type_t type;
        uint32_t smallest, largest;
    } limits[] = {
        {XM_BOOTSTRAP_CHALLENGE, XM_BOOTSTRAP_CHALLENGE_SIZE, XM_BOOTSTRAP_CHALLENGE_SIZE},
        {XM_BOOTSTRAP_HELLO, 16 + 32 + 14, XM_BOOTSTRAP_HELLO_SIZE},
        {XM_BOOTSTRAP_WELCOME, 32 + 14, XM_BOOTSTRAP_WELCOME_SIZE},
        {XM_BOOTSTRAP_REFUSAL, 10, XM_BOOTSTRAP_FAULT_SIZE},
        {XM_BOOTSTRAP_ABORT, 10, XM_BOOTSTRAP_FAULT_SIZE},
        {XM_BOOTSTRAP_FAULT, 10, XM_BOOTSTRAP_FAULT_SIZE},
        {XM_BOOTSTRAP_GATHER, 0, XM_BOOTSTRAP_MAX_GATHER},
        {XM_BOOTSTRAP_GATHERED, 0, XM_BOOTSTRAP_MAX_GATHER},
        {XM_BOOTSTRAP_GATHERV, 0, XM_BOOTSTRAP_MAX_GATHER},
        {XM_BOOTSTRAP_GATHEREDV, 0, XM_BOOTSTRAP_MAX_GATHER},
        {XM_BOOTSTRAP_GOODBYE, 0, 0},
        {XM_BOOTSTRAP_ALIVE, 0, 0}};
    xm_bootstrap_header_t decoded;
    uint8_t bytes[XM_BOOTSTRAP_HEADER_SIZE];

    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); ++i) {
        xm_bootstrap_header_t header = {.type = limits[i].type, .length = limits[i].smallest};

        xm_bootstrap_header_encode(&header, bytes);
        ck_assert_xm_ok(xm_bootstrap_header_decode(bytes, &decoded));
        header.length = limits[i].largest;
        xm_bootstrap_header_encode(&header, bytes);
        ck_assert_xm_ok(xm_bootstrap_header_decode(bytes, &decoded));
        header.length = limits[i].largest + 1;
        xm_bootstrap_header_encode(&header, bytes);
        ck_assert_int_eq(xm_bootstrap_header_decode(bytes, &decoded), XM_ERR_CORRUPT);
        if (limits[i].smallest > 0) {
            header.length = limits[i].smallest - 1;
            xm_bootstrap_header_encode(&header, bytes);
            ck_assert_int_eq(xm_bootstrap_header_decode(bytes, &decoded), XM_ERR_CORRUPT);
        }
    }
}
END_TEST

START_TEST(identity_survives)
{
    xm_bootstrap_identity_t identity = {.rank = 3, .size = 70000, .pid = 4194304}, decoded;
    uint8_t bytes[XM_BOOTSTRAP_IDENTITY_SIZE];
    size_t length;

    (void)snprintf(identity.host, sizeof(identity.host), "node-7.cluster");
    length = xm_bootstrap_identity_encode(&identity, bytes);
    ck_assert_uint_eq(length, 14 + strlen(identity.host));
    ck_assert_xm_ok(xm_bootstrap_identity_decode(bytes, length, &decoded));
    ck_assert_int_eq(decoded.rank, 3);
    ck_assert_int_eq(decoded.size, 70000);
    ck_assert_int_eq(decoded.pid, 4194304);
    ck_assert_str_eq(decoded.host, identity.host);
    memset(identity.host, 'h', sizeof(identity.host) - 1);
    identity.host[sizeof(identity.host) - 1] = '\0';
    length = xm_bootstrap_identity_encode(&identity, bytes);
    ck_assert_uint_eq(length, XM_BOOTSTRAP_IDENTITY_SIZE);
    ck_assert_xm_ok(xm_bootstrap_identity_decode(bytes, length, &decoded));
    ck_assert_str_eq(decoded.host, identity.host);
    for (size_t cut = 0; cut < length; ++cut) {
        ck_assert_int_eq(xm_bootstrap_identity_decode(bytes, cut, &decoded), XM_ERR_CORRUPT);
    }
}
END_TEST

START_TEST(absurd_identities_are_refused)
{
    static const int bad[][3] = {
        {-1, 4, 1}, {4, 4, 1}, {0, 0, 1}, {0, -5, 1}, {0, XM_BOOTSTRAP_MAX_RANKS + 1, 1},
        {0, 4, -2}};
    uint8_t bytes[XM_BOOTSTRAP_IDENTITY_SIZE];
    xm_bootstrap_identity_t decoded;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); ++i) {
        xm_bootstrap_identity_t identity = {
            .rank = bad[i][0], .size = bad[i][1], .pid = bad[i][2], .host = "h"};

        ck_assert_int_eq(xm_bootstrap_identity_decode(
                             bytes, xm_bootstrap_identity_encode(&identity, bytes), &decoded),
                         XM_ERR_CORRUPT);
    }
}
END_TEST

START_TEST(faults_survive_and_are_checked)
{
    xm_bootstrap_fault_t fault = {.rank = -1, .status = XM_ERR_TIMEOUT}, decoded;
    uint8_t bytes[XM_BOOTSTRAP_FAULT_SIZE];
    size_t length;

    (void)snprintf(fault.sentence, sizeof(fault.sentence), "two\nlines, \"and\" UTF-8 …");
    length = xm_bootstrap_fault_encode(&fault, bytes);
    ck_assert_xm_ok(xm_bootstrap_fault_decode(bytes, length, &decoded));
    ck_assert_int_eq(decoded.rank, -1);
    ck_assert_int_eq(decoded.status, XM_ERR_TIMEOUT);
    ck_assert_str_eq(decoded.sentence, "two?lines, \"and\" UTF-8 …");
    for (size_t cut = 0; cut < length; ++cut) {
        ck_assert_int_eq(xm_bootstrap_fault_decode(bytes, cut, &decoded), XM_ERR_CORRUPT);
    }
    bytes[10] = '\n';
    ck_assert_xm_fails(xm_bootstrap_fault_decode(bytes, length, &decoded), XM_ERR_CORRUPT,
                       "control character 10");
    bytes[10] = 't';
    fault.status = XM_OK;
    (void)xm_bootstrap_fault_encode(&fault, bytes);
    ck_assert_int_eq(xm_bootstrap_fault_decode(bytes, length, &decoded), XM_ERR_CORRUPT);
    fault.status = XM_ERR_IO;
    fault.rank = -2;
    (void)xm_bootstrap_fault_encode(&fault, bytes);
    ck_assert_int_eq(xm_bootstrap_fault_decode(bytes, length, &decoded), XM_ERR_CORRUPT);
}
END_TEST

START_TEST(challenges_survive_and_are_checked)
{
    xm_bootstrap_challenge_t challenge = {.secret = _i != 0, .nonce = "0123456789abcde"}, decoded;
    uint8_t bytes[XM_BOOTSTRAP_CHALLENGE_SIZE];

    xm_bootstrap_challenge_encode(&challenge, bytes);
    ck_assert_xm_ok(xm_bootstrap_challenge_decode(bytes, sizeof(bytes), &decoded));
    ck_assert_int_eq(decoded.secret, challenge.secret);
    ck_assert_mem_eq(decoded.nonce, challenge.nonce, sizeof(decoded.nonce));
    ck_assert_int_eq(xm_bootstrap_challenge_decode(bytes, sizeof(bytes) - 1, &decoded),
                     XM_ERR_CORRUPT);
    bytes[0] |= 2;
    ck_assert_int_eq(xm_bootstrap_challenge_decode(bytes, sizeof(bytes), &decoded), XM_ERR_CORRUPT);
}
END_TEST

START_TEST(hellos_and_welcomes_survive_and_are_checked)
{
    xm_bootstrap_hello_t hello = {.nonce = "0123456789abcde",
                                  .proof = "0123456789abcdefghijklmnopqrstu",
                                  .identity = {.rank = 2, .size = 5, .pid = 77, .host = "node"}};
    xm_bootstrap_welcome_t welcome = {.proof = "utsrqponmlkjihgfedcba9876543210",
                                      .identity = hello.identity},
                           decoded_welcome;
    xm_bootstrap_hello_t decoded;
    uint8_t bytes[XM_BOOTSTRAP_HELLO_SIZE];
    size_t length = xm_bootstrap_hello_encode(&hello, bytes);

    ck_assert_uint_eq(length, 16 + 32 + 14 + 4);
    ck_assert_xm_ok(xm_bootstrap_hello_decode(bytes, length, &decoded));
    ck_assert_mem_eq(decoded.nonce, hello.nonce, sizeof(hello.nonce));
    ck_assert_mem_eq(decoded.proof, hello.proof, sizeof(hello.proof));
    ck_assert_int_eq(decoded.identity.rank, 2);
    ck_assert_str_eq(decoded.identity.host, "node");
    for (size_t cut = 0; cut < length; ++cut) {
        ck_assert_int_eq(xm_bootstrap_hello_decode(bytes, cut, &decoded), XM_ERR_CORRUPT);
    }
    length = xm_bootstrap_welcome_encode(&welcome, bytes);
    ck_assert_uint_eq(length, 32 + 14 + 4);
    ck_assert_xm_ok(xm_bootstrap_welcome_decode(bytes, length, &decoded_welcome));
    ck_assert_mem_eq(decoded_welcome.proof, welcome.proof, sizeof(welcome.proof));
    ck_assert_int_eq(decoded_welcome.identity.pid, 77);
    for (size_t cut = 0; cut < length; ++cut) {
        ck_assert_int_eq(xm_bootstrap_welcome_decode(bytes, cut, &decoded_welcome), XM_ERR_CORRUPT);
    }
}
END_TEST

START_TEST(cards_survive_and_are_checked)
{
    xm_bootstrap_card_t card = {.port = 54321, .secret = "a secret of 128", .count = 2}, decoded;
    uint8_t bytes[XM_BOOTSTRAP_CARD_SIZE];

    memset(card.addresses[0], 7, 16);
    memset(card.addresses[1], 9, 16);
    xm_bootstrap_card_encode(&card, bytes);
    ck_assert_xm_ok(xm_bootstrap_card_decode(bytes, &decoded));
    ck_assert_int_eq(decoded.port, 54321);
    ck_assert_int_eq(decoded.count, 2);
    ck_assert_mem_eq(decoded.secret, card.secret, sizeof(card.secret));
    ck_assert_mem_eq(decoded.addresses, card.addresses, sizeof(card.addresses));
    bytes[2] = XM_BOOTSTRAP_CARD_ADDRESSES + 1;
    ck_assert_xm_fails(xm_bootstrap_card_decode(bytes, &decoded), XM_ERR_CORRUPT, "9 addresses");
}
END_TEST

START_TEST(lengths_must_fill_their_payload)
{
    uint8_t bytes[12 + 5] = {0};
    size_t offsets[4];

    xm_bootstrap_length_encode(2, bytes);
    xm_bootstrap_length_encode(0, bytes + 4);
    xm_bootstrap_length_encode(3, bytes + 8);
    ck_assert_xm_ok(xm_bootstrap_lengths_decode(bytes, sizeof(bytes), 3, offsets));
    ck_assert_uint_eq(offsets[0], 0);
    ck_assert_uint_eq(offsets[1], 2);
    ck_assert_uint_eq(offsets[2], 2);
    ck_assert_uint_eq(offsets[3], 5);
    for (size_t cut = 0; cut < sizeof(bytes); ++cut) {
        ck_assert_int_eq(xm_bootstrap_lengths_decode(bytes, cut, 3, offsets), XM_ERR_CORRUPT);
    }
    xm_bootstrap_length_encode(UINT32_MAX, bytes);
    xm_bootstrap_length_encode(UINT32_MAX, bytes + 4);
    ck_assert_int_eq(xm_bootstrap_lengths_decode(bytes, sizeof(bytes), 3, offsets), XM_ERR_CORRUPT);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("bootstrap_wire");
    TCase *tcase = tcase_create("all");

    tcase_add_test(tcase, header_survives);
    tcase_add_test(tcase, bad_headers_are_refused);
    tcase_add_test(tcase, the_fuzzers_seeds_are_of_this_version);
    tcase_add_test(tcase, lengths_have_limits);
    tcase_add_test(tcase, identity_survives);
    tcase_add_test(tcase, absurd_identities_are_refused);
    tcase_add_loop_test(tcase, challenges_survive_and_are_checked, 0, 2);
    tcase_add_test(tcase, hellos_and_welcomes_survive_and_are_checked);
    tcase_add_test(tcase, cards_survive_and_are_checked);
    tcase_add_test(tcase, lengths_must_fill_their_payload);
    tcase_add_test(tcase, faults_survive_and_are_checked);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
