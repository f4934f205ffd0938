/* SPDX-License-Identifier: Apache-2.0 */
#include "xm_test.h"

#include <stdio.h>

/* libcheck gives a test four seconds of the wall clock where nothing else is said, which a busy
 * machine may take for anything. Cases take the setting when they are made, so it is made before
 * main(). */
__attribute__((constructor)) static void be_patient(void)
{
    (void)setenv("CK_DEFAULT_TIMEOUT", "60", 0);
}

int xm_test_run(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    int failed;

    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

int xm_test_rounds(int all)
{
    const char *given = getenv("TEST_SHARE");
    int share = given != NULL ? atoi(given) : 1;

    return share > 1 && all > share ? all / share : share > 1 ? 1 : all;
}

const char *xm_test_source_path(const char *relative)
{
    static char path[4096];
    const char *root = getenv("SOURCE_DIR");

    (void)snprintf(path, sizeof(path), "%s/%s", root != NULL ? root : ".", relative);
    return path;
}
