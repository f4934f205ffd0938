/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/fault/siphash.h"

#include "xm_test.h"

/* The example of the paper's appendix A, and its neighbours from the authors' table. */
START_TEST(known_answers)
{
    uint8_t key[XM_SIPHASH_KEY_SIZE], bytes[16];

    for (uint8_t i = 0; i < 16; ++i) {
        key[i] = bytes[i] = i;
    }
    ck_assert_uint_eq(xm_siphash(key, bytes, 15), UINT64_C(0xa129ca6149be45e5));
    ck_assert_uint_eq(xm_siphash(key, bytes, 0), UINT64_C(0x726fdb47dd0e0e31));
    ck_assert_uint_eq(xm_siphash(key, bytes, 8), UINT64_C(0x93f5f5799a932462));
    key[15] ^= 1;
    ck_assert_uint_ne(xm_siphash(key, bytes, 15), UINT64_C(0xa129ca6149be45e5));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("siphash");
    TCase *tcase = tcase_create("hash");

    tcase_add_test(tcase, known_answers);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
