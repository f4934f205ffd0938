/* SPDX-License-Identifier: Apache-2.0 */
/* What two ranks say they intend to do, as any bytes: the sentence about the first difference. The
 * first byte says where the second description begins, in 256ths; equal ones and those of another
 * version are told from others. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "resharding/reshard/agree.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char *copy(const uint8_t *data, size_t size)
{
    char *exact = malloc(size > 0 ? size : 1); /* reading past it is found */

    if (exact == NULL) {
        abort();
    }
    memcpy(exact, data, size);
    return exact;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 0) {
        size_t rest = size - 1, length = rest * data[0] / 256;
        char *first = copy(data + 1, length), *other = copy(data + 1 + length, rest - length);

        if (xm_agree_difference(3, first, length, other, rest - length) != XM_ERR_MISMATCH ||
            strstr(xm_last_error(), "rank 3") == NULL) {
            abort();
        }
        free(first);
        free(other);
    }
    return 0;
}
