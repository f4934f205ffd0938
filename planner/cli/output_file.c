/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes an output of a command so that a reader never sees half of it: the text goes to a
 * temporary file in the same directory, which then takes the place of the target by rename(), and
 * rename() is atomic only inside one file system. A failure leaves the old file untouched. What is
 * not a regular file, such as a pipe or /dev/stdout, cannot be replaced by another file and is
 * written in place.
 */

#include "planner/cli/output_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Writes one file from beginning to end, and closes it. Messages use the name that the user gave,
 * not that of the temporary file. */
static xm_status_t put_file(int fd, const char *name, ap_output_put_t *put, const void *context)
{
    FILE *stream = fd >= 0 ? fdopen(fd, "wb") : NULL;

    return stream != NULL ? xm_file_close(stream, name, put(context, stream))
                          : xm_error_set(XM_ERR_IO, "cannot write %s: %s", name, strerror(errno));
}

xm_status_t ap_output_file_write(const char *path, ap_output_put_t *put, const void *context)
{
    char real[PATH_MAX], temporary[PATH_MAX];
    const char *target = path;
    struct stat there;
    bool exists = stat(path, &there) == 0;
    int fd;
    xm_status_t status;

    if (exists && !S_ISREG(there.st_mode)) {
        return put_file(open(path, O_WRONLY | O_TRUNC | O_CLOEXEC), path, put, context);
    }
    /* A symbolic link stays a link: the file that it points to is replaced, and the temporary file
     * must therefore lie beside that one. */
    if (exists && realpath(path, real) != NULL) {
        target = real;
    }
    /* The number of the process keeps two commands that write the same target out of each other's
     * temporary file; the one that finishes last wins, with a whole file. */
    status = xm_file_beside(target, temporary, &fd);
    if (status != XM_OK) {
        return xm_error_prefix(status, "cannot write");
    }
    status = put_file(fd, path, put, context);
    if (status == XM_OK && exists && chmod(temporary, there.st_mode & 07777) != 0) {
        status = xm_error_set(XM_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    }
    if (status == XM_OK && rename(temporary, target) != 0) {
        status = xm_error_set(XM_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    }
    if (status != XM_OK) {
        (void)unlink(temporary);
    }
    return status;
}
