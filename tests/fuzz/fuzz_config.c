/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any text NAME=VALUE as a setting XM_NAME: it is refused with a sentence that names the setting,
 * or gives a value in its range; a refused one counts as the default. A list of NICs is also
 * read against a small /sys.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/base/config.h"
#include "comm/topology/nics.h"
#include "comm/base/text.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LONGEST = 512, LONGEST_NAME = 48 };

static char sysfs[] = "/tmp/fuzz_config.XXXXXX";

static void expect(bool condition)
{
    if (!condition) {
        abort();
    }
}

/* Directories and files of the small /sys, parents first. */
static const struct {
    const char *path, *content; /* NULL: a directory */
} entries[] = {
    {"class", NULL},
    {"class/net", NULL},
    {"class/net/nic0", NULL},
    {"class/net/nic0/speed", "10000\n"},
    {"class/net/nic1", NULL},
    {"class/net/nic1/speed", "-1\n"},
    {"class/infiniband", NULL},
    {"class/infiniband/mlx5_0", NULL},
    {"class/infiniband/mlx5_0/ports", NULL},
    {"class/infiniband/mlx5_0/ports/1", NULL},
    {"class/infiniband/mlx5_0/ports/1/rate", "100 Gb/sec (4X EDR)\n"},
};

static void remove_sysfs(void)
{
    char path[256];

    for (size_t i = sizeof(entries) / sizeof(entries[0]); i-- > 0;) {
        (void)snprintf(path, sizeof(path), "%s/%s", sysfs, entries[i].path);
        (void)remove(path);
    }
    (void)rmdir(sysfs);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    char path[256];

    (void)argc;
    (void)argv;
    expect(mkdtemp(sysfs) != NULL);
    (void)atexit(remove_sysfs);
    for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); ++i) {
        (void)snprintf(path, sizeof(path), "%s/%s", sysfs, entries[i].path);
        if (entries[i].content == NULL) {
            expect(mkdir(path, 0700) == 0);
        } else {
            FILE *file = fopen(path, "we");

            expect(file != NULL && fputs(entries[i].content, file) >= 0 && fclose(file) == 0);
        }
    }
    return 0;
}

static void try_nics(const char *text)
{
    xm_nics_t nics;

    if (xm_nics_parse(text, 3, sysfs, &nics) < 0) {
        expect(strstr(xm_last_error(), "rank 3") != NULL);
        return;
    }
    expect(nics.count >= 1 && nics.count <= XM_NICS_MAX);
    for (int i = 0; i < nics.count; ++i) {
        expect(nics.nic[i].rate <= XM_NICS_MAX_RATE);
        expect(strnlen(nics.nic[i].device, XM_NICS_NAME_SIZE) < XM_NICS_NAME_SIZE);
        expect(strchr(nics.nic[i].device, '/') == NULL && strstr(nics.nic[i].device, ":.") == NULL);
    }
}

/* A refused text gives the default. */
static void look(xm_config_id_t id)
{
    const char *type = xm_config_row(id)->type;
    char text[1024];

    if (strncmp(type, "seconds", strlen("seconds")) == 0) {
        double seconds = xm_config_seconds(id);

        expect(isfinite(seconds) && seconds >= 0 && seconds <= 86400);
    } else if (strcmp(type, "bytes") == 0) {
        (void)xm_config_bytes(id);
    } else if (strcmp(type, "count") == 0) {
        expect(xm_config_count(id) >= 1 && xm_config_count(id) <= 64);
    } else if (strcmp(type, "string") != 0) {
        expect(xm_config_choice(id) >= 0 && xm_config_choice(id) < 8);
    }
    expect(strlen(xm_config_fingerprint(text, sizeof(text))) < sizeof(text));
    expect(strlen(xm_config_fingerprint(text, 16)) < 16);
}

static void try_numbers(const char *text)
{
    int64_t integer = 0;
    double number = 0;
    uint64_t bytes = 0;

    if (xm_text_parse_int("value", text, -5, 1000000, &integer) == XM_OK) {
        expect(integer >= -5 && integer <= 1000000);
    }
    if (xm_text_parse_double("value", text, 0, 1e9, &number) == XM_OK) {
        expect(number >= 0 && number <= 1e9);
    }
    if (xm_text_parse_bytes("value", text, &bytes) == XM_OK) {
        expect(text[0] != '\0');
    }
}

/* The setting of that name; XM_CONFIG_COUNT: there is none. */
static xm_config_id_t find(const char *name)
{
    int id = 0;

    while (id < XM_CONFIG_COUNT && strcmp(xm_config_row((xm_config_id_t)id)->name, name) != 0) {
        ++id;
    }
    return (xm_config_id_t)id;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[LONGEST + 1] = "", name[LONGEST_NAME + 4] = "XM_";
    const char *value;
    xm_config_id_t id;
    xm_status_t status;
    size_t length;

    if (size > 0) {
        memcpy(text, data, size < LONGEST ? size : LONGEST);
    }
    length = strcspn(text, "=");
    value = text[length] == '=' ? text + length + 1 : "";
    length = length < LONGEST_NAME ? length : LONGEST_NAME;
    memcpy(name + 3, text, length);
    id = find(name);
    expect(setenv(name, value, 1) == 0);
    status = xm_config_check();
    if (id == XM_CONFIG_COUNT) {
        /* What is quoted is cut where it is long, and shown as UTF-8. */
        expect(status == XM_ERR_NOT_FOUND && strstr(xm_last_error(), "XM_") != NULL);
    } else {
        expect(status == XM_OK || strstr(xm_last_error(), name) != NULL);
        look(id);
    }
    expect(unsetenv(name) == 0);
    if (id == XM_CONFIG_NICS) {
        try_nics(value);
    }
    try_numbers(value);
    return 0;
}
