/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines: one write() for each, so lines of several processes that share a file do not mix,
 * and no lock is held. The level test is made before anything is formatted. The rank is taken
 * from the launcher's variables at first and from the worker later; with a rank in the file's
 * name the file is then exchanged under the same descriptor. Logging must not change the
 * thread's last error, which is often what is being logged. */
#include "comm/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "comm/base/config.h"
#include "comm/base/log_filter.h"
#include "comm/base/path_pattern.h"

enum { LINE_SIZE = 2048, PREFIX_SIZE = 256 };

static pthread_once_t once = PTHREAD_ONCE_INIT;
static xm_log_filter_t filter;
static int log_fd = STDERR_FILENO;
static char host[64];
static atomic_int own_rank = -1, file_rank = -1; /* -1: none */

static const char *const level_names[XM_LOG_LEVEL_COUNT] = {"ERROR", "WARN", "INFO", "DEBUG",
                                                            "TRACE"};

/* The rank that a launcher gave this process; -1: none. It sets no error, unlike
 * xm_job_env_read(): what is being logged may be the last one. */
static int launched_rank(void)
{
    static const char *const names[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID",
                                        "PMIX_RANK"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); ++i) {
        const char *text = getenv(names[i]);
        char *end = NULL;
        long rank = text != NULL ? strtol(text, &end, 10) : -1;

        if (rank >= 0 && rank <= INT_MAX && end != text && *end == '\0') {
            return (int)rank;
        }
    }
    return -1;
}

static void format_prefix(xm_log_level_t level, char *prefix)
{
    int rank = atomic_load_explicit(&own_rank, memory_order_relaxed);
    struct timespec now;
    char of_rank[32] = "";

    (void)clock_gettime(CLOCK_REALTIME, &now);
    if (rank >= 0) {
        (void)snprintf(of_rank, sizeof(of_rank), " rank %d", rank);
    }
    (void)snprintf(prefix, PREFIX_SIZE, "[%lld.%06ld] %s:%d%s %s", (long long)now.tv_sec,
                   now.tv_nsec / 1000, host, (int)getpid(), of_rank, level_names[level]);
}

/* Opens the file that lines go to now; -1: it cannot be opened, which standard error is told. A
 * name that others can foresee may be their link to somebody's file, so links are not followed but
 * those of the system, such as /dev/stderr. */
static int open_file(const char *pattern)
{
    char path[PATH_MAX], prefix[PREFIX_SIZE];
    int fd = -1, links = strncmp(pattern, "/dev/", strlen("/dev/")) == 0 ? 0 : O_NOFOLLOW;

    errno = EINVAL;
    atomic_store(&file_rank, atomic_load(&own_rank));
    if (xm_path_pattern_expand(pattern, atomic_load(&file_rank), host, path, sizeof(path))) {
        fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | links, 0644);
    }
    if (fd < 0) {
        int error = errno;

        format_prefix(XM_LOG_WARN, prefix);
        (void)dprintf(STDERR_FILENO, "%s XM_LOG_FILE=%s cannot be opened: %s\n", prefix, pattern,
                      strerror(error));
    }
    return fd;
}

/* Runs once, before the first line. */
static void initialise(void)
{
    const char *pattern = xm_config_string(XM_CONFIG_LOG_FILE);
    const char *named = xm_config_string(XM_CONFIG_HOST), *bad;
    int fd, length, unknown = -1;

    /* A malformed text means the default; xm_config_check() is what complains about it. */
    (void)xm_log_filter_parse(xm_config_string(XM_CONFIG_LOG), &filter, &bad, &length);
    if (named[0] != '\0') {
        (void)snprintf(host, sizeof(host), "%s", named);
    } else if (gethostname(host, sizeof(host)) != 0) {
        (void)snprintf(host, sizeof(host), "?");
    }
    host[sizeof(host) - 1] = '\0';
    (void)atomic_compare_exchange_strong(&own_rank, &unknown, launched_rank());
    if (pattern[0] != '\0') {
        fd = open_file(pattern);
        log_fd = fd >= 0 ? fd : log_fd;
    }
}

/* A worker knows its rank now. If the file's name has it, the new file takes the old one's
 * descriptor, so that threads that are logging need no lock. */
void xm_log_set_rank(int rank)
{
    const char *pattern = xm_config_string(XM_CONFIG_LOG_FILE);
    int fd;

    atomic_store(&own_rank, rank);
    (void)pthread_once(&once, initialise);
    if (atomic_load(&file_rank) == rank || log_fd == STDERR_FILENO ||
        !xm_path_pattern_has(pattern, 'r')) {
        return;
    }
    fd = open_file(pattern);
    if (fd >= 0) {
        /* Lines that are being written at this moment go to one file or the other. */
        (void)dup3(fd, log_fd, O_CLOEXEC);
        (void)close(fd);
    }
}

/* The cheap test that callers make first. */
bool xm_log_writes(xm_log_level_t level, const char *file)
{
    (void)pthread_once(&once, initialise);
    return level <= filter.level[xm_log_subject_of(file)];
}

/* The file with its room, as "ucx/rail.c": names of files repeat from room to room. */
static const char *short_path(const char *file)
{
    const char *at = strrchr(file, '/');

    while (at != NULL && at > file && at[-1] != '/') {
        --at;
    }
    return at != NULL ? at : file;
}

/* A line that is too long is cut; it always ends with a line feed. */
void xm_log_write(xm_log_level_t level, const char *file, int line, const char *format, ...)
{
    char text[LINE_SIZE], prefix[PREFIX_SIZE];
    va_list args;
    int length;

    if (!xm_log_writes(level, file)) {
        return;
    }
    format_prefix(level, prefix);
    length = snprintf(text, sizeof(text), "%s %s:%d ", prefix, short_path(file), line);
    va_start(args, format);
    length += vsnprintf(text + length, sizeof(text) - (size_t)length, format, args);
    va_end(args);
    if (length > LINE_SIZE - 2) {
        length = LINE_SIZE - 2;
    }
    text[length] = '\n';
    if (write(log_fd, text, (size_t)length + 1) < 0) {
        return; /* there is nowhere left to report a log that cannot be written */
    }
}
