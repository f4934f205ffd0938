/* SPDX-License-Identifier: Apache-2.0 */
/* Whole files, read and replaced. A file is written beside its place and renamed, so a reader
 * sees the old or the new one and never half of it, and a crash leaves the old one. Profiles
 * and plans are also synced to the disk; metrics are not, for they are written every second and
 * nobody misses one. And figures, which are texts. */
#include "comm/base/text_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/base/text.h"

/* A device file or a wrong path could otherwise fill the memory. */
static const size_t largest = (size_t)256 << 20;

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

/* Writes @p text beside the file and renames it. The temporary name has the process's number,
 * so two writers do not share one; it is removed after a failure. */
static xm_status_t replace(const char *path, const char *text, size_t length, bool durable)
{
    char temporary[PATH_MAX];
    xm_status_t status;
    int fd;

    if (snprintf(temporary, sizeof(temporary), "%s.%d.tmp", path, (int)getpid()) >=
        (int)sizeof(temporary)) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "path of %zu bytes is too long", strlen(path));
    }
    fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        return xm_error_set(XM_ERR_IO, "%s: %s", path, strerror(errno));
    }
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

/* Reads to the end, whatever size the file system tells: pipes have none. More than 256 MiB is
 * no document of ours. */
static xm_status_t read_all(FILE *file, const char *path, char **text, size_t *length)
{
    size_t capacity = 1 << 14, used = 0;
    char *buffer = malloc(capacity);

    while (buffer != NULL) {
        char *larger;

        /* One byte is kept free for the terminator. */
        used += fread(buffer + used, 1, capacity - 1 - used, file);
        if (used < capacity - 1) {
            break;
        }
        if (capacity > largest) {
            free(buffer);
            return xm_error_set(XM_ERR_UNSUPPORTED, "%s: larger than %zu bytes", path, largest);
        }
        capacity *= 2;
        larger = realloc(buffer, capacity);
        if (larger == NULL) {
            free(buffer);
        }
        buffer = larger;
    }
    if (buffer == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "%s: no memory for its text", path);
    }
    if (ferror(file)) {
        free(buffer);
        return xm_error_set(XM_ERR_IO, "%s: cannot be read", path);
    }
    buffer[used] = '\0';
    *text = buffer;
    *length = used;
    return XM_OK;
}

/* A file that is missing has a status of its own, because callers often have a default for it. */
xm_status_t xm_text_load(const char *path, char **text, size_t *length)
{
    FILE *file = fopen(path, "re");
    xm_status_t status;

    if (file == NULL) {
        return xm_error_set(errno == ENOENT ? XM_ERR_NOT_FOUND : XM_ERR_IO, "%s: %s", path,
                            strerror(errno));
    }
    status = read_all(file, path, text, length);
    (void)fclose(file);
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
