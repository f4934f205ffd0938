/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Element types by name. The sizes are all that moving needs; the names are those of
 * numpy and torch.
 */
#include "bench/cases/dtype.h"

#include "comm/base.h"

static const char *const names[] = {"int8",     "uint8", "bool",      "float16",
                                    "bfloat16", "int32", "float32",   "int64",
                                    "float64",  "int16", "complex64", "complex128"};
static const int64_t sizes[] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 8, 16};

xm_status_t rb_dtype_parse(const char *name, int64_t *bytes)
{
    int index;
    xm_status_t status =
        xm_text_choose("dtype", name, names, sizeof(names) / sizeof(names[0]), &index);

    if (status == XM_OK) {
        *bytes = sizes[index];
    }
    return status;
}
