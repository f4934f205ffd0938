/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes in a file of `--layers`: refused with a sentence, or names without blanks around them,
 * each of which stands in the file. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "planner/cli/layers_option.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ap_layers_option_t option = {0};
    ap_layering_t how = {0};
    char path[32];
    int fd = memfd_create("layers", MFD_CLOEXEC);

    if (fd < 0 || write(fd, data, size) != (ssize_t)size) {
        abort();
    }
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (ap_layers_option_read(path, NULL, &option, &how) == XM_OK) {
        for (size_t m = 0; m < (size_t)how.mark_count; ++m) {
            size_t length = strlen(how.marks[m]);

            if (length == 0 || how.marks[m][0] == ' ' || how.marks[m][length - 1] == ' ' ||
                memmem(data, size, how.marks[m], length) == NULL) {
                abort();
            }
        }
    } else if (strstr(xm_last_error(), "--layers") == NULL) {
        abort();
    }
    ap_layers_option_clear(&option);
    (void)close(fd);
    return 0;
}
