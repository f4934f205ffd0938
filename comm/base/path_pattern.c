/* SPDX-License-Identifier: Apache-2.0 */
/* Patterns in file names: %r the rank, %h the host, %p the process, %% a percent sign. They
 * exist because several ranks of a machine read the same environment and must not write the
 * same file. A host's name with a slash must not lead into another folder, so slashes are
 * replaced. */
#include "comm/base/path_pattern.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool is_letter(char letter)
{
    return letter != '\0' && strchr("rhp%", letter) != NULL;
}

bool xm_path_pattern_is_valid(const char *pattern)
{
    for (const char *at = strchr(pattern, '%'); at != NULL; at = strchr(at + 2, '%')) {
        if (!is_letter(at[1])) {
            return false;
        }
    }
    return true;
}

bool xm_path_pattern_has(const char *pattern, char letter)
{
    for (const char *at = strchr(pattern, '%'); at != NULL && at[1] != '\0';
         at = strchr(at + 2, '%')) {
        if (at[1] == letter) {
            return true;
        }
    }
    return false;
}

/* Appends a placeholder's value; a process without a rank is called "none". */
static int append(char letter, int rank, const char *host, char *to, size_t size)
{
    int length;

    switch (letter) {
    case 'r':
        return rank < 0 ? snprintf(to, size, "none") : snprintf(to, size, "%d", rank);
    case 'p':
        return snprintf(to, size, "%d", (int)getpid());
    case 'h':
        length = snprintf(to, size, "%s", host);
        for (size_t i = 0; i + 1 < size && to[i] != '\0'; ++i) {
            to[i] = to[i] == '/' ? '_' : to[i];
        }
        return length;
    default:
        return snprintf(to, size, "%%");
    }
}

/* Fails for invalid patterns and for paths that do not fit, rather than cutting them: a cut
 * name might be another file's. */
bool xm_path_pattern_expand(const char *pattern, int rank, const char *host, char *path,
                            size_t size)
{
    size_t used = 0;

    if (size == 0 || !xm_path_pattern_is_valid(pattern)) {
        return false;
    }
    for (const char *at = pattern; *at != '\0'; ++at) {
        int length = 1;

        if (*at == '%') {
            length = append(*++at, rank, host, path + used, size - used);
        } else {
            path[used] = *at;
        }
        if (length < 0 || used + (size_t)length >= size) {
            return false;
        }
        used += (size_t)length;
    }
    path[used] = '\0';
    return true;
}
