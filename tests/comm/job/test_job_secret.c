/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/job/job_secret.h"

#include <ctype.h>
#include <stdio.h>

#include "xm_test.h"

static const uint8_t one[XM_JOB_NONCE_SIZE] = "nonce number 01",
                     two[XM_JOB_NONCE_SIZE] = "nonce number 02";

START_TEST(a_proof_is_an_hmac)
{
    /* HMAC-SHA256 of "Hi" with its NUL, both nonces and "There"; computed with Python's hmac. */
    static const char expected[] =
        "0216aa3fc594c1db5b784377f47c3b0328095459e27e02feff3b742274822c70";
    xm_job_secret_t secret;
    uint8_t key[20], proof[XM_JOB_PROOF_SIZE];
    char text[2 * XM_JOB_PROOF_SIZE + 1];

    memset(key, 0x0b, sizeof(key));
    xm_job_secret_set(&secret, key, sizeof(key));
    xm_job_secret_prove(&secret, "Hi", one, two, "There", 5, proof);
    for (size_t i = 0; i < sizeof(proof); ++i) {
        (void)snprintf(text + 2 * i, 3, "%02x", proof[i]);
    }
    ck_assert_str_eq(text, expected);
}
END_TEST

/* Each thing that goes into a proof changes it. */
START_TEST(a_proof_depends_on_everything)
{
    xm_job_secret_t secret, other;
    uint8_t proof[XM_JOB_PROOF_SIZE], again[XM_JOB_PROOF_SIZE];

    xm_job_secret_set(&secret, "correct horse battery staple", 28);
    xm_job_secret_set(&other, "correct horse battery stapler", 29);
    xm_job_secret_prove(&secret, "rank", one, two, "message", 7, proof);
    xm_job_secret_prove(&secret, "rank", one, two, "message", 7, again);
    ck_assert(xm_job_secret_equal(proof, again));
    xm_job_secret_prove(&other, "rank", one, two, "message", 7, again);
    ck_assert(!xm_job_secret_equal(proof, again));
    xm_job_secret_prove(&secret, "root", one, two, "message", 7, again);
    ck_assert(!xm_job_secret_equal(proof, again));
    xm_job_secret_prove(&secret, "rank", two, one, "message", 7, again);
    ck_assert(!xm_job_secret_equal(proof, again));
    xm_job_secret_prove(&secret, "rank", one, two, "messagf", 7, again);
    ck_assert(!xm_job_secret_equal(proof, again));
    xm_job_secret_prove(&secret, "rank", one, two, "message", 6, again);
    ck_assert(!xm_job_secret_equal(proof, again));
    memcpy(again, proof, sizeof(again));
    again[XM_JOB_PROOF_SIZE - 1] ^= 1;
    ck_assert(!xm_job_secret_equal(proof, again));
}
END_TEST

START_TEST(made_secrets_differ)
{
    char first[XM_JOB_SECRET_TEXT_SIZE], second[XM_JOB_SECRET_TEXT_SIZE];
    xm_job_secret_t secret;

    ck_assert_xm_ok(xm_job_secret_make(first));
    ck_assert_xm_ok(xm_job_secret_make(second));
    ck_assert_str_ne(first, second);
    ck_assert_uint_eq(strlen(first), 32);
    for (const char *c = first; *c != '\0'; ++c) {
        ck_assert(isxdigit((unsigned char)*c));
    }
    ck_assert_int_eq(setenv("XM_JOB_SECRET", first, 1), 0);
    ck_assert_xm_ok(xm_job_secret_read(&secret));
    ck_assert_uint_eq(secret.length, 32);
    ck_assert_mem_eq(secret.bytes, first, 32);
    ck_assert_int_eq(unsetenv("XM_JOB_SECRET"), 0);
    ck_assert_xm_ok(xm_job_secret_read(&secret));
    ck_assert_uint_eq(secret.length, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("job_secret");
    TCase *tcase = tcase_create("all");

    (void)unsetenv("XM_JOB_SECRET"); /* that of all tests */
    tcase_add_test(tcase, a_proof_is_an_hmac);
    tcase_add_test(tcase, a_proof_depends_on_everything);
    tcase_add_test(tcase, made_secrets_differ);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
