/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/comm/memory/cuda_case.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/memory/memory.h"
#include "comm/memory/cuda_driver.h"
#include "xm_test.h"

enum { MOST_DEVICES = 100 }; /* that an exit status tells */

int cuda_devices(void)
{
    int status = 1;
    pid_t child = fork();

    if (child == 0) {
        int count = 0;

        if (xm_memory_cuda_count(&count) < 0) {
            (void)printf("%s\n", xm_last_error());
        } else if (count == 0) {
            (void)printf("the CUDA driver knows no device\n");
        }
        (void)fflush(stdout);
        _exit(count < MOST_DEVICES ? count : MOST_DEVICES);
    }
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status)
               ? WEXITSTATUS(status)
               : 0;
}

bool cuda_is_there(void)
{
    return cuda_devices() > 0;
}

int cuda_run(Suite *suite)
{
    const char *chosen = getenv("CK_RUN_CASE");

    return chosen != NULL && strcmp(chosen, "cuda") == 0 && !cuda_is_there() ? CUDA_SKIPPED
                                                                             : xm_test_run(suite);
}

void cuda_fail(const char *faults)
{
    (void)setenv("CUDA_DOUBLE_FAIL", faults, 1);
}

static char log_path[64];

static void remove_log(void)
{
    (void)unlink(log_path);
}

void cuda_log(void)
{
    int fd;

    (void)snprintf(log_path, sizeof(log_path), "/tmp/cuda_case.XXXXXX");
    fd = mkstemp(log_path);
    (void)close(fd);
    (void)atexit(remove_log);
    (void)setenv("XM_LOG", "debug", 1);
    (void)setenv("XM_LOG_FILE", log_path, 1);
}

bool cuda_logged(const char *text)
{
    FILE *file = fopen(log_path, "r");
    char line[2048];
    bool found = false;

    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        found = found || strstr(line, text) != NULL;
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return found;
}

void cuda_copy_on_default_stream(const void *to, const void *from, size_t bytes)
{
    xm_memory_place_t place;
    xm_cuda_driver_t driver;
    void *context;

    xm_memory_recognise(&to, 1, &place);
    ck_assert(xm_cuda_driver_find(&driver));
    ck_assert_int_eq(driver.cuCtxPushCurrent_v2(place.context), XM_CU_SUCCESS);
    ck_assert_int_eq(
        driver.cuMemcpyAsync((uint64_t)(uintptr_t)to, (uint64_t)(uintptr_t)from, bytes, NULL),
        XM_CU_SUCCESS);
    ck_assert_int_eq(driver.cuCtxPopCurrent_v2(&context), XM_CU_SUCCESS);
    xm_cuda_driver_close(&driver);
}
