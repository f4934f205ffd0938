/* SPDX-License-Identifier: Apache-2.0 */
/* Versions of crossmesh and of what it stands on, for logs, metrics and reports. They are asked
 * of what is loaded at run time and not of headers at build time, since a mismatch of the two
 * is a fault that reports should show. */
#include "comm/base/versions.h"

#include <dlfcn.h>
#include <hwloc.h>
#include <infiniband/verbs.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucp/api/ucp.h>

#include <crossmesh/version.h>

#include "comm/base/text.h"

/* The interface of libibverbs has no version, but the file that was loaded has:
 * libibverbs.so.1.14.44.0. */
static void read_verbs(char *version)
{
    static const char mark[] = ".so.";
    char path[PATH_MAX];
    Dl_info info;
    void *function;
    const char *name;
    struct ibv_device **(*list)(int *) = ibv_get_device_list;

    memcpy(&function, &list, sizeof(function));
    if (dladdr(function, &info) == 0 || info.dli_fname == NULL ||
        realpath(info.dli_fname, path) == NULL) {
        return;
    }
    name = strstr(path, mark);
    if (name != NULL) {
        (void)snprintf(version, XM_VERSION_SIZE, "%.*s", XM_VERSION_SIZE - 1, name + strlen(mark));
    }
}

/* Reads the first line of a file below the root; "" when there is none. */
static void read_line(const char *root, const char *path, char *line, int size)
{
    char full[PATH_MAX];
    FILE *file;

    (void)snprintf(full, sizeof(full), "%s%s", root, path);
    line[0] = '\0';
    file = fopen(full, "re");
    if (file != NULL) {
        if (fgets(line, size, file) == NULL) {
            line[0] = '\0';
        }
        (void)fclose(file);
    }
    line[strcspn(line, "\n")] = '\0';
}

/* Finds the version in "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19
 * …": the first word that is a number with dots. */
static void read_nvidia(const char *root, char *version)
{
    char line[256];
    char *rest = line;

    read_line(root, "/proc/driver/nvidia/version", line, sizeof(line));
    for (char *word = strtok_r(rest, " \t", &rest); word != NULL;
         word = strtok_r(NULL, " \t", &rest)) {
        if (strspn(word, "0123456789.") == strlen(word) && strchr(word, '.') != NULL) {
            (void)snprintf(version, XM_VERSION_SIZE, "%.*s", XM_VERSION_SIZE - 1, word);
            return;
        }
    }
}

const char *xm_version(void)
{
    return XM_VERSION_STRING;
}

void xm_versions_read(const char *root, xm_versions_t *versions)
{
    unsigned hwloc = hwloc_get_api_version(), major, minor, patch;

    *versions = (xm_versions_t){.crossmesh = XM_VERSION_STRING};
    ucp_get_version(&major, &minor, &patch);
    (void)snprintf(versions->ucx, sizeof(versions->ucx), "%u.%u.%u", major, minor, patch);
    (void)snprintf(versions->hwloc, sizeof(versions->hwloc), "%u.%u.%u", hwloc >> 16,
                   hwloc >> 8 & 0xff, hwloc & 0xff);
    read_verbs(versions->verbs);
    read_nvidia(root, versions->nvidia);
    read_line(root, "/proc/sys/kernel/osrelease", versions->kernel, sizeof(versions->kernel));
}

/* Lists what is known; the rest is left out. */
char *xm_versions_format(const xm_versions_t *versions, char *buffer, size_t size)
{
    const struct {
        const char *name, *version;
    } parts[] = {{"UCX", versions->ucx},
                 {"libibverbs", versions->verbs},
                 {"hwloc API", versions->hwloc},
                 {"NVIDIA driver", versions->nvidia},
                 {"Linux", versions->kernel}};

    buffer[0] = '\0';
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); ++i) {
        if (parts[i].version[0] != '\0') {
            xm_text_list_add(buffer, size, ", ", "%s %s", parts[i].name, parts[i].version);
        }
    }
    return buffer;
}
