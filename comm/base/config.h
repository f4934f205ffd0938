/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file config.h
 * Settings from the environment: one table, one prefix (XM_), strict parsing.
 *
 * The table XM_CONFIG_TABLE below is the only place where a setting is declared;
 * `docs/configuration.md` is checked against it by a test. A row is (identifier, type, default,
 * must be equal on all ranks, documentation). Values are parsed when asked for; xm_config_check()
 * parses all of them once and reports the first bad value, or the first XM_ variable of the
 * environment that no row knows, with its nearest match.
 *
 * Threads: reads the environment only; safe as long as nobody calls setenv() meanwhile. Strings
 * belong to the environment.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "comm/base/status.h"

/* clang-format off */
#define XM_CONFIG_TABLE(ROW) \
    ROW(TIMEOUT, SECONDS, "30", true, \
        "Deadline in seconds of every wait: rendezvous, a reshard, a peer that stopped answering.") \
    ROW(HEARTBEAT, PERIOD, "1", true, \
        "Seconds between two questions whether a rank is alive; one that has not answered for 3.5 times as long " \
        "is gone. 0: hanging ranks and lost links end in deadlines only.") \
    ROW(WATCHDOG, PERIOD, "0", false, \
        "Seconds after which a reshard that does not move is described in the log, once per stall; 0: never.") \
    ROW(LOG, LEVELS, "warn", false, \
        "Least severe message that is logged: error, warn, info, debug or trace; and, after commas, that of single " \
        "subjects: info,verbs=trace.") \
    ROW(LOG_FILE, PATTERN, "", false, \
        "File that log lines are appended to, with %r for the rank, %h for the host, %p for the process id; empty " \
        "means standard error.") \
    ROW(METRICS_FILE, PATTERN, "", false, \
        "File that counters are written to for Prometheus, with %r, %h and %p likewise, e.g. " \
        "/var/lib/node_exporter/crossmesh-%r.prom; empty means none.") \
    ROW(METRICS_INTERVAL, SECONDS, "15", false, \
        "Seconds between two writes of that file; it is written at the end as well.") \
    ROW(HOST, STRING, "", false, \
        "Name of the host this rank counts as being on. Ranks of one machine with different names are " \
        "treated as different hosts and talk over TCP; empty means the machine's own identity.") \
    ROW(TRANSPORT, CHOICE("ucx|verbs"), "ucx", true, \
        "What moves the bytes: UCX, or RDMA verbs (InfiniBand, RoCE) used directly.") \
    ROW(JOB_SECRET, STRING, "", false, \
        "Secret of 16 to 1024 characters that the ranks of the job share: whoever does not know it cannot join " \
        "the rendezvous. It is never sent, printed or compared as text; empty means none.") \
    ROW(JOB_SECRET_FILE, STRING, "", false, \
        "File that holds the job's secret instead, of this user or root and readable by nobody else.") \
    ROW(BIND, STRING, "", false, \
        "Address (IPv4 or IPv6, in digits) that rank 0 listens at for the rendezvous; 0.0.0.0 or :: for all. Empty " \
        "means MASTER_ADDR where it is an address in digits of its machine, else all.") \
    ROW(NICS, STRING, "", false, \
        "Network devices used towards other machines, with optional rates in bit/s: " \
        "nic0=1000000000,nic1=500000000 or mlx5_0:1,mlx5_1:1. Without a rate: the device's own speed where " \
        "the driver tells one, else equal shares. Empty: chosen by distance and speed where hosts have several, " \
        "else by UCX; ^mlx5_4,eth1: the same, but never these. With XM_TRANSPORT=verbs, empty means all RDMA ports " \
        "that are active.") \
    ROW(FAILOVER, CHOICE("on|off"), "on", false, \
        "Whether several NICs stand in for each other: when one is lost during a transfer, the others take over " \
        "what was not delivered; off: the peers behind it are lost.") \
    ROW(RDMA_TIMEOUT, SECONDS, "1", true, \
        "With XM_TRANSPORT=verbs: seconds, at most, that a device sends a packet again that nobody acknowledges until " \
        "the connection counts as lost. Networks with long pauses want more.") \
    ROW(CHUNK_SIZE, BYTES, "512KiB", true, \
        "Size of the pieces a transfer is pipelined in, in bytes.") \
    ROW(WINDOW, COUNT, "2", true, \
        "Chunks in flight from one rank to one peer, 1 to 64. Unset: twice as many where several NICs stand in " \
        "for each other, in plans of a single box, and where turns keep the order.") \
    ROW(DIRECT_COPY, CHOICE("on|off"), "on", false, \
        "Whether ranks of one host copy large pieces straight from each other's memory, where that was allocated to be " \
        "shared (comm/memory/shared_memory.h); off: everything goes through UCX.") \
    ROW(VERIFY, CHOICE("off|run|chunk"), "off", true, \
        "Proof that bytes arrive as they were sent. chunk: a checksum with each chunk and message, which is sent again " \
        "when it came wrong; run: each reshard compares checksums of all tiles at its end, and fails on all ranks if they " \
        "differ; off: networks are trusted.") \
    ROW(PROGRESS, CHOICE("sleep|spin"), "sleep", false, \
        "What an idle rank does: sleep until an event arrives, or poll (only with a core per rank).") \
    ROW(TOPOLOGY, STRING, "", false, \
        "hwloc XML file that describes this host instead of the live machine.") \
    ROW(PROFILE, STRING, "", false, \
        "Cluster profile (made by autopar probe) that NCCL's tuner plugin answers from; empty: it leaves NCCL's choice.") \
    ROW(NCCL_DEVICES, CHOICE("each|merged"), "each", false, \
        "What NCCL's network plugin offers: each NIC as a device, which newer versions of NCCL merge themselves, or all " \
        "NICs of the host as one.") \
    ROW(CUDA, CHOICE("auto|staging|off"), "auto", false, \
        "Tiles on CUDA devices: given to the transport, or opened by ranks of the same host, where that can " \
        "be, else sent from pinned host memory; always the latter; or not looked for.")
/* clang-format on */

typedef enum xm_config_id {
#define XM_CONFIG_ENUM_ROW(id, type, fallback, uniform, doc) XM_CONFIG_##id,
    XM_CONFIG_TABLE(XM_CONFIG_ENUM_ROW)
#undef XM_CONFIG_ENUM_ROW
        XM_CONFIG_COUNT
} xm_config_id_t;

/** One row of the table, for help texts and tests. */
typedef struct xm_config_row {
    const char *name;          /**< environment variable, e.g. "XM_TIMEOUT" */
    const char *type;          /**< "seconds", "seconds or 0", "bytes", "count", "string", "path",
                                          "levels" or "a|b|c" */
    const char *default_value; /**< as it would be written in the environment */
    bool uniform;              /**< must be equal on all ranks; compared at start */
    const char *doc;
} xm_config_row_t;

/** Row @p id of the table. */
const xm_config_row_t *xm_config_row(xm_config_id_t id);

/** Checks every XM_ variable of the environment. Fails with the name, the value and what was
 * expected. */
xm_status_t xm_config_check(void);

/** Value of a row as text: the environment's, else the default. Never NULL. */
const char *xm_config_string(xm_config_id_t id);

/** Value of a SECONDS or PERIOD row. A malformed value gives the default (xm_config_check() reports
 * it). */
double xm_config_seconds(xm_config_id_t id);

/** Value of a BYTES row. A malformed value gives the default. */
uint64_t xm_config_bytes(xm_config_id_t id);

/** Value of a COUNT row, 1 to 64. A malformed value gives the default. */
int xm_config_count(xm_config_id_t id);

/** Whether the environment has a value for a row. */
bool xm_config_is_set(xm_config_id_t id);

/** Index of the value of a CHOICE row among its choices. A malformed value gives the default's. */
int xm_config_choice(xm_config_id_t id);

/**
 * All uniform rows as one text "XM_A=1 XM_B=2", so that ranks can compare them at start. Writes at
 * most
 * @p size bytes including the terminator and returns @p buffer.
 */
char *xm_config_fingerprint(char *buffer, size_t size);
