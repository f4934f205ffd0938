/* SPDX-License-Identifier: Apache-2.0 */
/* Structs and pointers as callers give them. A struct's first member is its size as the caller
 * was compiled, which is what lets program and library be of different versions: an older
 * caller's struct is shorter, and its missing fields keep the library's defaults; a newer
 * caller's is longer, which is fine as long as the unknown part is zero, that is, asks for
 * nothing. */
#include "comm/base/params.h"

#include <string.h>

/* Reads struct_size of a caller's struct, which is its first member. A size of 0 means that the
 * struct was not initialised by its macro. */
static xm_status_t read_size(const char *function, const char *type, const void *given,
                             size_t known, size_t *size)
{
    if (xm_is_null(function, "params", given)) {
        return XM_ERR_INVALID_ARGUMENT;
    }
    memcpy(size, given, sizeof(*size));
    if (*size < sizeof(*size)) {
        return XM_INVALID("%s: struct_size of %s is %zu, not %zu: start from its _INIT macro",
                          function, type, *size, known);
    }
    return XM_OK;
}

/* Copies a caller's struct into one of this library's size. An unknown field that is not zero
 * is refused, since ignoring it would do something else than was asked for. */
xm_status_t xm_params_copy(const char *function, const char *type, void *own, size_t size,
                           const void *given)
{
    size_t theirs;

    XM_TRY(read_size(function, type, given, size, &theirs));
    for (size_t i = size; i < theirs; ++i) {
        if (((const unsigned char *)given)[i] != 0) {
            return XM_UNSUPPORTED("%s: %s has %zu bytes and this library knows %zu of them; byte "
                                  "%zu asks for something that only a newer library has",
                                  function, type, theirs, size, i);
        }
    }
    memcpy(own, given, theirs < size ? theirs : size);
    memcpy(own, &size, sizeof(size));
    return XM_OK;
}

/* The other direction: fills in a caller's struct. Fields that this library does not know
 * become zero. */
xm_status_t xm_info_copy(const char *function, const char *type, void *given, const void *own,
                         size_t size)
{
    size_t theirs, field = sizeof(theirs);

    XM_TRY(xm_is_null(function, "info", given) ? XM_ERR_INVALID_ARGUMENT
                                               : read_size(function, type, given, size, &theirs));
    memcpy((char *)given + field, (const char *)own + field,
           (theirs < size ? theirs : size) - field);
    if (theirs > size) {
        memset((char *)given + size, 0, theirs - size);
    }
    return XM_OK;
}

bool xm_report_null(const char *function, const char *arguments, size_t index)
{
    for (; index > 0; --index) {
        arguments += strcspn(arguments, ",") + 2; /* the comma and the space behind it */
    }
    (void)XM_INVALID("%s: %.*s is NULL", function, (int)strcspn(arguments, ","), arguments);
    return true;
}
