#include "comm/log.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "comm/config.h"

enum { LINE_SIZE = 2048 };

static pthread_once_t once = PTHREAD_ONCE_INIT;
static xm_log_level_t threshold = XM_LOG_WARN;
static int log_fd = STDERR_FILENO;
static char host[64];

static const char *const level_names[] = {"ERROR", "WARN", "INFO", "DEBUG"};

static void initialise(void)
{
    const char *path = xm_config_string(XM_CONFIG_LOG_FILE);

    threshold = (xm_log_level_t)xm_config_choice(XM_CONFIG_LOG_LEVEL);
    if (gethostname(host, sizeof(host)) != 0) {
        (void)snprintf(host, sizeof(host), "?");
    }
    host[sizeof(host) - 1] = '\0';
    if (path[0] != '\0') {
        int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);

        if (fd >= 0) {
            log_fd = fd;
        }
    }
}

bool xm_log_enabled(xm_log_level_t level)
{
    (void)pthread_once(&once, initialise);
    return level <= threshold;
}

void xm_log_write(xm_log_level_t level, const char *file, int line, const char *format, ...)
{
    char text[LINE_SIZE];
    const char *base = strrchr(file, '/');
    struct timespec now;
    va_list args;
    int length;

    if (!xm_log_enabled(level)) {
        return;
    }
    (void)clock_gettime(CLOCK_REALTIME, &now);
    length = snprintf(text, sizeof(text), "[%lld.%06ld] %s:%d %s %s:%d ", (long long)now.tv_sec,
                      now.tv_nsec / 1000, host, (int)getpid(), level_names[level],
                      base != NULL ? base + 1 : file, line);
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
