/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Maps a model's file. Dumps of real models hold literals of many megabytes that no rule looks at;
 * a private read-only mapping lets the parser skip them without the pages ever being read.
 */

#include "planner/frontend/common/file.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

xm_status_t ap_frontend_file_map(const char *path, const char *format, ap_frontend_file_t *file)
{
    int descriptor;
    size_t size;
    void *text;

    XM_TRY(xm_file_open(path, XM_FILE_LARGEST, &descriptor, &size));
    /* Mapping nothing fails with a sentence that would not help. */
    if (size == 0) {
        (void)close(descriptor);
        return XM_MALFORMED("%s is empty, not %s", path, format);
    }
    text = mmap(NULL, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    (void)close(descriptor);
    if (text == MAP_FAILED) {
        return xm_error_set(XM_ERR_IO, "cannot map %s: %s", path, strerror(errno));
    }
    file->bytes = text;
    file->size = size;
    return XM_OK;
}

void ap_frontend_file_unmap(ap_frontend_file_t *file)
{
    (void)munmap(file->bytes, file->size);
}
