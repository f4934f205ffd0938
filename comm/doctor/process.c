/* SPDX-License-Identifier: Apache-2.0 */
/* The doctor's look at what this process may use, and what its ranks share: locked memory,
 * descriptors, shared memory, the right to copy between processes, cores. Limits are read as
 * the kernel enforces them for this process, because what an administrator has configured often
 * does not reach it (services, containers). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/doctor/doctor_private.h"
#include "comm/base.h"
#include "comm/transport/ucx.h"

/* Bits of capabilities in /proc/self/status. */
enum { CAP_IPC_LOCK = 14, CAP_SYS_PTRACE = 19 };

/* The verbs transport registers no more than this for its slots, and UCX about as much; tiles come
 * on top. */
static const uint64_t least_locked = UINT64_C(64) << 20;

/* Descriptors that a rank needs: for libraries and devices, and for each other rank a
 * connection of UCX over two rails, of the bootstrap, and shared memory. */
enum { BASE_FILES = 128, FILES_PER_RANK = 6 };

enum { STATUS_SIZE = 8192 };

/* Finds what follows a name, and blanks, in a file of this process; NULL: it is not there. */
static char *find(const xm_doctor_t *doctor, const char *file, const char *name,
                  char text[STATUS_SIZE])
{
    char *at = xm_doctor_read(doctor, text, STATUS_SIZE, "/proc/self/%s", file) ? strstr(text, name)
                                                                                : NULL;

    if (at != NULL) {
        at += strlen(name);
        at += strspn(at, " \t");
    }
    return at;
}

/* Reads the soft limit of that name; false: it is not there. UINT64_MAX: none. */
static bool read_limit(const xm_doctor_t *doctor, const char *name, uint64_t *limit)
{
    char text[STATUS_SIZE], *line = find(doctor, "limits", name, text), *end;

    if (line == NULL) {
        return false;
    }
    if (strncmp(line, "unlimited", strlen("unlimited")) == 0) {
        *limit = UINT64_MAX;
        return true;
    }
    *limit = strtoull(line, &end, 10);
    return end != line;
}

/* Reads what follows "NAME:" in /proc/self/status. */
static bool read_status(const xm_doctor_t *doctor, const char *name, char *value, size_t size)
{
    char text[STATUS_SIZE];
    const char *line = find(doctor, "status", name, text);

    if (line == NULL) {
        return false;
    }
    (void)snprintf(value, size, "%.*s", (int)strcspn(line, "\n"), line);
    return true;
}

/* Effective capabilities are what the kernel asks for. */
static bool has_capability(const xm_doctor_t *doctor, int bit)
{
    char text[32];

    return read_status(doctor, "\nCapEff:", text, sizeof(text)) &&
           (strtoull(text, NULL, 16) >> bit & 1) != 0;
}

/* The right to lock memory counts in the first user namespace only, where all ids are mapped. */
static bool may_lock_all(const xm_doctor_t *doctor)
{
    char map[128], *at = map;
    unsigned long long count = UINT32_MAX;

    if (xm_doctor_read(doctor, map, sizeof(map), "/proc/self/uid_map")) {
        (void)strtoull(at, &at, 10); /* first id inside, first id outside, how many */
        (void)strtoull(at, &at, 10);
        count = strtoull(at, &at, 10);
    }
    return (count == 0 || count >= UINT32_MAX) && has_capability(doctor, CAP_IPC_LOCK);
}

/* Too little is a failure only where RDMA will need it. */
static void check_locked_memory(xm_doctor_t *doctor)
{
    static const char subject[] = "locked memory";
    static const char advice[] =
        "Raise the limit, e.g. '* - memlock unlimited' in /etc/security/limits.conf and "
        "LimitMEMLOCK=infinity of the launcher's service; containers: --ulimit memlock=-1.";
    uint64_t limit;
    char text[32];

    if (!read_limit(doctor, "Max locked memory", &limit)) {
        xm_doctor_note(doctor, XM_SEVERITY_ABSENT, subject, "", "the kernel tells no limit");
    } else if (limit == UINT64_MAX) {
        xm_doctor_note(doctor, XM_SEVERITY_OK, subject, "", "unlimited");
    } else if (may_lock_all(doctor)) {
        xm_doctor_note(doctor, XM_SEVERITY_OK, subject, "",
                       "%s, but this process may lock all (CAP_IPC_LOCK)",
                       xm_text_format_bytes(limit, text, sizeof(text)));
    } else if (!doctor->rdma && !doctor->params->verbs) {
        xm_doctor_note(doctor, XM_SEVERITY_OK, subject, "",
                       "%s; there is no RDMA device to lock it for",
                       xm_text_format_bytes(limit, text, sizeof(text)));
    } else {
        xm_doctor_note(doctor, limit < least_locked ? XM_SEVERITY_FAIL : XM_SEVERITY_WARN, subject,
                       advice, "%s; RDMA needs 64 MiB a rank, and all that tiles take",
                       xm_text_format_bytes(limit, text, sizeof(text)));
    }
}

/* The limit of a job grows with its ranks, so it is the launcher's number that is compared. */
static void check_files(xm_doctor_t *doctor)
{
    static const char subject[] = "open files";
    uint64_t needed = BASE_FILES + (uint64_t)FILES_PER_RANK * (uint64_t)doctor->params->ranks;
    uint64_t limit;

    if (!read_limit(doctor, "Max open files", &limit)) {
        xm_doctor_note(doctor, XM_SEVERITY_ABSENT, subject, "", "the kernel tells no limit");
    } else if (limit == UINT64_MAX) {
        xm_doctor_note(doctor, XM_SEVERITY_OK, subject, "", "unlimited");
    } else {
        xm_doctor_note(doctor, limit < needed ? XM_SEVERITY_FAIL : XM_SEVERITY_OK, subject,
                       "Raise the limit: ulimit -n, nofile in /etc/security/limits.conf, or "
                       "LimitNOFILE of the launcher's service.",
                       "%llu; a job of %d rank%s may need %llu", (unsigned long long)limit,
                       doctor->params->ranks, doctor->params->ranks == 1 ? "" : "s",
                       (unsigned long long)needed);
    }
}

/* Too little space is a warning: UCX falls back to System V segments, as the transport then
 * tells it. */
static void check_shared_memory(xm_doctor_t *doctor)
{
    static const char subject[] = "shared memory";
    const xm_doctor_facts_t *facts = doctor->facts;
    int ranks = doctor->params->local_ranks;
    uint64_t needed = (uint64_t)XM_UCX_SHM_PER_RANK * (uint64_t)ranks;
    char size[32], left[32], least[32];

    (void)xm_text_format_bytes(facts->shm_size, size, sizeof(size));
    (void)xm_text_format_bytes(facts->shm_free, left, sizeof(left));
    (void)xm_text_format_bytes(needed, least, sizeof(least));
    if (!facts->has_shm) {
        xm_doctor_note(doctor, XM_SEVERITY_WARN, subject, "Mount a tmpfs at /dev/shm.",
                       "there is no /dev/shm; UCX does without, by System V segments");
    } else if (facts->shm_free < needed) {
        xm_doctor_note(
            doctor, XM_SEVERITY_WARN, subject,
            "Make /dev/shm larger (mount -o remount,size=…; containers: --shm-size), or "
            "remove what was left there.",
            "/dev/shm has %s of %s free; %d local rank%s may need %s, UCX does without it", left,
            size, ranks, ranks == 1 ? "" : "s", least);
    } else {
        xm_doctor_note(doctor, XM_SEVERITY_OK, subject, "",
                       "/dev/shm of %s has the %s that %d local rank%s may need", size, least,
                       ranks, ranks == 1 ? "" : "s");
    }
    xm_doctor_note(
        doctor, facts->memfd ? XM_SEVERITY_OK : XM_SEVERITY_WARN, "memory descriptors",
        "Allow memfd_create(2) in the container's seccomp profile; until then ranks of a "
        "host do not copy from each other's tiles directly.",
        facts->memfd ? "memfd_create works" : "memfd_create does not work");
}

/* Checks who may read another process's memory: UCX's cma needs that, and so does every large
 * message inside a host. */
static void check_ptrace(xm_doctor_t *doctor)
{
    static const char subject[] = "copies between ranks";
    int64_t scope;

    if (doctor->params->verbs) {
        xm_doctor_note(doctor, XM_SEVERITY_ABSENT, subject, "",
                       "the verbs transport needs no process_vm_readv");
    } else if (!xm_doctor_read_number(doctor, &scope, "/proc/sys/kernel/yama/ptrace_scope")) {
        xm_doctor_note(doctor, XM_SEVERITY_OK, subject, "",
                       "process_vm_readv between ranks of a user (no Yama)");
    } else if (scope < 2 || (scope == 2 && has_capability(doctor, CAP_SYS_PTRACE))) {
        /* With a scope of 1 UCX tells the kernel that all processes may read. */
        xm_doctor_note(doctor, XM_SEVERITY_OK, subject, "",
                       "process_vm_readv between ranks of a user (ptrace_scope %d)", (int)scope);
    } else {
        xm_doctor_note(doctor, XM_SEVERITY_WARN, subject,
                       "sysctl kernel.yama.ptrace_scope=1, or give the ranks CAP_SYS_PTRACE; until "
                       "then messages inside a host are copied twice.",
                       "ptrace_scope %d forbids process_vm_readv", (int)scope);
    }
}

bool xm_doctor_read_cores(const xm_doctor_t *doctor, char *list, size_t size)
{
    return read_status(doctor, "\nCpus_allowed_list:", list, size);
}

/* The number of cores that this process may run on; 0: the kernel does not tell. */
static int count_cores(const xm_doctor_t *doctor)
{
    bool marks[XM_DOCTOR_CORES] = {false};
    char list[512];
    int count = 0;

    if (xm_doctor_read_cores(doctor, list, sizeof(list)) &&
        xm_doctor_mark_list(list, marks, XM_DOCTOR_CORES)) {
        for (int i = 0; i < XM_DOCTOR_CORES; ++i) {
            count += marks[i];
        }
    }
    return count;
}

/* Fewer cores than ranks make polling ranks keep each other from running, which is a failure;
 * sleeping ones are only slow. */
static void check_cores(xm_doctor_t *doctor)
{
    static const char subject[] = "cores";
    const xm_doctor_params_t *params = doctor->params;
    int cores = params->local_cores > 0 ? params->local_cores : count_cores(doctor);

    if (cores == 0) {
        xm_doctor_note(doctor, XM_SEVERITY_ABSENT, subject, "", "the kernel does not tell");
    } else if (cores >= params->local_ranks) {
        xm_doctor_note(doctor, XM_SEVERITY_OK, subject, "", "%d for %d local rank%s", cores,
                       params->local_ranks, params->local_ranks == 1 ? "" : "s");
    } else {
        xm_doctor_note(doctor, params->spin ? XM_SEVERITY_FAIL : XM_SEVERITY_WARN, subject,
                       params->spin ? "XM_PROGRESS=sleep, or a core for each rank: polling ranks "
                                      "keep each other from running."
                                    : "Give each rank a core (the launcher's binding, the "
                                      "container's limits); times are those of the cores else.",
                       "%d for %d local ranks%s", cores, params->local_ranks,
                       params->spin ? " that poll" : "");
    }
}

typedef struct {
    int cores, saving;
    char first[32]; /* another governor than "performance" */
} governors_t;

static void visit_core(xm_doctor_t *doctor, const char *name, void *arg)
{
    governors_t *found = arg;
    char governor[32];

    if (!xm_doctor_read(doctor, governor, sizeof(governor),
                        "/sys/devices/system/cpu/%s/cpufreq/scaling_governor", name)) {
        return;
    }
    ++found->cores;
    if (strcmp(governor, "powersave") == 0 || strcmp(governor, "conservative") == 0) {
        ++found->saving;
    }
    if (found->first[0] == '\0' || strcmp(governor, "performance") != 0) {
        (void)snprintf(found->first, sizeof(found->first), "%s", governor);
    }
}

/* Slow governors show in latencies, as cores wake up at a low frequency. */
static void check_governor(xm_doctor_t *doctor)
{
    static const char subject[] = "frequency governor";
    governors_t found = {0};

    (void)xm_doctor_list(doctor, "/sys/devices/system/cpu", visit_core, &found);
    if (found.cores == 0) {
        xm_doctor_note(doctor, XM_SEVERITY_ABSENT, subject, "",
                       "the kernel does not set frequencies");
    } else if (found.saving > 0) {
        xm_doctor_note(doctor, XM_SEVERITY_WARN, subject,
                       "cpupower frequency-set -g performance; slow cores show in latencies.",
                       "%s on %d of %d cores", found.first, found.saving, found.cores);
    } else {
        xm_doctor_note(doctor, XM_SEVERITY_OK, subject, "", "%s on %d cores", found.first,
                       found.cores);
    }
}

static bool offers(const char *transports, const char *prefix)
{
    for (const char *at = transports; *at != '\0'; at += strcspn(at, " "), at += *at == ' ') {
        if (strncmp(at, prefix, strlen(prefix)) == 0) {
            return true;
        }
    }
    return false;
}

/* A UCX without a transport that leaves the host works for small tests and fails in the job. Debian
 * builds 1.13 with assertions, of which one ends ranks whose TCP connection is reset while both
 * make it; that cannot be asked, so the version tells. */
static void check_ucx(xm_doctor_t *doctor)
{
    static const char subject[] = "UCX";
    const xm_doctor_facts_t *facts = doctor->facts;
    bool rdma = offers(facts->ucx_transports, "rc_") || offers(facts->ucx_transports, "dc_") ||
                offers(facts->ucx_transports, "ud_");

    if (facts->ucx_failure[0] != '\0') {
        xm_doctor_note(doctor, doctor->params->verbs ? XM_SEVERITY_WARN : XM_SEVERITY_FAIL, subject,
                       "See UCX_TLS, UCX_NET_DEVICES and the output of ucx_info -d.", "%s %s",
                       facts->ucx_version, facts->ucx_failure);
    } else if (doctor->rdma_active && !rdma) {
        xm_doctor_note(doctor, XM_SEVERITY_WARN, subject,
                       "Install UCX's RDMA modules (libuct_ib), or let UCX_TLS name rc; or use "
                       "XM_TRANSPORT=verbs.",
                       "%s offers %s: nothing for the RDMA ports that are active",
                       facts->ucx_version, facts->ucx_transports);
    } else if (!offers(facts->ucx_transports, "tcp") && !rdma) {
        xm_doctor_note(doctor, XM_SEVERITY_WARN, subject,
                       "Bring a network interface up, or let UCX_TLS and UCX_NET_DEVICES name one; "
                       "ranks of other hosts cannot be reached.",
                       "%s offers %s: nothing that leaves this host", facts->ucx_version,
                       facts->ucx_transports);
    } else if (!rdma && strncmp(facts->ucx_version, "1.13.", 5) == 0) {
        xm_doctor_note(doctor, XM_SEVERITY_WARN, subject,
                       "Take UCX 1.22 (libucx-cu12 of PyPI), of which that was not met.",
                       "%s offers %s; built with assertions, as by Debian, it may end a rank whose "
                       "TCP connection is reset while it is made",
                       facts->ucx_version, facts->ucx_transports);
    } else {
        xm_doctor_note(doctor, XM_SEVERITY_OK, subject, "", "%s offers %s", facts->ucx_version,
                       facts->ucx_transports);
    }
}

static void check_settings(xm_doctor_t *doctor)
{
    const char *wrong = doctor->facts->settings;

    xm_doctor_note(doctor, wrong[0] != '\0' ? XM_SEVERITY_FAIL : XM_SEVERITY_OK, "settings",
                   "Correct or unset it; docs/configuration.md lists all settings.", "%s",
                   wrong[0] != '\0' ? wrong : "all XM_ variables are known and well-formed");
}

/* Settings come first: a mistake there explains much of the rest. */
void xm_doctor_check_process(xm_doctor_t *doctor)
{
    check_settings(doctor);
    check_locked_memory(doctor);
    check_files(doctor);
    check_shared_memory(doctor);
    check_ptrace(doctor);
    check_ucx(doctor);
    check_cores(doctor);
    check_governor(doctor);
}
