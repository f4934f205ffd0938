/* SPDX-License-Identifier: Apache-2.0 */
/* The doctor's list of findings, and reading files below a root. Everything that a check reads
 * goes through this root, so that descriptions of other machines can be examined and tests run
 * on made-up ones. Only want of memory is a failure; what cannot be read is a finding, because
 * a doctor that gives up at the first missing file helps nobody. */
#include "comm/doctor/doctor.h"

#include <dirent.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/doctor/doctor_private.h"

struct xm_findings {
    xm_finding_t *items;
    int count;
    size_t room;
};

const char *xm_severity_name(xm_severity_t severity)
{
    static const char *const names[] = {"ok", "not here", "warn", "fail"};

    return names[severity];
}

/* ---- the list -------------------------------------------------------------------------------- */

xm_status_t xm_findings_create(xm_findings_t **findings)
{
    *findings = calloc(1, sizeof(**findings));
    return *findings != NULL ? XM_OK : XM_NO_MEMORY("findings");
}

bool xm_findings_add(xm_findings_t *findings, const xm_finding_t *finding)
{
    if (!XM_ARRAY_ROOM(findings->items, findings->room, findings->count)) {
        return false;
    }
    findings->items[findings->count++] = *finding;
    return true;
}

int xm_findings_count(const xm_findings_t *findings)
{
    return findings->count;
}

const xm_finding_t *xm_findings_get(const xm_findings_t *findings, int index)
{
    return &findings->items[index];
}

void xm_findings_destroy(xm_findings_t *findings)
{
    if (findings != NULL) {
        free(findings->items);
        free(findings);
    }
}

/* Adds a finding. Advice is given only where something is to be done. Want of memory is noted
 * and looked at once, when all checks have run. */
void xm_doctor_note(xm_doctor_t *doctor, xm_severity_t severity, const char *subject,
                    const char *advice, const char *format, ...)
{
    xm_finding_t finding = {.severity = severity};
    va_list args;

    (void)snprintf(finding.subject, sizeof(finding.subject), "%s", subject);
    if (severity >= XM_SEVERITY_WARN) {
        (void)snprintf(finding.advice, sizeof(finding.advice), "%s", advice);
    }
    va_start(args, format);
    (void)vsnprintf(finding.text, sizeof(finding.text), format, args);
    va_end(args);
    doctor->no_memory = !xm_findings_add(doctor->findings, &finding) || doctor->no_memory;
}

/* ---- files ----------------------------------------------------------------------------------- */

/* The path of a file below the root. */
static void make_path(const xm_doctor_t *doctor, char path[PATH_MAX], const char *format,
                      va_list args) XM_PRINTF(3, 0);

static void make_path(const xm_doctor_t *doctor, char path[PATH_MAX], const char *format,
                      va_list args)
{
    const char *root = doctor->params->root != NULL ? doctor->params->root : "";
    int used = snprintf(path, PATH_MAX, "%s", root);

    if (used >= 0 && used < PATH_MAX) {
        (void)vsnprintf(path + used, PATH_MAX - (size_t)used, format, args);
    }
}

/* Reads a small file without its last line feeds; on failure the text is empty. */
static bool read_path(const char *path, char *text, size_t size)
{
    FILE *file = fopen(path, "re");
    size_t length;
    bool ok;

    text[0] = '\0';
    if (file == NULL) {
        return false;
    }
    length = fread(text, 1, size - 1, file);
    ok = ferror(file) == 0;
    (void)fclose(file);
    while (length > 0 && text[length - 1] == '\n') {
        --length;
    }
    text[length] = '\0';
    return ok;
}

bool xm_doctor_read(const xm_doctor_t *doctor, char *text, size_t size, const char *format, ...)
{
    char path[PATH_MAX];
    va_list args;

    va_start(args, format);
    make_path(doctor, path, format, args);
    va_end(args);
    return read_path(path, text, size);
}

/* Numbers in /proc and /sys are decimal with a line feed; what follows is ignored. */
bool xm_doctor_read_number(const xm_doctor_t *doctor, int64_t *number, const char *format, ...)
{
    char path[PATH_MAX], text[64], *end;
    va_list args;

    va_start(args, format);
    make_path(doctor, path, format, args);
    va_end(args);
    if (!read_path(path, text, sizeof(text))) {
        return false;
    }
    *number = strtoll(text, &end, 10);
    return end != text;
}

static int is_visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

/* Visits the entries of a folder in the order of their numbers (eth2 before eth10), so that
 * reports are the same on every run. */
int xm_doctor_list(xm_doctor_t *doctor, const char *path,
                   void (*visit)(xm_doctor_t *doctor, const char *name, void *arg), void *arg)
{
    const char *root = doctor->params->root != NULL ? doctor->params->root : "";
    char full[PATH_MAX];
    struct dirent **entries;
    int count;

    (void)snprintf(full, sizeof(full), "%s%s", root, path);
    count = scandir(full, &entries, is_visible, versionsort);
    for (int i = 0; i < count; ++i) {
        visit(doctor, entries[i]->d_name, arg);
        free(entries[i]);
    }
    if (count >= 0) {
        free((void *)entries);
    }
    return count > 0 ? count : 0;
}

/* Reads a list as the kernel writes it, "0-3,8"; false for anything else. */
bool xm_doctor_mark_list(const char *text, bool *marks, int size)
{
    for (const char *at = text;;) {
        char *end;
        long first = strtol(at, &end, 10), last = first;

        if (end == at) {
            return false;
        }
        if (*end == '-') {
            at = end + 1;
            last = strtol(at, &end, 10);
            if (end == at) {
                return false;
            }
        }
        if (first < 0 || last < first || last >= size) {
            return false;
        }
        for (long i = first; i <= last; ++i) {
            marks[i] = true;
        }
        if (*end != ',') {
            return *end == '\0';
        }
        at = end + 1;
    }
}
