/**
 * @file hub_table.h
 * A caller's allgather for tests: every rank has a socket to one more process, the hub, which
 * collects a block from each and sends all of them back. Nothing of crossmesh is used.
 */
#ifndef XM_TESTS_COMM_JOB_HUB_TABLE_H
#define XM_TESTS_COMM_JOB_HUB_TABLE_H

#include "comm/job/bootstrap.h"
#include "tests/comm/job/local_job.h"

typedef struct hub {
    int size;
    int ranks[LOCAL_JOB_MAX]; /* the ranks' ends */
    pid_t pid;
} hub_t;

/* Starts the hub of `size` ranks. The ranks are forked afterwards. */
void hub_start(hub_t *hub, int size);

/* Closes the test's copies of the sockets and waits for the hub, which ends with the ranks. */
void hub_end(hub_t *hub);

typedef struct hub_seat {
    int fd;
    int size;
    uint8_t *receive;
    size_t expected, have;
    int posts, frees;
} hub_seat_t;

/* In a rank: its table, over `seat`. */
xm_oob_t hub_table(const hub_t *hub, int rank, hub_seat_t *seat);

#endif
