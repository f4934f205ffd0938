/*
 * Maps a model's file. Dumps of real models hold literals of many megabytes that no rule looks at;
 * a private read-only mapping lets the parser skip them without the pages ever being read.
 */

#include "planner/frontend/common/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

xm_status_t ap_frontend_file_map(const char *path, const char *format, ap_frontend_file_t *file)
{
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    struct stat about;
    void *text;
    xm_status_t status;

    if (descriptor < 0 || fstat(descriptor, &about) != 0) {
        status = xm_error_set(XM_ERR_NOT_FOUND, "cannot read %s: %s", path, strerror(errno));
        if (descriptor >= 0) {
            (void)close(descriptor);
        }
        return status;
    }
    /* Mapping nothing fails with a sentence that would not help, and a pipe cannot be mapped. */
    if (!S_ISREG(about.st_mode) || about.st_size == 0) {
        (void)close(descriptor);
        return xm_error_set(XM_ERR_PARSE, "%s is %s, not %s", path,
                            S_ISREG(about.st_mode) ? "empty" : "no regular file", format);
    }
    text = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    (void)close(descriptor);
    if (text == MAP_FAILED) {
        return xm_error_set(XM_ERR_IO, "cannot map %s: %s", path, strerror(errno));
    }
    file->bytes = text;
    file->size = (size_t)about.st_size;
    return XM_OK;
}

void ap_frontend_file_unmap(ap_frontend_file_t *file)
{
    (void)munmap(file->bytes, file->size);
}
