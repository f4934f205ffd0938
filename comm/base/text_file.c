/* SPDX-License-Identifier: Apache-2.0 */
/* Whole files, read and replaced. A file is written beside its place and renamed, so a reader
 * sees the old or the new one and never half of it, and a crash leaves the old one. Profiles
 * and plans are also synced to the disk; metrics are not, for they are written every second and
 * nobody misses one. And figures, which are texts. */
#include "comm/base/text_file.h"

#include <errno.h>
#include <math.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/base/text.h"

/* A write may take less than it was given or be interrupted by a signal; neither is an error. */
static xm_status_t write_all(int fd, const char *text, size_t length)
{
    while (length > 0) {
        ssize_t written = write(fd, text, length);

        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written < 0) {
            return XM_ERR_IO;
        }
        text += written;
        length -= (size_t)written;
    }
    return XM_OK;
}

/* A process of the same number that crashed may have left one. Opening what is there could empty
 * somebody's file behind a symbolic link, so it is removed and made again. */
xm_status_t xm_file_beside(const char *path, char temporary[PATH_MAX], int *fd)
{
    if (snprintf(temporary, PATH_MAX, "%s.%d.tmp", path, (int)getpid()) >= PATH_MAX) {
        errno = ENAMETOOLONG;
        return XM_INVALID("path of %zu bytes is too long", strlen(path));
    }
    for (int attempt = 0; attempt < 2; ++attempt) {
        *fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (*fd >= 0) {
            return XM_OK;
        }
        if (errno != EEXIST || unlink(temporary) != 0) {
            break;
        }
    }
    return xm_error_set(XM_ERR_IO, "%s: %s", path, strerror(errno));
}

/* Writes @p text beside the file and renames it. The temporary name has the process's number,
 * so two writers do not share one; it is removed after a failure. */
static xm_status_t replace(const char *path, const char *text, size_t length, bool durable)
{
    char temporary[PATH_MAX];
    int fd;
    xm_status_t status = XM_OK;

    XM_TRY(xm_file_beside(path, temporary, &fd));
    if (write_all(fd, text, length) < 0 ||
        (durable && (write_all(fd, "\n", 1) < 0 || fsync(fd) != 0))) {
        status = xm_error_set(XM_ERR_IO, "%s: %s", path, strerror(errno));
        (void)close(fd);
        goto remove_temporary;
    }
    /* Some file systems report a full disk only at close, so the rename must wait for it. */
    if (close(fd) != 0 || rename(temporary, path) != 0) {
        status = xm_error_set(XM_ERR_IO, "%s: %s", path, strerror(errno));
        goto remove_temporary;
    }
    return XM_OK;

remove_temporary:
    (void)unlink(temporary);
    return status;
}

xm_status_t xm_text_save(const char *path, const char *text)
{
    return replace(path, text, strlen(text), true);
}

xm_status_t xm_text_replace(const char *path, const char *text, size_t length)
{
    return replace(path, text, length, false);
}

/* Asks for permission and returns an errno value: opening what is there would empty it, or end
 * the stream of a named pipe. What is not there is made beside its place and removed, for file
 * systems such as /proc refuse new files to everybody, whatever their permissions say. */
static int cannot_write(const char *path)
{
    char temporary[PATH_MAX];
    struct stat file;
    int fd;

    if (stat(path, &file) == 0) {
        if (S_ISDIR(file.st_mode)) {
            return EISDIR;
        }
        return faccessat(AT_FDCWD, path, W_OK, AT_EACCESS) == 0 ? 0 : errno;
    }
    if (errno != ENOENT || path[0] == '\0') {
        return errno;
    }
    if (xm_file_beside(path, temporary, &fd) < 0) {
        return errno;
    }
    (void)close(fd);
    (void)unlink(temporary);
    return 0;
}

xm_status_t xm_file_check_output(const char *option, const char *path)
{
    int reason = path != NULL ? cannot_write(path) : 0;

    return reason == 0 ? XM_OK
                       : XM_INVALID("%s: cannot write '%s': %s", option, path, strerror(reason));
}

/* A path that is wrong is its giver's mistake; an exhausted or broken machine is not. A file that
 * is missing has a status of its own, because callers often have a default for it. */
static xm_status_t cannot_read(const char *path, int reason)
{
    bool broken = reason == EIO || reason == EMFILE || reason == ENFILE || reason == ENOMEM;
    xm_status_t status = reason == ENOENT ? XM_ERR_NOT_FOUND
                         : broken         ? XM_ERR_IO
                                          : XM_ERR_INVALID_ARGUMENT;

    return xm_error_set(status, "cannot read %s: %s", path,
                        reason == ENXIO ? "no regular file" : strerror(reason));
}

/* Opened without waiting for the other end of a named pipe, and looked at through the descriptor,
 * so that nothing can be exchanged in between. Standard input is the caller's own, and may be a
 * pipe. */
xm_status_t xm_file_open(const char *path, uint64_t largest, int *fd, size_t *size)
{
    bool standard = strcmp(path, "/dev/stdin") == 0;
    int opened = standard ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0)
                          : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat about;
    char limit[32];
    xm_status_t status;

    if (opened < 0) {
        return cannot_read(path, errno);
    }
    if (fstat(opened, &about) != 0) {
        status = cannot_read(path, errno);
    } else if (S_ISDIR(about.st_mode)) {
        status = cannot_read(path, EISDIR);
    } else if (!S_ISREG(about.st_mode) && !standard) {
        status = cannot_read(path, ENXIO);
    } else if (S_ISREG(about.st_mode) && (uint64_t)about.st_size > largest) {
        status = XM_UNSUPPORTED("cannot read %s: larger than %s", path,
                                xm_text_format_bytes(largest, limit, sizeof(limit)));
    } else {
        *fd = opened;
        *size = S_ISREG(about.st_mode) ? (size_t)about.st_size : 0;
        return XM_OK;
    }
    (void)close(opened);
    return status;
}

/* Reads up to @p room bytes; fewer only at the end. */
static xm_status_t read_piece(int fd, const char *path, char *bytes, size_t room, size_t *got)
{
    *got = 0;
    while (*got < room) {
        ssize_t more = read(fd, bytes + *got, room - *got);

        if (more < 0 && errno == EINTR) {
            continue;
        }
        if (more < 0) {
            return cannot_read(path, errno);
        }
        if (more == 0) {
            break;
        }
        *got += (size_t)more;
    }
    return XM_OK;
}

/* Reads to the end, whatever size the file system tells: pipes have none, nor have files of /proc.
 */
static xm_status_t read_all(int fd, const char *path, size_t size, char **text, size_t *length)
{
    size_t capacity = size + 2, used = 0, got = 1;
    char *buffer = NULL;
    xm_status_t status = XM_OK;

    while (status == XM_OK && got > 0) {
        char *larger;

        capacity = used + 1 < capacity ? capacity : 2 * capacity + (1 << 14);
        larger = realloc(buffer, capacity);
        if (larger == NULL) {
            status = xm_error_set(XM_ERR_NO_MEMORY, "%s: no memory for its text", path);
            break;
        }
        buffer = larger;
        /* One byte is kept free for the terminator. */
        status = read_piece(fd, path, buffer + used, capacity - 1 - used, &got);
        used += got;
        if (status == XM_OK && used > XM_TEXT_LARGEST) {
            status =
                XM_UNSUPPORTED("cannot read %s: larger than %d MiB", path, XM_TEXT_LARGEST >> 20);
        }
    }
    if (status < 0) {
        free(buffer);
        return status;
    }
    buffer[used] = '\0';
    *text = buffer;
    *length = used;
    return XM_OK;
}

xm_status_t xm_text_load(const char *path, char **text, size_t *length)
{
    size_t size;
    int fd;
    xm_status_t status = xm_file_open(path, XM_TEXT_LARGEST, &fd, &size);

    if (status == XM_OK) {
        status = read_all(fd, path, size, text, length);
        (void)close(fd);
    }
    return status;
}

xm_status_t xm_file_create(const char *path, FILE **file)
{
    *file = fopen(path, "wbe");
    return *file != NULL ? XM_OK
                         : xm_error_set(XM_ERR_IO, "cannot write %s: %s", path, strerror(errno));
}

/* Errors of a stream may show only when its buffer is flushed. */
xm_status_t xm_file_close(FILE *file, const char *path, xm_status_t status)
{
    bool failed = ferror(file) != 0;

    failed = fclose(file) != 0 || failed;
    return status == XM_OK && failed
               ? xm_error_set(XM_ERR_IO, "cannot write %s: %s", path, strerror(errno))
               : status;
}

void xm_svg_begin(FILE *file, int width, int height, const char *title)
{
    (void)fprintf(file,
                  "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                  "viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"12\" "
                  "fill=\"#222\">\n<title>",
                  width, height, width, height);
    xm_text_put_xml(file, title);
    (void)fprintf(file, "</title>\n<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n", width,
                  height);
}

void xm_svg_text(FILE *file, double x, double y, int size, const char *anchor, const char *format,
                 ...)
{
    char text[512];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    (void)fprintf(file, "<text x=\"%.1f\" y=\"%.1f\" font-size=\"%d\" text-anchor=\"%s\">", x, y,
                  size, anchor);
    xm_text_put_xml(file, text);
    (void)fputs("</text>\n", file);
}

const char *xm_svg_time_unit(int64_t end_ns, double *unit_ns)
{
    if (end_ns >= 2000000) {
        *unit_ns = end_ns >= 2000000000 ? 1e9 : 1e6;
        return end_ns >= 2000000000 ? "s" : "ms";
    }
    *unit_ns = 1e3;
    return "us";
}

/* The step of 1, 2 or 5 times a power of ten that gives at most ten ticks. */
static double tick_step(double range)
{
    double power = pow(10, floor(log10(range / 10)));

    return range / power <= 10         ? power
           : range / (2 * power) <= 10 ? 2 * power
           : range / (5 * power) <= 10 ? 5 * power
                                       : 10 * power;
}

void xm_svg_time_axis(FILE *file, int left, int width, double top, double bottom, int64_t end_ns,
                      const char *label)
{
    double unit_ns, range, step;
    const char *unit = xm_svg_time_unit(end_ns, &unit_ns);

    range = (double)end_ns / unit_ns;
    step = tick_step(range);
    for (int i = 0; i * step <= range * (1 + 1e-9); ++i) {
        double x = left + width * i * step / range;

        (void)fprintf(file,
                      "<line x1=\"%.2f\" y1=\"%.2f\" x2=\"%.2f\" y2=\"%.2f\" stroke=\"#bbbbbb\" "
                      "stroke-width=\"0.6\"/>\n",
                      x, top, x, bottom + 4);
        xm_svg_text(file, x, bottom + 18, 12, "middle", "%g", i * step);
    }
    xm_svg_text(file, left + width / 2.0, bottom + 36, 12, "middle", "%s (%s)", label, unit);
}
